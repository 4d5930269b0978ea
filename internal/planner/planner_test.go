package planner

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/test/harness/check"
)

// simulate simulates a scenario in YAML.
func simulate(t *testing.T, text string) *Result {
	t.Helper()
	s := check.Must(Parse([]byte(text)))(t)
	return check.Must(Simulate(t.Context(), s))(t)
}

func text(t *testing.T, v any) string {
	t.Helper()
	return string(check.Must(json.Marshal(v))(t))
}

// same compares two results, and prints where they first differ.
func same(t *testing.T, got, want, what string) {
	t.Helper()
	i := 0
	for i < min(len(got), len(want)) && got[i] == want[i] {
		i++
	}
	if got != want {
		t.Errorf("%s differs at byte %d: ...%s, want ...%s", what, i, got[max(0, i-80):min(len(got), i+40)], want[max(0, i-80):min(len(want), i+40)])
	}
}

// invariants checks what holds in every result.
func invariants(t *testing.T, r *Result) {
	t.Helper()
	for _, a := range r.Alternatives {
		n := len(a.Series.At)
		for _, list := range [][]int{a.Series.Nodes, a.Series.ENIs, a.Series.Running, a.Series.Waiting, a.Series.Pending, a.Series.Calls, a.Series.Throttled, a.Series.Refused, a.Series.Branches} {
			check.Equal(t, len(list), n, "%s: points of a series", a.Name)
		}
		used := make([]int, n)
		for _, s := range a.Series.Subnets {
			for i := range n {
				if s.CIDR == "" {
					continue
				}
				used[i] += s.Used[i]
				if sum := s.Used[i] + s.Warm[i] + s.Cooling[i] + s.ENIs[i] + s.Others + s.Free[i]; sum != s.Size || min(s.Used[i], s.Warm[i], s.Cooling[i], s.ENIs[i], s.Free[i]) < 0 {
					t.Errorf("%s: subnet %s at %v s: %d used + %d warm + %d cooling + %d of ENIs + %d of others + %d free = %d, want %d",
						a.Name, s.Name, a.Series.At[i], s.Used[i], s.Warm[i], s.Cooling[i], s.ENIs[i], s.Others, s.Free[i], sum, s.Size)
				}
			}
		}
		calls := 0
		for _, c := range a.Calls {
			calls += c.Calls
		}
		check.Equal(t, calls, a.Totals.Calls, "%s: calls", a.Name)
	}
}

// Every example is valid, keeps the invariants, and has the same result each time.
func TestExamples(t *testing.T) {
	for _, s := range check.Must(Examples())(t) {
		t.Run(s.Name, func(t *testing.T) {
			invariants(t, check.Must(Simulate(t.Context(), s))(t))
		})
	}
}

// AWS's guide says 49 addresses where its list adds up to 50.
func TestWorkedExample(t *testing.T) {
	s := check.Must(Parse(check.Must(Example("three-nodes"))(t)))(t)
	a := check.Must(Simulate(t.Context(), s))(t).Alternatives[0]
	last := len(a.Series.At) - 1
	check.Equal(t, a.Totals.EndHeld, 50, "addresses held")
	check.Equal(t, a.Series.ENIs[last], 5, "ENIs")
	check.Equal(t, a.Series.Subnets[0].Used[last], 2, "addresses of pods")
}

