// Promexpr lists the names in PromQL expressions, and scales rules that need minutes to seconds, both with Prometheus's
// own parser.
//
//	promexpr names < EXPRESSIONS     a JSON list of strings in, a JSON list of names out
//	promexpr scale FACTOR < RULES    a rule file in, the same with durations divided by FACTOR out
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "promexpr:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == "names":
		return names(in, out)
	case len(args) == 2 && args[0] == "scale":
		factor, err := strconv.ParseFloat(args[1], 64)
		if err != nil || factor <= 0 {
			return fmt.Errorf("factor %q: want a number above 0", args[1])
		}
		return scale(in, out, factor)
	}
	return errors.New("want: names, or scale FACTOR")
}

var promQL = parser.NewParser(parser.Options{})

// selector is one metric that an expression reads.
type selector struct {
	Metric string            `json:"metric"`
	Match  map[string]string `json:"match"` // values and patterns by label
}

// named lists the names in one expression.
type named struct {
	Selectors []selector `json:"selectors"`
	Labels    []string   `json:"labels"` // labels in groupings, joins and replacements
	Made      []string   `json:"made"`   // labels set by label_replace and label_join
}

func names(in io.Reader, out io.Writer) error {
	var expressions []string
	if err := json.NewDecoder(in).Decode(&expressions); err != nil {
		return fmt.Errorf("expressions: want a JSON list of strings: %w", err)
	}
	all := make([]named, 0, len(expressions))
	for _, text := range expressions {
		e, err := promQL.ParseExpr(text)
		if err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
		all = append(all, namesOf(e))
	}
	return json.NewEncoder(out).Encode(all)
}

func namesOf(e parser.Expr) named {
	n, grouped, made := named{Selectors: []selector{}}, map[string]bool{}, map[string]bool{}
	parser.Inspect(e, func(node parser.Node, _ []parser.Node) error {
		switch node := node.(type) {
		case *parser.VectorSelector:
			n.Selectors = append(n.Selectors, selectorOf(node))
		case *parser.AggregateExpr:
			note(grouped, node.Grouping)
		case *parser.BinaryExpr:
			if m := node.VectorMatching; m != nil {
				note(grouped, m.MatchingLabels)
				note(grouped, m.Include)
			}
		case *parser.Call:
			switch node.Func.Name {
			case "label_replace":
				note(made, texts(node.Args[1:2]))
				note(grouped, texts(node.Args[3:4]))
			case "label_join":
				note(made, texts(node.Args[1:2]))
				note(grouped, texts(node.Args[3:]))
			}
		}
		return nil
	})
	n.Labels, n.Made = slices.Sorted(maps.Keys(grouped)), slices.Sorted(maps.Keys(made))
	return n
}

func note(in map[string]bool, names []string) {
	for _, n := range names {
		in[n] = true
	}
}

func texts(args parser.Expressions) (out []string) {
	for _, a := range args {
		if s, ok := a.(*parser.StringLiteral); ok {
			out = append(out, s.Val)
		}
	}
	return out
}

func selectorOf(v *parser.VectorSelector) selector {
	s := selector{Metric: v.Name, Match: map[string]string{}}
	for _, m := range v.LabelMatchers {
		if m.Name == labels.MetricName {
			s.Metric = m.Value
		} else {
			s.Match[m.Name] = m.Value
		}
	}
	return s
}

// scale divides the durations in a rule file: those of groups and rules, and ranges, steps and offsets in expressions.
func scale(in io.Reader, out io.Writer, factor float64) error {
	var file struct {
		Groups []map[string]any `yaml:"groups"`
	}
	if err := yaml.NewDecoder(in).Decode(&file); err != nil {
		return fmt.Errorf("rule file: %w", err)
	}
	for _, group := range file.Groups {
		if err := scaleGroup(group, factor); err != nil {
			return fmt.Errorf("group %v: %w", group["name"], err)
		}
	}
	return yaml.NewEncoder(out).Encode(file)
}

func scaleGroup(group map[string]any, factor float64) error {
	rules, ok := group["rules"].([]any)
	if !ok {
		return errors.New("rules: want a list")
	}
	if err := scaleFields(group, factor, "interval"); err != nil {
		return err
	}
	for _, r := range rules {
		rule, ok := r.(map[string]any)
		if !ok {
			return fmt.Errorf("rule %v: want a mapping", r)
		}
		if err := scaleFields(rule, factor, "for", "keep_firing_for"); err != nil {
			return err
		}
		text, _ := rule["expr"].(string)
		e, err := promQL.ParseExpr(text)
		if err != nil {
			return fmt.Errorf("expr %q: %w", text, err)
		}
		scaleExpr(e, factor)
		rule["expr"] = e.String()
	}
	return nil
}

func scaleFields(of map[string]any, factor float64, fields ...string) error {
	for _, f := range fields {
		text, ok := of[f].(string)
		if !ok {
			continue
		}
		d, err := model.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
		of[f] = model.Duration(shorter(time.Duration(d), factor)).String()
	}
	return nil
}

func scaleExpr(e parser.Expr, factor float64) {
	parser.Inspect(e, func(node parser.Node, _ []parser.Node) error {
		switch node := node.(type) {
		case *parser.MatrixSelector:
			node.Range = shorter(node.Range, factor)
		case *parser.VectorSelector:
			node.OriginalOffset = shorter(node.OriginalOffset, factor)
		case *parser.SubqueryExpr:
			node.Range, node.Step, node.OriginalOffset = shorter(node.Range, factor), shorter(node.Step, factor), shorter(node.OriginalOffset, factor)
		}
		return nil
	})
}

func shorter(d time.Duration, factor float64) time.Duration {
	return time.Duration(float64(d) / factor).Round(time.Millisecond)
}
