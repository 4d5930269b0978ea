//go:build e2e

package alerts

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/proc"
	"github.com/berthnet/berth/test/harness"
)

// ruleFiles are the rule files of the chart.
var ruleFiles = []string{
	"deploy/chart/files/monitoring/rules.yaml", "deploy/chart/files/monitoring/rules-ports.yaml", "deploy/chart/files/monitoring/rules-egress.yaml", "deploy/chart/files/monitoring/rules-policies.yaml",
}

// prometheus is a real Prometheus, in the namespace of a lab's router.
type prometheus struct {
	*proc.Process
	l     *lab.Lab
	dir   string
	fired map[string]bool // by alert
}

// targets maps the instance labels of a scrape job to addresses.
type targets map[string]string

// tool returns the path of a program in tools/prometheus.
func tool(t *testing.T, program string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(harness.Tree(), "hack/tool.sh"), "prometheus", program)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	harness.OK(t, err)
	return strings.TrimSpace(string(out))
}

// watch starts a Prometheus that scrapes all daemons and operators of a lab, and waits for some scrapes. Durations in
// the rules are divided by faster; with 60, scraping every half second stands for every 30 s.
func watch(t *testing.T, l *lab.Lab, faster int) *prometheus {
	t.Helper()
	lint(t, l)
	p := &prometheus{l: l, dir: t.TempDir(), fired: map[string]bool{}}
	for _, path := range ruleFiles {
		rules, err := os.Open(filepath.Join(harness.Tree(), path))
		harness.OK(t, err)
		defer rules.Close()
		scale := exec.CommandContext(t.Context(), tool(t, "promexpr"), "scale", fmt.Sprint(faster))
		scale.Stdin, scale.Stderr = rules, os.Stderr
		scaled, err := scale.Output()
		harness.OK(t, err)
		harness.OK(t, os.WriteFile(filepath.Join(p.dir, filepath.Base(path)), scaled, 0o600))
	}
	daemons, operators := targets{}, targets{}
	for _, n := range l.Nodes() {
		daemons[n.Name] = netip.AddrPortFrom(nodeAddress(t, l, n), 61678).String()
	}
	for i, o := range l.Operators() {
		operators[o.Name] = fmt.Sprintf("127.0.0.1:%d", 61680+i)
	}
	p.configure(t, map[string]targets{"berthd": daemons, "berth-operator": operators})
	path := tool(t, "prometheus")
	p.Process = proc.New("prometheus", filepath.Join(p.dir, "prometheus.log"), func() proc.Command {
		return proc.Command{Path: path, Netns: l.RouterPath(), Dir: p.dir, Args: []string{
			"--config.file=prometheus.yaml", "--storage.tsdb.path=data", "--web.listen-address=127.0.0.1:9090",
			"--query.lookback-delta=5s", "--log.level=warn",
		}}
	})
	harness.OK(t, p.Start())
	t.Cleanup(func() {
		harness.OK(t, p.Stop(time.Minute))
		if t.Failed() {
			t.Logf("all fired alerts: %v\nPrometheus's log:\n%s", slices.Sorted(maps.Keys(p.fired)), p.LogTail(20))
		}
	})
	harness.Eventually(t, harness.Patience, "Prometheus scrapes every program", func() error {
		seen := p.query(t, `count_over_time((up == 1)[15s:500ms]) > 25`)
		return harness.Equal("targets", len(seen), len(daemons)+len(operators))
	})
	foreign := []string{"process_start_time_seconds", "process_resident_memory_bytes", "process_cpu_seconds_total"}
	if len(operators) > 0 {
		foreign = append(foreign, `leader_election_master_status{name="berth-operator"}`, `workqueue_depth{job="berth-operator",name!=""}`)
	}
	for _, name := range foreign {
		if len(p.query(t, name)) == 0 {
			t.Errorf("no program serves %s", name)
		}
	}
	return p
}

// scraped waits for two more scrapes.
func (p *prometheus) scraped(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(1500 * time.Millisecond):
	}
}