func TestMistakes(t *testing.T) {
	const good = `{"subnets": [{"name": "a", "cidr": "10.0.0.0/24"}], "nodes": [{"name": "n", "instanceType": "m5.large", "count": 1, "subnets": ["a"]}]}`
	check.OK(t, check.Must(Parse([]byte(good)))(t).Check())
	for edit, want := range map[string]string{
		`"m5.large" -> "m5.huge"`:     `nodes[0].instanceType: instance type "m5.huge" is unknown; known types of its family:`,
		`"count": 1 -> "count": "x"`:  `nodes[0].count: "x": expected a number`,
		`"count": 1 -> "count": -1`:   `nodes[0].count: -1: expected 0 to 2000`,
		`"count": 1 -> "count": 2001`: `nodes[0].count: 2001: expected 0 to 2000`,
		`"count": 1 -> "replace": {"every": "1h", "nodes": 1}, "count": 2000`:            `nodes: 2001 nodes in all at the most: expected at most 2000`,
		`{"subnets" -> {"settings": {"eni": {"subnetTags": {"for": "pods"}}}, "subnets"`: `settings.eni.subnetTags: no subnet has all these tags`,
		`"count": 1 -> "cuont": 1`:                                                                                           `nodes[0].cuont: unknown field: expected one of changes, count,`,
		`["a"] -> ["b"]`:                                                                                                     `nodes[0].subnets[0]: "b": no subnet has this name`,
		`10.0.0.0/24 -> 10.0.0.0/8`:                                                                                          `subnets[0].cidr: "10.0.0.0/8": expected an IPv4 block from /16 to /28`,
		`10.0.0.0/24 -> 10.0.0.1/24`:                                                                                         `subnets[0].cidr: "10.0.0.1/24": expected an IPv4 block`,
		`{"subnets" -> {"duration": 5, "subnets"`:                                                                            `duration: 5: expected a duration such as "90s" or "1h30m"`,
		`{"subnets" -> {"duration": "1s", "subnets"`:                                                                         `duration: 1s: expected 1m0s to 168h0m0s`,
		`{"subnets" -> {"sample": "1ms", "subnets"`:                                                                          `sample: 1ms: expected 1s to the duration`,
		`{"subnets" -> {"ec2": {"rateLimits": -1}, "subnets"`:                                                                `ec2.rateLimits: -1: expected 0 for no limits`,
		`{"subnets" -> {"settings": {"mode": "x"}, "subnets"`:                                                                `settings.mode: "x": expected node or operator`,
		`{"subnets" -> {"settings": {"eni": {"warmIPTarget": -1}}, "subnets"`:                                                `settings.eni.warmIPTarget: is -1: expected a number from 0`,
		`{"subnets" -> {"settings": {"eni": {"warmIPTarget": 1, "preAllocate": 1}}, "subnets"`:                               `settings.eni: has warm targets and watermarks`,
		`{"subnets" -> {"settings": {"eni": {"ipFamilies": "dual"}}, "subnets"`:                                              `nodes[0].subnets[0]: subnet a lacks a family of settings.eni.ipFamilies, which is dual`,
		`{"subnets" -> {"settings": {"eni": {"firstInterfaceIndex": 3}}, "subnets"`:                                          `settings.eni.firstInterfaceIndex: 3: expected at most 2`,
		`{"subnets" -> {"settings": {"eni": {"vpcID": "vpc-1"}}, "subnets"`:                                                  `settings.eni.vpcID: expected none`,
		`{"subnets" -> {"settings": {"eni": {"trunk": true}}, "subnets"`:                                                     `settings.eni.trunk: expected mode operator`,
		`{"subnets" -> {"workload": {"deployments": [{"name": "w", "replicas": 1, "branch": true}]}, "subnets"`:              `workload.deployments[0].branch: expected settings with mode operator`,
		`{"subnets" -> {"workload": {"deployments": [{"name": "w", "replicas": 1, "rollouts": [{"at": "25h"}]}]}, "subnets"`: `workload.deployments[0].rollouts[0].at: 25h0m0s: expected at most the duration, which is 24h0m0s`,
		`{"subnets" -> {"workload": {"deployments": [{"name": "w", "replicas": 1, "rollouts": [{"at": "1h", "maxSurge": "x"}]}]}, "subnets"`: `workload.deployments[0].rollouts[0].maxSurge: "x": expected a number, or a percentage`,
		`{"subnets" -> {"workload": {"deployments": [{"name": "w", "replicas": 20000, "lifetime": "10s"}]}, "subnets"`:                       `workload.deployments: about 172800000 pods would start: expected at most 2000000`,
		`{"subnets" -> {"alternatives": [{"name": "x", "settings": {"mode": "y"}}], "subnets"`:                                               `alternatives[0].settings.mode: "y": expected node or operator`,
		`{"subnets" -> {"alternatives": [{"name": "as given"}], "subnets"`:                                                                   `alternatives[0].name: "as given": expected a unique name`,
		`{"subnets" -> {"alternatives": [{"name": "x", "counts": {"m": 1}}], "subnets"`:                                                      `alternatives[0].counts.m: expected the name of a node group`,
		`{"subnets" -> {"alternatives": [{"name": "x", "cidrs": {"a": "10.0.0.0"}}], "subnets"`:                                              `alternatives[0].subnets[0].cidr: "10.0.0.0": expected an IPv4 block`,
		`"10.0.0.0/24"} -> "10.0.0.0/24"}, {"name": "b", "cidr": "10.0.0.128/25"}`:                                                           `subnets[1].cidr: 10.0.0.128/25 overlaps another subnet`,
		`{"subnets" -> [{"subnets"`: `the scenario is neither YAML nor JSON`,
	} {
		before, after, _ := strings.Cut(edit, " -> ")
		if !strings.Contains(good, before) {
			t.Fatalf("%s: not in the document", before)
		}
		s, err := Parse([]byte(strings.Replace(good, before, after, 1)))
		if err == nil {
			err = s.Check()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error = %v, want %s", edit, err, want)
		}
	}
	for name, doc := range map[string]string{"aliases": "a: &a [1]\nb: *a", "duplicate": "name: a\nname: b", "list": "[]", "text": `"x"`, "large": strings.Repeat(" ", MaxSize+1)} {
		if s, err := Parse([]byte(doc)); err == nil {
			t.Errorf("%s: Parse() = %+v, want an error", name, s)
		}
	}
}

