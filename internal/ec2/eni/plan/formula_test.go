package plan

import (
	"testing"

	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/test/harness/check"
)

// TestFormula compares the plan with Cilium's formula ("Determination of ENI IP deficits", "IP
// Allocation"): a node needs preAllocate − (available − used), or what is missing to minAllocate if
// that is more, and asks at once for min(free in the subnet, room on the ENI, needed +
// maxAboveWatermark).
func TestFormula(t *testing.T) {
	const plenty = 1000
	for name, c := range map[string]struct {
		available, used     int
		pre, minimum, above int
		free, room          int // in the subnet, on the ENI
		needed, asked       int
		created             int // with new ENIs, where there may be such
	}{
		"a minimum":                              {0, 0, 0, 16, 0, plenty, 29, 16, 16, 0},
		"the larger of both, a minimum":          {0, 0, 8, 16, 0, plenty, 29, 16, 16, 0},
		"the larger of both, what is to be free": {0, 0, 16, 8, 0, plenty, 29, 16, 16, 0},
		"what is missing to a minimum":           {8, 0, 0, 16, 0, plenty, 29, 8, 8, 0},
		"what is missing to be free":             {8, 4, 8, 0, 0, plenty, 29, 4, 4, 0},
		// Cilium counts maxAboveWatermark into what is needed when it compares;
		// its documentation adds it to the request only.
		"some above":                             {8, 4, 8, 0, 8, plenty, 29, 4, 12, 0},
		"some above, all used":                   {4, 4, 8, 0, 8, plenty, 29, 8, 16, 0},
		"some above, on a smaller ENI":           {4, 2, 8, 0, 4, plenty, 14, 6, 10, 0},
		"nothing needed, whatever may be above":  {12, 4, 8, 0, 8, plenty, 29, 0, 0, 0},
		"at the watermark":                       {8, 0, 8, 0, 4, plenty, 14, 0, 0, 0},
		"free in the subnet":                     {4, 4, 8, 0, 8, 5, 29, 8, 5, 0},
		"free in the subnet, on a smaller ENI":   {4, 2, 8, 0, 4, 5, 14, 6, 5, 0},
		"room on the ENI":                        {4, 4, 8, 0, 8, plenty, 6, 8, 2, 0},
		"room on the ENI, the rest on a new one": {8, 8, 8, 0, 4, plenty, 14, 8, 6, 6},
	} {
		p := ipam.Policy{Dialect: ipam.Cilium, PreAllocate: c.pre, MinAllocate: c.minimum, MaxAboveWatermark: c.above}
		limits := m5xlarge
		limits.IPv4PerENI = c.room + 1
		s := State{
			ENIs:    []ENI{{ID: "eni-0", Subnet: "s1", Phase: Attached, Primary: true, Ours: true, Amount: addresses(c.available), Used: c.used}},
			Subnets: []Subnet{{ID: "s1", Free: c.free, ForNew: c.created > 0}},
		}
		d := Make(limits, p, s)
		asked := map[Kind]int{}
		for _, a := range d.Actions {
			if asked[a.Kind] += a.Addresses; a.Kind != Assign && a.Kind != Create {
				t.Errorf("%s: %v", name, a)
			}
		}
		if d.Needed != c.needed || asked[Assign] != c.asked || asked[Create] != c.created {
			t.Errorf("%s: %d needed, asked for: %v", name, d.Needed, asked)
		}
	}
}

// A new ENI gets the first free index from the first that serves pods.
func TestIndexOfNewENI(t *testing.T) {
	p := ipam.Policy{Dialect: ipam.Cilium, PreAllocate: 8, FirstInterfaceIndex: 2}
	s := State{ENIs: []ENI{
		{ID: "eni-0", Subnet: "s1", Phase: Attached, Primary: true, Ours: true},
		{ID: "eni-9", Subnet: "s1", Index: 2, Phase: Attached}, // foreign
	}, Subnets: []Subnet{{ID: "s1", Free: 100, ForNew: true}}}
	if got := Make(m5xlarge, p, s).Actions; len(got) != 1 || got[0].Kind != Create || got[0].Index != 3 {
		t.Errorf("planned %v, want an ENI at index 3", got)
	}
}

func TestAtCapacity(t *testing.T) {
	full := ENI{ID: "eni-0", Subnet: "s1", Phase: Attached, Primary: true, Ours: true, Amount: addresses(3), Used: 3}
	roomy := []Subnet{{ID: "s1", Free: 100, ForNew: true}}
	for _, c := range []struct {
		name   string
		policy ipam.Policy
		s      State
		want   bool
	}{
		{"room for ENIs", ipam.Policy{}, State{ENIs: []ENI{full}, Subnets: roomy}, false},
		{"MAX_ENI", ipam.Policy{MaxENI: 1}, State{ENIs: []ENI{full}, Subnets: roomy}, true},
		{"max-pods", ipam.Policy{MaxPods: 3}, State{ENIs: []ENI{full}, Subnets: roomy}, true},
		{"subnet full", ipam.Policy{}, State{ENIs: []ENI{full}, Subnets: []Subnet{{ID: "s1", ForNew: true}}}, true},
		{"content", ipam.Policy{Dialect: ipam.Cilium}, State{ENIs: []ENI{full}, Subnets: roomy}, false},
	} {
		check.Equal(t, Make(t3small, c.policy, c.s).AtCapacity, c.want, "%s", c.name)
	}
}
