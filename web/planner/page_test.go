package planner_test

import (
	"context"
	"fmt"
	"math"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	engine "github.com/berthnet/berth/internal/planner"
	"github.com/berthnet/berth/test/harness/browser"
	"github.com/berthnet/berth/web/planner"
)

// axe is the source of axe-core, which checks pages for accessibility.
const axe = "../node_modules/axe-core/axe.min.js"

var wide = browser.Options{Width: 1440, Height: 1000}

func TestMain(m *testing.M) {
	engine.Child()
	os.Exit(m.Run())
}

// serve serves the page and the simulation, as `berthctl plan --serve` does.
func serve(t *testing.T) (url string) {
	server := httptest.NewServer(engine.Handler(planner.Page, engine.ServeOptions{Simulate: engine.InChild}))
	t.Cleanup(server.Close)
	return server.URL + "/"
}

// open opens the page, and waits until it has the first example.
func open(t *testing.T, b *browser.Browser, o browser.Options) *browser.Page {
	return openExample(t, b, "", o)
}

// openExample opens the page by the address of an example.
func openExample(t *testing.T, b *browser.Browser, name string, o browser.Options) *browser.Page {
	p := b.Open(t, serve(t)+"#"+name, o)
	p.Await(`document.querySelectorAll('#example option').length > 1 && document.querySelector('#instance-types option')`)
	return p
}

var loaded int // scenarios, by load

// load opens a scenario's file in the page.
func load(t *testing.T, p *browser.Page, s engine.Scenario) {
	text, err := yaml.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	loaded++
	name := fmt.Sprintf("scenario-%d.yaml", loaded) // which the page repeats
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	p.Choose("Open a scenario file", path)
	p.Await(fmt.Sprintf(`document.querySelector('[role=status]').textContent === 'Loaded %s.' && document.getElementById('field-name').value === '%s'`, name, s.Name))
}

// simulate clicks Simulate and waits for the results.
func simulate(p *browser.Page) {
	p.Click("button", "Simulate")
	p.Await(`document.querySelector('[role=status]').textContent.startsWith('Simulated') && !document.body.textContent.includes('The scenario has changed since') && document.querySelectorAll('.chart canvas').length > 0`)
}

func TestPageShowsTheSimulation(t *testing.T) {
	p := open(t, browser.Start(t), wide)
	shipped, err := engine.Examples()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []engine.Scenario{shipped[0], scenarios().Example(1), scenarios().Example(2)} {
		checkPage(t, p, s)
	}
	for _, v := range p.Violations(axe) {
		t.Error(v)
	}
}

// checkPage simulates a scenario in the page and beside it, and compares all numbers.
func checkPage(t testing.TB, p *browser.Page, s engine.Scenario) {
	t.Helper()
	result, err := engine.InChild(context.Background(), s)
	if err != nil {
		t.Fatalf("%+v: %v", s, err)
	}
	load(t.(*testing.T), p, s)
	simulate(p)
	browser.Value[bool](p, `document.querySelectorAll('.chart details').forEach((details) => { details.open = true }) ?? true`)
	p.Await(`[...document.querySelectorAll('.chart details')].every((details) => details.querySelector('table'))`)
	type table struct {
		Caption string     `json:"caption"`
		Rows    [][]string `json:"rows"`
	}
	shown := map[string][][]string{}
	for _, tab := range browser.Value[[]table](p, `[...document.querySelectorAll('table')].map((table) => ({
		caption: table.caption.textContent,
		rows: [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent.replace('✓ best: ', '').trim())),
	}))`) {
		shown[tab.Caption] = tab.Rows
	}
	all := tables(result)
	for caption, rows := range all {
		compare(t, caption, shown[caption], rows)
	}
	for caption := range shown {
		if all[caption] == nil {
			t.Errorf("the page has a table that the result does not have: %s", caption)
		}
	}
	p.Click("button", "CSV of addresses over time")
	name, content := p.Downloaded()
	if !strings.HasSuffix(name, ".csv") {
		t.Errorf("the file of addresses over time is named %s", name)
	}
	var want strings.Builder // of `berthctl plan --csv`
	if err := result.WriteCSV(&want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.String(), string(content)); diff != "" {
		t.Errorf("the file %s is not that of the command (-command +page):\n%s", name, diff)
	}
}

// compare compares the rows of a table. Numbers may be rounded to three digits.
func compare(t testing.TB, caption string, got, want [][]string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d rows, want %d: %q", caption, len(got), len(want), got)
		return
	}
	for i := range want {
		if len(got[i]) != len(want[i]) {
			t.Errorf("%s: row %d is %q, want %q", caption, i, got[i], want[i])
			return
		}
		for j, cell := range want[i] {
			if !same(got[i][j], cell) {
				t.Errorf("%s: row %d (%s) has %q in column %s, want %q", caption, i, want[i][0], got[i][j], want[0][min(j, len(want[0])-1)], cell)
				return
			}
		}
	}
}