// The defaults are those of berthd and berth-operator.
func TestDefaults(t *testing.T) {
	node := check.Must(config.NewLoader(pflag.NewFlagSet("", pflag.ContinueOnError)).Load([]string{"BERTH_CLUSTER_NAME=x"}))(t)
	check.Equal(t, node.ListingInterval, listingInterval, "--listing-interval of berthd")
	check.Equal(t, node.CoolingPeriod, (&variant{}).cooling(), "--cooling-period")
	check.Equal(t, node.ShrinkDelay, eni.Timing{}.WithDefaults().ShrinkDelay, "--shrink-delay")
	v := check.Must(check.Must(Parse([]byte(threeNodes)))(t).plans())(t)[0]
	check.Equal(t, v.eni.Policy, node.Policy(), "policy in node mode")
	operator := check.Must(config.NewOperatorLoader(pflag.NewFlagSet("", pflag.ContinueOnError)).Load([]string{"BERTH_CLUSTER_NAME=x"}))(t)
	check.Equal(t, operator.ListingInterval, listingIntervalOfOperator, "--listing-interval of berth-operator")
}

// A day of a hundred nodes, as the budget of the command has it.
func BenchmarkDay(b *testing.B) {
	for _, mode := range []string{ModeNode, ModeOperator} {
		b.Run(mode, func(b *testing.B) {
			s := check.Must(Parse([]byte(`
subnets: [{name: a, cidr: 10.0.0.0/20}]
nodes: [{name: workers, instanceType: m5.large, count: 100, subnets: [a]}]
settings: {mode: ` + mode + `}
workload:
  deployments: [{name: web, replicas: 1000, rollouts: [{at: 5h}]}]
`)))(b)
			for b.Loop() {
				check.Must(Simulate(b.Context(), s))(b)
			}
		})
	}
}

// The worked example of AWS's best practices: three c5.large, two CoreDNS pods.
const threeNodes = `
duration: 1h
subnets: [{name: a, cidr: 10.0.0.0/24}]
nodes: [{name: workers, instanceType: c5.large, count: 3, subnets: [a]}]
workload:
  deployments: [{name: coredns, replicas: 2}]
`
