package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/test/harness/check"
)

func TestShortageNamesTheReason(t *testing.T) {
	full := func(e ENI, used, cool int) ENI { e.Addresses, e.Used, e.Cooling = 3, used, cool; return e }
	next := ENI{ID: "eni-1", Subnet: "s1", Index: 1, Phase: Attached, Ours: true}
	third := ENI{ID: "eni-2", Subnet: "s1", Index: 2, Phase: Attached, Ours: true}
	allUsed := []ENI{full(eni0, 3, 0), full(next, 3, 0), full(third, 3, 0)}
	for _, c := range []struct {
		name   string
		policy ipam.Policy
		s      State
		want   string
	}{
		{"nobody waits", ipam.Policy{}, State{ENIs: allUsed}, ""},
		{"nobody waits, instance full", ipam.Policy{Dialect: ipam.Cilium, PreAllocate: 2}, State{ENIs: allUsed, Subnets: forNew}, ""},
		{"nobody waits, subnet full", ipam.Policy{Dialect: ipam.Cilium, PreAllocate: 2}, State{ENIs: allUsed[:1], Subnets: []Subnet{{ID: "s1", ForNew: true}}}, ReasonSubnetFull},
		{"growth is possible", ipam.Policy{}, State{ENIs: allUsed[:1], Waiting: 1, Subnets: forNew}, ""},
		{"an address is free", ipam.Policy{}, State{ENIs: []ENI{full(eni0, 2, 0)}, Waiting: 1, Subnets: forNew}, ""},
		{"instance full", ipam.Policy{}, State{ENIs: allUsed, Waiting: 1, Subnets: forNew}, ReasonENILimit},
		{"MAX_ENI", ipam.Policy{MaxENI: 1}, State{ENIs: allUsed[:1], Waiting: 1, Subnets: forNew}, ReasonENILimit},
		{"instance full, some cool", ipam.Policy{}, State{ENIs: []ENI{full(eni0, 3, 0), full(next, 3, 0), full(third, 2, 1)}, Waiting: 1, Subnets: forNew}, ReasonCooling},
		{"subnet full", ipam.Policy{}, State{ENIs: allUsed[:1], Waiting: 1, Subnets: []Subnet{{ID: "s1", ForNew: true}}}, ReasonSubnetFull},
		{"no subnet for new ENIs", ipam.Policy{}, State{ENIs: allUsed[:1], Waiting: 1, Subnets: []Subnet{{ID: "s1", Free: 99}}}, ReasonSubnetFull},
		{"no such index", ipam.Policy{Dialect: ipam.Cilium, PreAllocate: 2, FirstInterfaceIndex: 3}, State{ENIs: allUsed[:1], Subnets: forNew}, ReasonFirstIndex},
		{"no such index, pods wait", ipam.Policy{FirstInterfaceIndex: 15}, State{ENIs: allUsed[:1], Waiting: 1, Subnets: forNew}, ReasonFirstIndex},
		{"no further index", ipam.Policy{FirstInterfaceIndex: 2}, State{ENIs: []ENI{eni0, full(third, 3, 0)}, Waiting: 1, Subnets: forNew}, ReasonENILimit},
		{"max-pods", ipam.Policy{MaxPods: 3}, State{ENIs: allUsed[:1], Waiting: 1, Subnets: forNew}, ReasonMaxPods},
		{"max-pods, some cool", ipam.Policy{MaxPods: 3}, State{ENIs: []ENI{full(eni0, 2, 1)}, Waiting: 1, Subnets: forNew}, ReasonCooling},
	} {
		got, text := Shortage(t3small, c.policy, c.s)
		if got != c.want || (got == "") != (text == "") {
			t.Errorf("%s: %q (%s), want %q", c.name, got, text, c.want)
		}
		if strings.Contains(text, "none of the configured subnets") != (c.name == "no subnet for new ENIs") {
			t.Errorf("%s: said %q", c.name, text)
		}
	}
}