func same(got, want string) bool {
	if got == want {
		return true
	}
	number := func(s string) (float64, error) {
		return strconv.ParseFloat(strings.TrimSuffix(strings.ReplaceAll(s, ",", ""), " s"), 64)
	}
	g, err := number(got)
	if err != nil {
		return false
	}
	w, err := number(want)
	return err == nil && math.Abs(g-w) <= 0.000501
}

func text[T int | float64](v T) string { return strconv.FormatFloat(float64(v), 'f', -1, 64) }

// clock is a time as tables of charts show it.
func clock(seconds float64) string {
	d := time.Duration(seconds) * time.Second
	return fmt.Sprintf("%02d:%02d:%02d", int(d.Hours()), int(d.Minutes())%60, int(d.Seconds())%60)
}

// zeros are at the end of a duration such as 24h0m0s.
var zeros = regexp.MustCompile(`([hm])0[ms](0s)?$`)

// tables returns what the tables of the page should have, by their captions.
func tables(r *engine.Result) map[string][][]string {
	out := map[string][][]string{}
	totals := func(label string, value func(engine.Totals) string) {
		row := []string{label}
		for _, a := range r.Alternatives {
			row = append(row, value(a.Totals))
		}
		const caption = "Totals of the alternatives side by side. The best value of each row is marked."
		out[caption] = append(out[caption], row)
	}
	integer := func(label string, value func(engine.Totals) int) {
		totals(label, func(t engine.Totals) string { return text(value(t)) })
	}
	head := []string{"After " + zeros.ReplaceAllString(r.Duration.Std().String(), "$1")}
	for _, a := range r.Alternatives {
		head = append(head, a.Name)
	}
	const caption = "Totals of the alternatives side by side. The best value of each row is marked."
	group := func(name string) { out[caption] = append(out[caption], []string{name}) }
	out[caption] = [][]string{head}
	group("Addresses of all subnets")
	integer("Held by nodes, at most", func(t engine.Totals) int { return t.PeakHeld })
	integer("Held at the end", func(t engine.Totals) int { return t.EndHeld })
	integer("Idle (warm), at most", func(t engine.Totals) int { return t.PeakIdle })
	totals("Idle, on average", func(t engine.Totals) string { return text(t.MeanIdle) })
	totals("Idle address-hours", func(t engine.Totals) string { return text(t.IdleHours) })
	integer("Free in the fullest subnet, at least", func(t engine.Totals) int { return t.LeastFree })
	integer("ENIs, at most", func(t engine.Totals) int { return t.PeakENIs })
	group("EC2 calls")
	integer("Calls", func(t engine.Totals) int { return t.Calls })
	integer("Throttled", func(t engine.Totals) int { return t.Throttled })
	integer("Refused for other reasons", func(t engine.Totals) int { return t.Refused })
	group("Pods")
	integer("Started", func(t engine.Totals) int { return t.Pods })
	integer("Waited for an address", func(t engine.Totals) int { return t.Waited })
	totals("Wait, median", func(t engine.Totals) string { return text(t.Wait.P50) + " s" })
	totals("Wait, 99th percentile", func(t engine.Totals) string { return text(t.Wait.P99) + " s" })
	totals("Wait, longest", func(t engine.Totals) string { return text(t.Wait.Max) + " s" })
	integer("Without an address at the end", func(t engine.Totals) int { return t.Waiting })
	integer("Pending at the end", func(t engine.Totals) int { return t.Pending })

	for _, a := range r.Alternatives {
		for _, c := range a.Calls {
			const caption = "EC2 calls by alternative and action"
			if out[caption] == nil {
				out[caption] = [][]string{{"Action", "Alternative", "Calls", "Throttled", "Subnet full", "ENI limit", "Other errors"}}
			}
			out[caption] = append(out[caption], []string{c.Action, a.Name, text(c.Calls), text(c.Throttled), text(c.SubnetFull), text(c.ENILimit), text(c.OtherErrors)})
		}
		limitRows(out, a)
		for _, n := range a.Series.Subnets {
			if n.Size > 0 {
				series(out, fmt.Sprintf("Subnet %s, %s, addresses of %s", n.Name, a.Name, n.CIDR), a.Series.At, []string{"Free", "Warm", "Cooling", "Used", "ENIs", "Others"},
					n.Free, n.Warm, n.Cooling, n.Used, n.ENIs, slices.Repeat([]int{n.Others}, len(a.Series.At)))
			}
		}
	}
	for name, of := range map[string]func(engine.Series) []int{
		"ENIs, attached or being attached":                                        func(s engine.Series) []int { return s.ENIs },
		"EC2 calls, since the point before":                                       func(s engine.Series) []int { return s.Calls },
		"Throttled calls, refused because of rate limits, since the point before": func(s engine.Series) []int { return s.Throttled },
		"Refused calls, for other reasons, since the point before":                func(s engine.Series) []int { return s.Refused },
		"Pods waiting for an address, pods":                                       func(s engine.Series) []int { return s.Waiting },
		"Pending pods, waiting for a node":                                        func(s engine.Series) []int { return s.Pending },
		"Running pods, with an address":                                           func(s engine.Series) []int { return s.Running },
		"Nodes, nodes":                                                            func(s engine.Series) []int { return s.Nodes },
		"Branch interfaces, associated":                                           func(s engine.Series) []int { return s.Branches },
	} {
		var names []string
		var values [][]int
		for _, a := range r.Alternatives {
			names, values = append(names, a.Name), append(values, of(a.Series))
		}
		if slices.ContainsFunc(values, func(v []int) bool { return slices.Max(v) > 0 }) {
			series(out, "ENIs, calls and pods, "+name, r.Alternatives[0].Series.At, names, values...)
		}
	}
	return out
}

