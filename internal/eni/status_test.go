package eni

import (
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ipam"
)

func TestShortageNamesTheReason(t *testing.T) {
	full := func(e ENIState, used, cool int) ENIState { e.Addresses, e.Used, e.Cooling = 3, used, cool; return e }
	next := ENIState{ID: "eni-1", Subnet: "s1", Index: 1, Phase: Attached, Ours: true}
	third := ENIState{ID: "eni-2", Subnet: "s1", Index: 2, Phase: Attached, Ours: true}
	allUsed := []ENIState{full(eni0, 3, 0), full(next, 3, 0), full(third, 3, 0)}
	for _, c := range []struct {
		name   string
		policy ipam.Policy
		s      State
		want   string
	}{
		{"nobody waits", ipam.Policy{}, State{ENIs: allUsed}, ""},
		{"nobody waits, instance full", ipam.Policy{Dialect: ipam.Cilium, PreAllocate: 2}, State{ENIs: allUsed, Subnets: forNew}, ""},
		{"nobody waits, subnet full", ipam.Policy{Dialect: ipam.Cilium, PreAllocate: 2}, State{ENIs: allUsed[:1], Subnets: []SubnetState{{ID: "s1", ForNew: true}}}, ReasonSubnetFull},
		{"growth is possible", ipam.Policy{}, State{ENIs: allUsed[:1], Waiting: 1, Subnets: forNew}, ""},
		{"an address is free", ipam.Policy{}, State{ENIs: []ENIState{full(eni0, 2, 0)}, Waiting: 1, Subnets: forNew}, ""},
		{"instance full", ipam.Policy{}, State{ENIs: allUsed, Waiting: 1, Subnets: forNew}, ReasonENILimit},
		{"MAX_ENI", ipam.Policy{MaxENI: 1}, State{ENIs: allUsed[:1], Waiting: 1, Subnets: forNew}, ReasonENILimit},
		{"instance full, some cool", ipam.Policy{}, State{ENIs: []ENIState{full(eni0, 3, 0), full(next, 3, 0), full(third, 2, 1)}, Waiting: 1, Subnets: forNew}, ReasonCooling},
		{"subnet full", ipam.Policy{}, State{ENIs: allUsed[:1], Waiting: 1, Subnets: []SubnetState{{ID: "s1", ForNew: true}}}, ReasonSubnetFull},
		{"no subnet for new ENIs", ipam.Policy{}, State{ENIs: allUsed[:1], Waiting: 1, Subnets: []SubnetState{{ID: "s1", Free: 99}}}, ReasonSubnetFull},
		{"no such index", ipam.Policy{Dialect: ipam.Cilium, PreAllocate: 2, FirstInterfaceIndex: 3}, State{ENIs: allUsed[:1], Subnets: forNew}, ReasonFirstIndex},
		{"no such index, pods wait", ipam.Policy{FirstInterfaceIndex: 15}, State{ENIs: allUsed[:1], Waiting: 1, Subnets: forNew}, ReasonFirstIndex},
		{"no further index", ipam.Policy{FirstInterfaceIndex: 2}, State{ENIs: []ENIState{eni0, full(third, 3, 0)}, Waiting: 1, Subnets: forNew}, ReasonENILimit},
		{"max-pods", ipam.Policy{MaxPods: 3}, State{ENIs: allUsed[:1], Waiting: 1, Subnets: forNew}, ReasonMaxPods},
		{"max-pods, some cool", ipam.Policy{MaxPods: 3}, State{ENIs: []ENIState{full(eni0, 2, 1)}, Waiting: 1, Subnets: forNew}, ReasonCooling},
	} {
		if got, text := Shortage(t3small, c.policy, c.s); got != c.want || (got == "") != (text == "") {
			t.Errorf("%s: %q (%s), want %q", c.name, got, text, c.want)
		}
	}
}

func TestExcessMustPersist(t *testing.T) {
	var e excess
	at := func(seconds, n int) int {
		return e.allow(n, unix(seconds), 60*second)
	}
	for _, step := range []struct{ seconds, excess, want int }{
		{0, 5, 0}, {30, 2, 0}, {59, 9, 0}, // the least within the time is what persisted
		{60, 9, 2}, {61, 7, 0}, {118, 7, 0}, {119, 7, 7}, {120, 7, 7}, {121, 0, 0}, {122, 4, 0}, {182, 4, 4}, {183, 4, 4},
	} {
		if got := at(step.seconds, step.excess); got != step.want {
			t.Errorf("at %d s with %d in excess: %d may go, want %d", step.seconds, step.excess, got, step.want)
		}
	}
}

func TestShortageNamesSubnetsThatDoNotFit(t *testing.T) {
	full := eni0
	full.Addresses, full.Used = 3, 3
	s := State{ENIs: []ENIState{full}, Waiting: 1, Subnets: []SubnetState{{ID: "s1", Free: 99}}}
	if _, text := Shortage(t3small, ipam.Policy{}, s); !strings.Contains(text, "none of the configured subnets") {
		t.Errorf("said %q", text)
	}
}

// A detachment that hangs is not asked after every two seconds for hours.
func TestDetachPoll(t *testing.T) {
	for _, c := range []struct{ since, want time.Duration }{{0, 2 * second}, {8 * second, 2 * second}, {40 * second, 10 * second}, {time.Hour, time.Minute}} {
		k := known{replied: unix(0)}
		if got := k.detachPoll(unix(0).Add(c.since)); got != c.want {
			t.Errorf("after %v: %v, want %v", c.since, got, c.want)
		}
	}
	if got := (&known{}).detachPoll(unix(0)); got != 10*second {
		t.Errorf("begun by someone else: %v", got)
	}
}
