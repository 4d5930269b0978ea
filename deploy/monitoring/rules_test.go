package monitoring

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	rulesFile     = "../chart/files/monitoring/rules.yaml"
	portsFile     = "../chart/files/monitoring/rules-ports.yaml"    // if ports are enabled
	egressFile    = "../chart/files/monitoring/rules-egress.yaml"   // if egress is enabled
	policiesFile  = "../chart/files/monitoring/rules-policies.yaml" // if network policies are enabled
	dashboardFile = "../chart/files/monitoring/dashboard.json"
)

var ruleFiles = []string{rulesFile, portsFile, egressFile, policiesFile}

// rule is a recording rule or an alert of a rule file.
type rule struct {
	Record      string            `json:"record"`
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// ruleFile is a rule file of Prometheus.
type ruleFile struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	} `json:"groups"`
}

func readRules(t *testing.T) (all []rule) {
	t.Helper()
	for _, path := range ruleFiles {
		var file ruleFile
		readYAML(t, path, &file)
		for _, g := range file.Groups {
			all = append(all, g.Rules...)
		}
	}
	return all
}

func alerts(t *testing.T) []rule {
	t.Helper()
	return slices.DeleteFunc(readRules(t), func(r rule) bool { return r.Alert == "" })
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = yaml.UnmarshalStrict(data, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// tool returns the path of a program of tools/prometheus, and builds it if necessary.
func tool(t *testing.T, program string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "../../hack/tool.sh", "prometheus", program)
	cmd.Stderr = os.Stderr
	path, err := cmd.Output()
	if err != nil {
		t.Fatalf("hack/tool.sh prometheus %s: %v", program, err)
	}
	return strings.TrimSpace(string(path))
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), tool(t, "promtool"), args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// scenario consists of the series that Prometheus scrapes, and the alerts that fire.
type scenario struct {
	Name   string   `json:"name"`
	At     string   `json:"at"`
	Nodes  int      `json:"nodes"`
	Leader bool     `json:"leader"`
	Series string   `json:"series"`
	Fires  []string `json:"fires"`
}

func scenarios(t *testing.T) (all []scenario) {
	t.Helper()
	for _, name := range []string{"scenarios.yaml", "scenarios-ports.yaml", "scenarios-egress.yaml", "scenarios-policies.yaml"} {
		var some []scenario
		readYAML(t, "testdata/"+name, &some)
		all = append(all, some...)
	}
	return all
}

type (
	series struct {
		Series string `json:"series"`
		Values string `json:"values"`
	}
	sample struct {
		Labels string  `json:"labels"`
		Value  float64 `json:"value"`
	}
	evaluation struct {
		Expr    string   `json:"expr"`
		At      string   `json:"eval_time"`
		Samples []sample `json:"exp_samples"`
	}
	unitTest struct {
		Name        string       `json:"name"`
		Interval    string       `json:"interval"`
		Series      []series     `json:"input_series"`
		Evaluations []evaluation `json:"promql_expr_test"`
	}
	unitTests struct {
		RuleFiles []string   `json:"rule_files"`
		Interval  string     `json:"evaluation_interval"`
		Tests     []unitTest `json:"tests"`
	}
)

// unitTest returns the scenario in promtool's format.
func (s scenario) unitTest(t *testing.T) unitTest {
	t.Helper()
	out := unitTest{Name: s.Name, Interval: "30s"}
	for line := range strings.Lines(s.Series) {
		name, values, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if !ok {
			t.Fatalf("%s: %q is not a series with values", s.Name, line)
		}
		out.Series = append(out.Series, series{name + "}", values})
	}
	steady := func(name string) {
		if !slices.ContainsFunc(out.Series, func(s series) bool { return s.Series == name }) {
			out.Series = append(out.Series, series{name, "1x1000"})
		}
	}
	for i := range s.Nodes {
		steady(fmt.Sprintf(`up{job="berthd",instance="node-%d"}`, i+1))
	}
	if s.Leader {
		steady(`up{job="berth-operator",instance="op-1"}`)
		steady(`leader_election_master_status{job="berth-operator",name="berth-operator",instance="op-1"}`)
	}
	firing := evaluation{Expr: `sum without (alertstate, severity) (ALERTS{alertstate="firing"})`, At: s.At, Samples: []sample{}}
	if len(s.Fires) == 0 { // at that time, or at any time before
		firing.Expr = `sum without (alertstate, severity) (max_over_time(ALERTS{alertstate="firing"}[24h]))`
	}
	for _, labels := range s.Fires {
		firing.Samples = append(firing.Samples, sample{labels, 1})
	}
	out.Evaluations = []evaluation{firing}
	return out
}

// Evaluates the rules with promtool for each scenario.
func TestRules(t *testing.T) {
	file := unitTests{Interval: "1m"}
	for _, path := range ruleFiles {
		rules, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err)
		}
		file.RuleFiles = append(file.RuleFiles, rules)
	}
	promtool(t, append([]string{"check", "rules", "--lint=all", "--lint-fatal"}, file.RuleFiles...)...)
	for _, s := range scenarios(t) {
		file.Tests = append(file.Tests, s.unitTest(t))
	}
	data, err := json.Marshal(file) // JSON is YAML
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "tests.yaml")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "test", "rules", path)
}

// Each alert has a scenario in which it fires and one in which it does not.
func TestEveryAlertHasScenarios(t *testing.T) {
	fires, healthy, known := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, s := range scenarios(t) {
		name, what, _ := strings.Cut(s.Name, ": ")
		switch {
		case strings.HasPrefix(what, "fires"):
			fires[name] = slices.ContainsFunc(s.Fires, func(l string) bool { return strings.HasPrefix(l, fmt.Sprintf("{alertname=%q", name)) })
		case strings.HasPrefix(what, "healthy"):
			healthy[name] = len(s.Fires) == 0
		default:
			t.Errorf("scenario %q: want NAME: fires or NAME: healthy, with details after a comma", s.Name)
		}
	}
	for _, a := range alerts(t) {
		known[a.Alert] = true
		if !fires[a.Alert] || !healthy[a.Alert] {
			t.Errorf("%s: has a scenario in which it fires: %t; has one in which nothing fires: %t", a.Alert, fires[a.Alert], healthy[a.Alert])
		}
	}
	for name := range fires {
		if !known[name] {
			t.Errorf("scenarios of %s, which is not an alert", name)
		}
	}
}

// Each alert has a severity, texts and a runbook.
func TestAlertsHaveTextsAndRunbooks(t *testing.T) {
	for _, a := range alerts(t) {
		if s := a.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s: severity = %q, want critical or warning", a.Alert, s)
		}
		if a.For == "" {
			t.Errorf("%s has no for duration", a.Alert)
		}
		for _, name := range []string{"summary", "description"} {
			if a.Annotations[name] == "" {
				t.Errorf("%s has no %s", a.Alert, name)
			}
		}
		want := "https://github.com/berthnet/berth/blob/main/docs/alerts/" + a.Alert + ".md"
		if got := a.Annotations["runbook_url"]; got != want {
			t.Errorf("%s: runbook_url = %q, want %q", a.Alert, got, want)
		}
	}
}