// limitRows adds an alternative's limits.
func limitRows(out map[string][][]string, a engine.OfAlternative) {
	const caption = "Events of the alternatives in the order of time"
	limits := map[string]string{
		engine.KindSubnetFull: "Subnet full", engine.KindENILimit: "ENI limit", engine.KindMaxPods: "Kubelet max-pods", engine.KindAddressCap: "Cap of the settings",
		engine.KindThrottled: "EC2 rate limit", engine.KindBranchLimit: "Branch limit", engine.KindCooling: "Addresses cooling", engine.KindOtherReason: "Other",
	}
	for _, e := range a.Events {
		if limits[e.Kind] == "" {
			continue
		}
		if out[caption] == nil {
			out[caption] = [][]string{{"At", "Alternative", "Limit", "What happened", "Pods", "Waited for"}}
		}
		pods, waited := "", ""
		if e.Pods > 0 {
			pods = text(e.Pods)
		}
		if e.For > 0 {
			waited = e.For.Std().String()
		}
		out[caption] = append(out[caption], []string{e.At.Std().String(), a.Name, limits[e.Kind], e.Text, pods, waited})
	}
}

func series(out map[string][][]string, caption string, at []float64, names []string, values ...[]int) {
	rows := [][]string{append([]string{"Time"}, names...)}
	for i, seconds := range at {
		row := []string{clock(seconds)}
		for _, v := range values {
			row = append(row, text(v[i]))
		}
		rows = append(rows, row)
	}
	out[caption] = rows
}

// scenarios are random ones of an hour or two.
func scenarios() *rapid.Generator[engine.Scenario] {
	return rapid.Custom(func(t *rapid.T) engine.Scenario {
		number := func(label string, least, most int) int { return rapid.IntRange(least, most).Draw(t, label) }
		duration := time.Duration(number("minutes", 10, 120)) * time.Minute
		at := func(label string) engine.Duration {
			return engine.Duration(time.Duration(number(label, 1, int(duration.Seconds())-1)) * time.Second)
		}
		settings := func() engine.Settings {
			var s engine.Settings
			target := int32(number("target", 0, 6))
			switch number("settings", 0, 3) {
			case 0:
				s.ENI.WarmENITarget = &target
			case 1:
				s.ENI.WarmIPTarget = &target
			case 2:
				s.Mode, s.ENI.PreAllocate = engine.ModeOperator, &target
			case 3:
				on := true
				s.ENI.PrefixDelegation, s.ENI.WarmIPTarget = &on, &target
			}
			return s
		}
		types := rapid.SampledFrom([]string{"c5.large", "t3.small", "m5.xlarge"})
		s := engine.Scenario{Name: "random", Duration: engine.Duration(duration), Sample: engine.Duration(duration / 20), Settings: settings()}
		for i := range number("subnets", 1, 2) {
			s.Subnets = append(s.Subnets, engine.Subnet{Name: fmt.Sprintf("net %d", i), CIDR: fmt.Sprintf("10.0.%d.0/%d", 16*i, number("bits", 22, 27)), Used: number("used", 0, 9)})
			s.Nodes = append(s.Nodes, engine.NodeGroup{
				Name: fmt.Sprintf("group.%d", i), InstanceType: types.Draw(t, "type"), Count: number("nodes", 1, 4), Subnets: []string{fmt.Sprintf("net %d", i)},
				Changes: []engine.Change{{At: at("nodes change"), Count: number("nodes later", 0, 6)}},
			})
		}
		for i := range number("deployments", 1, 3) {
			s.Workload.Deployments = append(s.Workload.Deployments, engine.Deployment{
				Name: fmt.Sprintf("web-%d", i), Replicas: number("replicas", 0, 40), Changes: []engine.Change{{At: at("scale"), Count: number("replicas later", 0, 60)}},
				Rollouts: []engine.Rollout{{At: at("rollout")}},
			})
		}
		for i := range number("alternatives", 0, 2) {
			other := settings()
			s.Alternatives = append(s.Alternatives, engine.Alternative{Name: fmt.Sprintf("other %d", i), Settings: &other, InstanceTypes: map[string]string{"group.0": types.Draw(t, "other type")}})
		}
		return s
	})
}