func TestCandidates(t *testing.T) {
	described := cloud.Subnet{ID: "s1", VPCID: "vpc-1", Zone: "a", Tags: map[string]string{"for": "pods", "team": "x"}}
	here := Candidates{VPC: "vpc-1", Zone: "a", InstanceZone: "a", Primary: "s0"}
	with := func(change func(*Candidates)) Candidates { c := here; change(&c); return c }
	for _, c := range []struct {
		name string
		of   Candidates
		s    cloud.Subnet
		want bool
	}{
		{"the primary's", with(func(c *Candidates) { c.Primary = "s1" }), described, true},
		{"another than the primary's", here, described, false},
		{"the primary's, not described yet", here, cloud.Subnet{ID: "s0"}, true},
		{"by ID", with(func(c *Candidates) { c.IDs = []string{"s9", "s1"} }), described, true},
		{"not by ID, whatever its tags", with(func(c *Candidates) { c.IDs, c.Tags = []string{"s9"}, described.Tags }), described, false},
		{"by tags", with(func(c *Candidates) { c.Tags = map[string]string{"for": "pods"} }), described, true},
		{"with other tags", with(func(c *Candidates) { c.Tags = map[string]string{"for": "pods", "team": "y"} }), described, false},
		{"any", with(func(c *Candidates) { c.Any = true }), described, true},
		{"any, not described yet", with(func(c *Candidates) { c.Any = true }), cloud.Subnet{ID: "s1"}, false},
		{"in another VPC", with(func(c *Candidates) { c.IDs, c.VPC = []string{"s1"}, "vpc-2" }), described, false},
		{"in another zone", with(func(c *Candidates) { c.IDs, c.Zone = []string{"s1"}, "b" }), described, false},
		{"in a configured zone that is not the instance's", with(func(c *Candidates) { c.IDs, c.InstanceZone = []string{"s1"}, "b" }), described, false},
	} {
		check.Equal(t, c.of.Has(c.s), c.want, "%s", c.name)
	}
}

// Each part of an excess is released when it has lasted for the delay, whenever the other parts were
// added: pods that end one after the other do not delay each other's addresses.
func TestExcessLastsByParts(t *testing.T) {
	const delay = time.Minute
	type moment struct{ second, n, want int }
	for name, moments := range map[string][]moment{
		"at once":         {{0, 20, 0}, {59, 20, 0}, {60, 20, 20}, {61, 0, 0}},
		"in steps":        {{0, 1, 0}, {1, 9, 0}, {2, 20, 0}, {60, 20, 1}, {61, 20, 9}, {62, 20, 20}},
		"a dip":           {{0, 20, 0}, {30, 5, 0}, {31, 20, 0}, {60, 20, 5}, {90, 20, 5}, {91, 20, 20}},
		"a dip to a step": {{0, 5, 0}, {10, 20, 0}, {20, 5, 0}, {60, 5, 5}},
		"between steps":   {{0, 5, 0}, {10, 20, 0}, {20, 9, 0}, {60, 9, 5}, {70, 9, 9}},
		"none meanwhile":  {{0, 20, 0}, {30, 0, 0}, {31, 20, 0}, {90, 20, 0}, {91, 20, 20}},
		"the least within the time": {
			{0, 5, 0}, {30, 2, 0}, {59, 9, 0}, {60, 9, 2}, {61, 7, 0}, {118, 7, 0}, {119, 7, 7}, {120, 7, 7}, {121, 0, 0}, {122, 4, 0}, {182, 4, 4}, {183, 4, 4},
		},
		"partly given": {{0, 20, 0}, {60, 20, 20}, {61, 11, 11}, {62, 12, 11}},
	} {
		t.Run(name, func(t *testing.T) {
			var e Lasting
			begin := time.Unix(1e9, 0)
			for _, m := range moments {
				now := begin.Add(time.Duration(m.second) * time.Second)
				check.Equal(t, e.Allow(m.n, m.n, now, delay), m.want, "after %d s, with %d in excess: have lasted", m.second, m.n)
				if due := e.Due(now, delay); !due.IsZero() && !due.After(now) {
					t.Errorf("after %d s: due at %v", m.second, due)
				}
			}
		})
	}
}

// Pods that start and end again and again do not reduce an excess that is there all the time, also
// where it cannot be released at once, such as a prefix with one used address.
func TestExcessLastsBesideChurn(t *testing.T) {
	for _, every := range []int{1, 2, 4, 8} {
		var e Lasting
		for s := range 1200 {
			n := 18 - (s/every)%2
			if got := e.Allow(n, 48, unix(s), time.Minute); s > 70 && got < 17 {
				t.Fatalf("a change every %d s, after %d s: %d of at least 17 have lasted", every, s, got)
			}
		}
	}
}