// lint checks the metrics of every program with promtool, except those of libraries.
func lint(t *testing.T, l *lab.Lab) {
	t.Helper()
	pages := map[string]string{}
	for _, n := range l.Nodes() {
		body, err := n.Get(t.Context(), node.MetricsURL)
		harness.OK(t, err)
		pages["berthd of "+n.Name] = body
	}
	for _, o := range l.Operators() {
		body, err := o.Get(t.Context(), "/metrics")
		harness.OK(t, err)
		pages[o.Name] = body
	}
	for of, page := range pages {
		check := exec.CommandContext(t.Context(), tool(t, "promtool"), "check", "metrics")
		check.Stdin = strings.NewReader(page)
		out, err := check.CombinedOutput()
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, "berth_") {
				t.Errorf("%s: %s", of, line)
			}
		}
		if err != nil && check.ProcessState.ExitCode() != 3 { // 3 means lint findings
			t.Errorf("%s: promtool check metrics: %v: %s", of, err, out)
		}
	}
}

// configure writes the configuration.
func (p *prometheus) configure(t *testing.T, jobs map[string]targets) {
	t.Helper()
	type static struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	var scrape []any
	for job, of := range jobs {
		var list []static
		for name, address := range of {
			list = append(list, static{[]string{address}, map[string]string{"instance": name}})
		}
		scrape = append(scrape, map[string]any{"job_name": job, "static_configs": list})
	}
	data, err := yaml.Marshal(map[string]any{
		"global":     map[string]any{"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
		"rule_files": []string{"rules*.yaml"}, "scrape_configs": scrape,
	})
	harness.OK(t, err)
	harness.OK(t, os.WriteFile(filepath.Join(p.dir, "prometheus.yaml"), data, 0o600))
}

// get fetches a path of Prometheus's API and decodes its data.
func (p *prometheus) get(t *testing.T, path string, into any) error {
	t.Helper()
	body, err := ns.Get(t.Context(), p.l.RouterPath(), "http://127.0.0.1:9090/api/v1/"+path)
	if err != nil {
		return err
	}
	return json.NewDecoder(bytes.NewBufferString(body)).Decode(&struct {
		Data any `json:"data"`
	}{into})
}

// query returns the labels of the series in the result of an expression.
func (p *prometheus) query(t *testing.T, expr string) (series []map[string]string) {
	t.Helper()
	var data struct {
		Result []struct {
			Metric map[string]string `json:"metric"`
		} `json:"result"`
	}
	if p.get(t, "query?query="+url.QueryEscape(expr), &data) != nil {
		return nil // still starting
	}
	for _, r := range data.Result {
		series = append(series, r.Metric)
	}
	return series
}

// alert is a pending or firing alert.
type alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	State       string            `json:"state"`
}

func (p *prometheus) firing(t *testing.T) (names []string) {
	t.Helper()
	var data struct {
		Alerts []alert `json:"alerts"`
	}
	if err := p.get(t, "alerts", &data); err != nil {
		return nil
	}
	for _, a := range data.Alerts {
		if a.State != "firing" {
			continue
		}
		for name, text := range a.Annotations {
			if text == "" || strings.Contains(text, "<no value>") || strings.Contains(text, "error") && strings.Contains(text, "template") {
				t.Errorf("%s: annotation %s = %q, want a rendered text", a.Labels["alertname"], name, text)
			}
		}
		if name := a.Labels["alertname"]; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// quiet checks that no alert fires.
func (p *prometheus) quiet(t *testing.T) {
	t.Helper()
	if names := p.firing(t); len(names) > 0 {
		t.Errorf("alerts %v fire without a cause", names)
	}
}

// resolves waits until alerts stop firing.
func (p *prometheus) resolves(t *testing.T, names ...string) {
	t.Helper()
	harness.Eventually(t, harness.Patience, fmt.Sprintf("%v resolve", names), func() error {
		if still := slices.DeleteFunc(p.firing(t), func(n string) bool { return !slices.Contains(names, n) }); len(still) > 0 {
			return fmt.Errorf("still firing: %v", still)
		}
		return nil
	})
	t.Logf("resolved: %v", names)
}

// fires waits until all the alerts have fired, together or one after the other.
func (p *prometheus) fires(t *testing.T, names ...string) {
	t.Helper()
	harness.Eventually(t, harness.Patience, fmt.Sprintf("%v fire", names), func() error {
		for _, name := range p.firing(t) {
			p.fired[name] = true
		}
		if missing := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return p.fired[n] }); len(missing) > 0 {
			return fmt.Errorf("not yet fired: %v", missing)
		}
		return nil
	})
	t.Logf("fired: %v", names)
}
