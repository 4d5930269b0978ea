package eni

import (
	"testing"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/ipam"
)

// TestFormula holds the plan against document 003 ("Determination of ENI IP
// deficits", "IP Allocation"): a node needs preAllocate − (available − used),
// or what is missing to minAllocate if that is more, and asks at once for
// min(free in the subnet, room on the ENI, needed + maxAboveWatermark).
func TestFormula(t *testing.T) {
	const plenty = 1000
	for _, c := range []struct {
		available, used     int
		pre, minimum, above int
		free, room          int // in the subnet, on the ENI
		needed, asked       int
	}{
		{0, 0, 0, 16, 0, plenty, 29, 16, 16},
		{0, 0, 8, 16, 0, plenty, 29, 16, 16},
		{0, 0, 16, 8, 0, plenty, 29, 16, 16},
		{8, 0, 0, 16, 0, plenty, 29, 8, 8},
		{8, 4, 8, 0, 0, plenty, 29, 4, 4},
		// Cilium counts maxAboveWatermark into what is needed when it compares;
		// document 003 adds it to the request only.
		{8, 4, 8, 0, 8, plenty, 29, 4, 12},
		{4, 4, 8, 0, 8, plenty, 29, 8, 16},
		// Nothing needed, nothing asked for, whatever may be above.
		{12, 4, 8, 0, 8, plenty, 29, 0, 0},
		// The subnet and the ENI limit one request.
		{4, 4, 8, 0, 8, 5, 29, 8, 5},
		{4, 4, 8, 0, 8, plenty, 6, 8, 2},
	} {
		p := ipam.Policy{Dialect: ipam.Cilium, PreAllocate: c.pre, MinAllocate: c.minimum, MaxAboveWatermark: c.above}
		limits := m5xlarge
		limits.IPv4PerENI = c.room + 1
		s := State{
			ENIs:    []ENIState{{ID: "eni-0", Subnet: "s1", Phase: Attached, Primary: true, Ours: true, Addresses: c.available, Used: c.used}},
			Subnets: []SubnetState{{ID: "s1", Free: c.free}},
		}
		d := decide(limits, p, s)
		asked := 0
		for _, a := range d.Actions {
			if a.Kind != Assign {
				t.Errorf("%+v: %v, want existing ENIs first", c, a)
			}
			asked += a.Addresses
		}
		if d.Needed != c.needed || asked != c.asked {
			t.Errorf("%+v: %d needed, %d asked for", c, d.Needed, asked)
		}
	}
}

// A new ENI's index is the first that is free from the first that serves pods.
func TestIndexOfNewENI(t *testing.T) {
	p := ipam.Policy{Dialect: ipam.Cilium, PreAllocate: 8, FirstInterfaceIndex: 2}
	s := State{ENIs: []ENIState{
		{ID: "eni-0", Subnet: "s1", Phase: Attached, Primary: true, Ours: true},
		{ID: "eni-9", Subnet: "s1", Index: 2, Phase: Attached}, // foreign
	}, Subnets: []SubnetState{{ID: "s1", Free: 100, ForNew: true}}}
	if got := Plan(m5xlarge, p, s); len(got) != 1 || got[0].Kind != Create || got[0].Index != 3 {
		t.Errorf("planned %v, want an ENI at index 3", got)
	}
}

func TestAtCapacity(t *testing.T) {
	full := ENIState{ID: "eni-0", Subnet: "s1", Phase: Attached, Primary: true, Ours: true, Addresses: 3, Used: 3}
	roomy := []SubnetState{{ID: "s1", Free: 100, ForNew: true}}
	for _, c := range []struct {
		name   string
		policy ipam.Policy
		s      State
		want   bool
	}{
		{"room for ENIs", ipam.Policy{}, State{ENIs: []ENIState{full}, Subnets: roomy}, false},
		{"MAX_ENI", ipam.Policy{MaxENI: 1}, State{ENIs: []ENIState{full}, Subnets: roomy}, true},
		{"max-pods", ipam.Policy{MaxPods: 3}, State{ENIs: []ENIState{full}, Subnets: roomy}, true},
		{"subnet full", ipam.Policy{}, State{ENIs: []ENIState{full}, Subnets: []SubnetState{{ID: "s1", ForNew: true}}}, true},
		{"content", ipam.Policy{Dialect: ipam.Cilium}, State{ENIs: []ENIState{full}, Subnets: roomy}, false},
	} {
		if got := decide(t3small, c.policy, c.s).AtCapacity; got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// Many nodes that plan at the same moment share what a subnet has.
func TestReservationIsPartOfTheChoice(t *testing.T) {
	b := NewSubnetBook(nil)
	b.entry("s1").Free = 10
	b.entry("s2").Free = 8
	pick := func(list []SubnetState) (Action, string) {
		d := decide(m5xlarge, ipam.Policy{Dialect: ipam.Cilium, PreAllocate: 5, FirstInterfaceIndex: 1}, State{
			ENIs: []ENIState{{ID: "eni-0", Phase: Attached, Primary: true, Ours: true}}, Subnets: list,
		})
		if len(d.Actions) == 0 {
			return Action{}, ""
		}
		return d.Actions[0], d.Actions[0].Subnet
	}
	all := func(cloud.Subnet) bool { return true }
	var got []Action
	var holds []*reservation
	for h := b.choose(unix(0), nil, all, pick); h != nil; h = b.choose(unix(0), nil, all, pick) {
		holds = append(holds, h)
		got = append(got, h.action)
	}
	want := []struct {
		subnet    string
		addresses int
	}{{"s1", 5}, {"s2", 5}, {"s1", 3}, {"s2", 1}}
	if len(got) != len(want) {
		t.Fatalf("chose %v", got)
	}
	for i, w := range want {
		if got[i].Subnet != w.subnet || got[i].Addresses != w.addresses {
			t.Errorf("choice %d: %v, want %+v", i, got[i], w)
		}
	}
	holds[0].end(0)
	holds[0].end(6) // only the first end counts
	holds[1].end(6)
	if s1, s2 := b.entry("s1"), b.entry("s2"); s1.Free-s1.reserved != 6 || s2.Free-s2.reserved != 0 {
		t.Errorf("left: %d, %d", s1.Free-s1.reserved, s2.Free-s2.reserved)
	}
}
