package plan

import (
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/ipam"
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
