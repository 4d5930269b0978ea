package monitoring

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// metric is the documentation of a metric.
type metric struct {
	page    string // reference page
	labels  []string
	meaning string // lists the values of its labels
}

// others are metrics that Berth does not define: those of Prometheus, and those of libraries.
// test/e2e/alerts checks that the programs have them.
var others = map[string]metric{
	"up":                            {},
	"ALERTS":                        {labels: []string{"alertname"}},
	"process_start_time_seconds":    {},
	"process_resident_memory_bytes": {},
	"process_cpu_seconds_total":     {},
	"leader_election_master_status": {labels: []string{"name"}, meaning: "berth-operator"},
	"workqueue_depth":               {labels: []string{"name"}},
}

// ofGateways are labels that Prometheus adds to all series of an Egress's gateway.
var ofGateways = []string{"namespace", "egress"}

// everywhere are labels that Prometheus adds to all series of a target.
var everywhere = []string{"job", "instance"}

// readMetrics reads the reference pages, which are generated from the programs.
func readMetrics(t *testing.T) map[string]metric {
	t.Helper()
	all := maps.Clone(others)
	row := regexp.MustCompile("(?m)^\\| `(berth_[a-z0-9_]+)` \\| (\\w+) \\| ([a-z_, ]*) ?\\| (.*) \\|$")
	for _, page := range []string{"metrics.md", "operator-metrics.md", "egress-metrics.md"} {
		text := readFile(t, "../../docs/reference/"+page)
		var beside []string
		if page == "egress-metrics.md" {
			beside = ofGateways
		}
		found := row.FindAllStringSubmatch(text, -1)
		if len(found) < 10 {
			t.Fatalf("%s: found only %d metrics", page, len(found))
		}
		listed := map[string]bool{}
		for _, m := range found {
			if listed[m[1]] { // a registry with both would return only an error to the scraper
				t.Errorf("%s: %s is listed twice", page, m[1])
			}
			listed[m[1]] = true
			of := metric{page: page, meaning: m[4]}
			if m[3] != "" {
				of.labels = strings.Split(strings.TrimSpace(m[3]), ", ")
			}
			of.labels = append(of.labels, beside...)
			if m[1] == "berth_condition" {
				of.meaning = text // of which a table has the types
			}
			if m[2] != "histogram" {
				all[m[1]] = of
				continue
			}
			all[m[1]+"_count"], all[m[1]+"_sum"] = of, of
			of.labels = append(slices.Clone(of.labels), "le")
			all[m[1]+"_bucket"] = of
		}
	}
	return all
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// named has the names in an expression, in the output format of tools/prometheus/promexpr.
type named struct {
	Selectors []struct {
		Metric string            `json:"metric"`
		Match  map[string]string `json:"match"`
	} `json:"selectors"`
	Labels []string `json:"labels"`
	Made   []string `json:"made"`
}

func namesIn(t *testing.T, expressions []string) (all []named) {
	t.Helper()
	in, err := json.Marshal(expressions)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), tool(t, "promexpr"), "names")
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &all)
	}
	if err != nil {
		t.Fatalf("promexpr: %v", err)
	}
	return all
}

// All metrics, labels and documented label values in rules and dashboard exist in the reference pages.
func TestMetricNamesExist(t *testing.T) {
	metrics := readMetrics(t)
	reasons := ""
	for _, page := range glob(t, "../../docs/troubleshoot/*.md") {
		reasons += readFile(t, page)
	}
	rules := readRules(t)
	var expressions []string
	for _, r := range rules {
		expressions = append(expressions, r.Expr)
	}
	expressions = append(expressions, readDashboard(t).expressions()...)
	for i, n := range namesIn(t, expressions) {
		labels, meaning := slices.Concat(everywhere, n.Made), ""
		for _, s := range n.Selectors {
			m, ok := metrics[s.Metric]
			if !ok {
				t.Errorf("no program has the metric %s, and no earlier rule records it: %s", s.Metric, expressions[i])
				continue
			}
			labels, meaning = append(labels, m.labels...), meaning+m.meaning
			for label, pattern := range s.Match {
				if !slices.Contains(slices.Concat(everywhere, m.labels), label) {
					t.Errorf("%s has no label %s: %s", s.Metric, label, expressions[i])
				}
				for _, value := range values(label, pattern) {
					if !strings.Contains(m.meaning, value) && !strings.Contains(reasons, "`"+value+"`") {
						t.Errorf("%s: %q is not a documented value of %s: %s", s.Metric, value, label, expressions[i])
					}
				}
			}
		}
		for _, l := range n.Labels {
			if !slices.Contains(labels, l) {
				t.Errorf("no metric has the label %s: %s", l, expressions[i])
			}
		}
		if i < len(rules) && rules[i].Record != "" {
			metrics[rules[i].Record] = metric{labels: n.Labels, meaning: meaning}
		}
	}
}

// values returns the values in a matcher, for labels whose values Berth defines.
func values(label, pattern string) []string {
	switch label {
	case "state", "category", "type", "result", "ipam", "call", "reason", "name", "class", "outcome", "kind":
		return strings.FieldsFunc(pattern, func(r rune) bool { return r == '|' })
	}
	return nil
}
