package planner

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berthnet/berth/test/harness/check"
)

// base is a scenario of an hour; what follows completes it.
const base = `
duration: 1h
subnets: [{name: a, cidr: 10.0.0.0/22}]
`

func hasEvent(r *Result, kind string) bool {
	return slices.ContainsFunc(r.Alternatives[0].Events, func(e Event) bool { return e.Kind == kind })
}

func last(list []int) int { return list[len(list)-1] }

// Pods that outlive a crash loop become ready, so a rolling update that began during it completes.
func TestRolloutAfterCrashLoop(t *testing.T) {
	r := simulate(t, base+`
nodes: [{name: workers, instanceType: m5.large, count: 2, subnets: [a]}]
workload:
  deployments: [{name: web, replicas: 4, ready: 50s, crashLoop: {from: 1m, until: 10m, after: 45s}, rollouts: [{at: 9m30s}]}]
`)
	if !hasEvent(r, KindRolloutDone) {
		t.Errorf("the rollout is not complete: %+v", r.Alternatives[0].Events)
	}
}

// A deployment that is scaled down during a rolling update ends with the pods that it should have.
func TestScaleDownDuringRollout(t *testing.T) {
	r := simulate(t, base+`
nodes: [{name: workers, instanceType: m5.large, count: 10, subnets: [a]}]
workload:
  deployments: [{name: web, replicas: 100, ready: 1m, rollouts: [{at: 10m, maxSurge: "50%"}], changes: [{at: 10m10s, count: 10}]}]
`)
	check.Equal(t, last(r.Alternatives[0].Series.Running), 10, "pods at the end")
	if !hasEvent(r, KindRolloutDone) {
		t.Error("the rollout is not complete")
	}
}

// Node groups have the number of nodes of the last change, also if nodes start or are replaced at the same time.
func TestNodesWhileTheyChange(t *testing.T) {
	for group, want := range map[string]int{
		"count: 10, changes: [{at: 2s, count: 3}]":                                          3,
		"count: 1, changes: [{at: 10m, count: 5}, {at: 10m1s, count: 8}]":                   8,
		"count: 4, replace: {every: 25m, nodes: 2}, changes: [{at: 25m30s, count: 6}]":      6,
		"count: 4, replace: {every: 25m, nodes: 2}, changes: [{at: 25m30s, count: 3}]":      3,
		"count: 4, replace: {every: 25m, nodes: 1}, changes: [{at: 24m59s500ms, count: 6}]": 6,
	} {
		r := simulate(t, base+"nodes: [{name: workers, instanceType: m5.large, subnets: [a], "+group+"}]")
		check.Equal(t, last(r.Alternatives[0].Series.Nodes), want, "%s: nodes at the end", group)
	}
}

// Totals are of the whole time, also if the series end before it.
func TestTotalsAreOfTheWholeTime(t *testing.T) {
	r := simulate(t, strings.Replace(base, "1h", "90m\nsample: 50m", 1)+"nodes: [{name: workers, instanceType: m5.large, count: 1, subnets: [a]}]")
	a := r.Alternatives[0]
	check.Equal(t, len(a.Series.At), 2, "points")
	if a.Totals.PeakIdle != 9 || a.Totals.MeanIdle < 8.9 {
		t.Errorf("idle addresses: %v on average and %d at most, want 9", a.Totals.MeanIdle, a.Totals.PeakIdle)
	}
}

// A simulation with too many events ends early, with the numbers up to there.
func TestTooManyEvents(t *testing.T) {
	p := check.Must(check.Must(Parse([]byte(threeNodes)))(t).plans())(t)[0]
	p.steps = 200
	a := check.Must(p.simulate(t.Context()))(t)
	if !strings.Contains(a.Stopped, "too many events") || len(a.Series.At) == 0 {
		t.Errorf("stopped: %q, %d points; want a reason and points", a.Stopped, len(a.Series.At))
	}
}

// A document of mistakes has an error of bounded size.
func TestManyMistakes(t *testing.T) {
	var doc strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&doc, "x%d: 1\n", i)
	}
	_, err := Parse([]byte(doc.String()))
	if err == nil || len(err.Error()) > 20<<10 || !strings.Contains(err.Error(), "there are more mistakes") {
		t.Errorf("Parse() error = %.2000v, want the first mistakes, and that there are more", err)
	}
}

// The size of a result is bounded.
func TestSizeOfResult(t *testing.T) {
	s := check.Must(Parse([]byte(threeNodes)))(t)
	s.Duration, s.Sample = Duration(MaxDuration), Duration(MaxDuration/maxPoints)
	check.OK(t, s.Check())
	for i := range 30 {
		s.Subnets = append(s.Subnets, Subnet{Name: fmt.Sprintf("other-%d", i), CIDR: fmt.Sprintf("10.1.%d.0/24", i)})
	}
	for i := range MaxAlternatives {
		s.Alternatives = append(s.Alternatives, Alternative{Name: fmt.Sprintf("other-%d", i)})
	}
	if err := s.Check(); err == nil || !strings.Contains(err.Error(), "sample: the series would have") {
		t.Errorf("Check() error = %v, want that the result is too large", err)
	}
}

// Subnets are selected by tags as in a cluster, and the peaks are those between two looks, too.
func TestSubnetTagsAndPeaks(t *testing.T) {
	r := simulate(t, `
duration: 10m
subnets: [{name: a, cidr: 10.0.0.0/24}, {name: b, cidr: 10.0.1.0/24, tags: {for: pods, x: "y"}}, {name: c, cidr: 10.0.2.0/24, tags: {for: others}}]
settings: {cooling: 1s, shrinkDelay: 1s, eni: {subnetTags: {for: pods}, firstInterfaceIndex: 1, warmIPTarget: 1}}
nodes: [{name: workers, instanceType: m5.large, count: 1, subnets: [a]}]
workload: {deployments: [{name: web, changes: [{at: 130s, count: 7}, {at: 150s, count: 1}]}]}
`)
	a := r.Alternatives[0]
	held := func(s SubnetSeries) (most int) {
		for i := range s.Free {
			most = max(most, s.Size-s.Others-s.Free[i])
		}
		return most
	}
	s := a.Series.Subnets
	check.Equal(t, held(s[0]), 1, "addresses in the instance's subnet")
	check.Equal(t, held(s[2]), 0, "addresses in a subnet with another tag")
	if sampled := held(s[1]); sampled < 1 || a.Totals.PeakHeld < 9 {
		t.Errorf("%d addresses held at the points of subnet b, and %d at most, want the instance's, 7 of pods and the ENI's at least", sampled, a.Totals.PeakHeld)
	}
	least := 0
	for _, e := range a.Events {
		if e.Kind == KindSubnetPeak && e.On == "b" {
			least++
			if at := e.At.Std().Seconds(); at < 130 || at > 160 {
				t.Errorf("the fewest free addresses of b are at %v, want between two looks", e.At)
			}
		}
	}
	check.Equal(t, least, 1, "events of subnet b")
}
