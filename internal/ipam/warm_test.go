package ipam

import (
	"testing"

	"github.com/berthnet/berth/test/harness/check"
)

// The formula cases of the operator: (available, used, pre-allocate, min-allocate, max-above-watermark)
// to needed, before max-above-watermark is added. Cilium's documentation is the authority: pre-allocate
// − (available − used).
func TestCiliumFormula(t *testing.T) {
	for _, c := range []struct{ available, used, pre, min, above, needed int }{
		{0, 0, 0, 16, 0, 16},
		{0, 0, 8, 16, 0, 16},
		{0, 0, 16, 8, 0, 16},
		{8, 0, 0, 16, 0, 8},
		{8, 4, 8, 0, 0, 4},
		{8, 4, 8, 0, 8, 4},
		{4, 4, 8, 0, 8, 8},
	} {
		p := Policy{Dialect: Cilium, PreAllocate: c.pre, MinAllocate: c.min, MaxAboveWatermark: c.above}
		d := p.Demand(14, true, Usage{Used: c.used})
		check.Equal(t, d.Want-c.available, c.needed, "%+v: needed", c)
		check.Equal(t, d.Request-c.available, c.needed+c.above, "%+v: requested", c)
	}
}

func TestDemand(t *testing.T) {
	for _, c := range []struct {
		name  string
		p     Policy
		slots int
		u     Usage
		want  int
	}{
		{"cooling is supply for a warm target", Policy{WarmIP: 5}, 14, Usage{Used: 2, Cooling: 9}, 7},
		{"cooling is no supply for pods that wait", Policy{WarmIP: 1}, 14, Usage{Used: 2, Cooling: 9, Waiting: 3}, 14},
		{"max-pods caps", Policy{WarmENI: 1, MaxPods: 20}, 14, Usage{Used: 10}, 20},
		{"max-pods caps waiting behind cooling", Policy{WarmIP: 1, MaxPods: 10}, 14, Usage{Used: 2, Cooling: 8, Waiting: 8}, 10},
		{"max-pods caps prefixes", Policy{WarmPrefix: 1, PrefixDelegation: true, MaxPods: 20}, 3, Usage{Used: 12}, 20},
		{"warm IPs with prefixes", Policy{WarmIP: 5, PrefixDelegation: true}, 3, Usage{Used: 12}, 17},
		{"minimum with prefixes", Policy{MinimumIP: 33, PrefixDelegation: true}, 3, Usage{}, 33},
		{"no warm prefix still means one free address", Policy{PrefixDelegation: true}, 3, Usage{Used: 16}, 17},
		{"max-allocate caps", Policy{Dialect: Cilium, PreAllocate: 8, MaxAllocate: 10}, 14, Usage{Used: 6}, 10},
	} {
		if got := c.p.Demand(c.slots, true, c.u).Want; got != c.want {
			t.Errorf("%s: want %d, got %d", c.name, c.want, got)
		}
	}
}

func TestPrefixDelegationNeedsAnInstanceTypeThatHasIt(t *testing.T) {
	p := Policy{PrefixDelegation: true, WarmPrefix: 1, WarmENI: 1}
	if d := p.Demand(3, false, Usage{}); d.Unit != 1 || !d.WholeENIs {
		t.Errorf("without prefixes: %+v", d)
	}
}

func TestValidateNamesTheFields(t *testing.T) {
	err := Policy{Dialect: "x", WarmENI: -1, MinAllocate: 9, MaxAllocate: 3, FirstInterfaceIndex: -2}.Validate()
	for _, word := range []string{"dialect", "WARM_ENI_TARGET -1", "min-allocate 9", "first-interface-index -2"} {
		check.ErrorSays(t, err, word)
	}
	for _, p := range []Policy{{}, DefaultAWS(), DefaultCilium()} {
		if err := p.Validate(); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
}
