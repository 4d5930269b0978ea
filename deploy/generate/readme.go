package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// writeReadme replaces the line VALUES of the README with all values of values.yaml and their
// comments. It returns an error that names values without a comment.
func writeReadme(template string, values []byte) ([]byte, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(values, &document); err != nil {
		return nil, fmt.Errorf("chart/values.yaml: %w", err)
	}
	t := &page{}
	for _, e := range entries("", document.Content[0]) {
		t.section(e.name, comment(e.key.HeadComment), e.value)
	}
	if err := errors.Join(t.errs...); err != nil {
		return nil, fmt.Errorf("chart/values.yaml: %w", err)
	}
	return []byte(strings.Replace(template, "\nVALUES\n", t.text.String(), 1)), nil
}

// page is the section of the README about values.
type page struct {
	text strings.Builder
	errs []error
}

// section writes a top-level value and its parts.
func (p *page) section(name, what string, value *yaml.Node) {
	p.explained(name, what)
	fmt.Fprintf(&p.text, "\n### %s\n\n%s\n", name, what)
	if !hasParts(value) {
		fmt.Fprintf(&p.text, "\nDefault: %s\n", inline(value))
		return
	}
	p.text.WriteString("\n| value | default | meaning |\n|---|---|---|\n")
	p.rows(name, value)
}

func (p *page) rows(below string, mapping *yaml.Node) {
	for _, e := range entries(below, mapping) {
		what := comment(e.key.HeadComment)
		if hasParts(e.value) {
			if what != "" {
				fmt.Fprintf(&p.text, "| `%s` | | %s |\n", e.name, what)
			}
			p.rows(e.name, e.value)
			continue
		}
		what = strings.TrimSpace(what + " " + comment(e.value.LineComment+e.key.LineComment))
		p.explained(e.name, what)
		fmt.Fprintf(&p.text, "| `%s` | %s | %s |\n", e.name, inline(e.value), strings.ReplaceAll(what, "|", `\|`))
	}
}

func (p *page) explained(name, what string) {
	if what == "" {
		p.errs = append(p.errs, fmt.Errorf("%s: no comment", name))
	}
}

// entries returns the entries of a mapping, with the full names of their keys.
func entries(below string, mapping *yaml.Node) []entry {
	var out []entry
	for pair := range slices.Chunk(mapping.Content, 2) {
		out = append(out, entry{strings.TrimPrefix(below+"."+pair[0].Value, "."), pair[0], pair[1]})
	}
	return out
}

type entry struct {
	name       string
	key, value *yaml.Node
}

// hasParts reports whether the parts of a value have their own comments.
func hasParts(value *yaml.Node) bool {
	if value.Kind != yaml.MappingNode {
		return false
	}
	for _, n := range value.Content {
		if n.HeadComment != "" || n.LineComment != "" || hasParts(n) {
			return true
		}
	}
	return false
}

// comment returns the text of a comment on one line.
func comment(text string) string {
	var words []string
	for _, line := range strings.Split(text, "\n") {
		words = append(words, strings.Fields(strings.TrimPrefix(line, "#"))...)
	}
	return strings.Join(words, " ")
}

// inline returns a default on one line, in YAML flow style.
func inline(value *yaml.Node) string {
	plain := bare(value)
	text, err := yaml.Marshal(plain)
	if err != nil {
		return ""
	}
	out := strings.TrimSpace(string(text))
	if len(out) > 80 {
		return "see values.yaml"
	}
	return "`" + out + "`"
}

// bare returns a copy of a value without comments, in flow style.
func bare(n *yaml.Node) *yaml.Node {
	c := &yaml.Node{Kind: n.Kind, Tag: n.Tag, Value: n.Value, Style: n.Style}
	if n.Kind != yaml.ScalarNode {
		c.Style = yaml.FlowStyle
	}
	for _, part := range n.Content {
		c.Content = append(c.Content, bare(part))
	}
	return c
}
