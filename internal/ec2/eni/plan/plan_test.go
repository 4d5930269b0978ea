package plan

import (
	"fmt"
	"testing"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/test/harness/check"
)

// Observations of the Amazon VPC CNI, each driven to its fixed point with pods that start one by one.
// Where its documentation differs, this table is authoritative: WARM_IP_TARGET takes only what the
// target needs of a new ENI, not all it could hold, and an empty primary ENI counts as warm.
func TestObservedTable(t *testing.T) {
	for _, c := range []struct {
		name   string
		limits cloud.Limits
		policy ipam.Policy
		pods   int
		want   string
	}{
		{"t3.small WARM_ENI=1", t3small, ipam.Policy{WarmENI: 1}, 0, "3"},
		{"t3.small WARM_ENI=1", t3small, ipam.Policy{WarmENI: 1}, 5, "3,3,3"},
		{"t3.small WARM_ENI=1", t3small, ipam.Policy{WarmENI: 1}, 9, "3,3,3"},
		{"t3.small WARM_IP=1 MINIMUM_IP=1", t3small, ipam.Policy{WarmIP: 1, MinimumIP: 1}, 0, "1"},
		{"t3.small WARM_IP=1 MINIMUM_IP=1", t3small, ipam.Policy{WarmIP: 1, MinimumIP: 1}, 5, "3,3"},
		{"t3.small WARM_IP=1 MINIMUM_IP=1", t3small, ipam.Policy{WarmIP: 1, MinimumIP: 1}, 9, "3,3,3"},
		{"t3.small WARM_IP=2 MINIMUM_IP=5", t3small, ipam.Policy{WarmIP: 2, MinimumIP: 5}, 0, "3,2"},
		{"t3.small WARM_IP=2 MINIMUM_IP=5", t3small, ipam.Policy{WarmIP: 2, MinimumIP: 5}, 5, "3,3,1"},
		{"t3.small WARM_IP=2 MINIMUM_IP=5", t3small, ipam.Policy{WarmIP: 2, MinimumIP: 5}, 9, "3,3,3"},
		{"t3.small WARM_ENI=3 MAX_ENI=2", t3small, ipam.Policy{WarmENI: 3, MaxENI: 2}, 0, "3,3"},
		{"t3.small WARM_ENI=0", t3small, ipam.Policy{}, 0, "3"},
		{"t3.small WARM_ENI=0", t3small, ipam.Policy{}, 3, "3,3"},
		{"m5.xlarge WARM_IP=5 MINIMUM_IP=10", m5xlarge, ipam.Policy{WarmIP: 5, MinimumIP: 10}, 0, "10"},
		{"m5.xlarge WARM_IP=5 MINIMUM_IP=10", m5xlarge, ipam.Policy{WarmIP: 5, MinimumIP: 10}, 7, "12"},
		{"m5.xlarge WARM_IP=5 MINIMUM_IP=10", m5xlarge, ipam.Policy{WarmIP: 5, MinimumIP: 10}, 15, "14,6"},
		{"m5.xlarge WARM_ENI=2", m5xlarge, ipam.Policy{WarmENI: 2}, 0, "14,14"},
		{"m5.xlarge WARM_ENI=1", m5xlarge, ipam.Policy{WarmENI: 1}, 15, "14,14,14"},
		{"t3.small prefixes WARM_PREFIX=1", t3small, ipam.Policy{PrefixDelegation: true, WarmPrefix: 1}, 0, "16"},
		{"t3.small prefixes WARM_PREFIX=1", t3small, ipam.Policy{PrefixDelegation: true, WarmPrefix: 1}, 5, "32"},
		{"t3.small prefixes WARM_PREFIX=1", t3small, ipam.Policy{PrefixDelegation: true, WarmPrefix: 1}, 16, "32"},
		{"t3.small prefixes WARM_PREFIX=1", t3small, ipam.Policy{PrefixDelegation: true, WarmPrefix: 1}, 17, "48"},
	} {
		t.Run(fmt.Sprintf("%s/%d pods", c.name, c.pods), func(t *testing.T) {
			s := newSim(t, c.limits, c.policy).with(c.pods)
			s.release = true // nothing that the target needs may go either
			s.converge()
			s.wants("addresses per ENI", c.want)
		})
	}
}

// The worked examples of the EKS best practices guide; their addresses are usable ones.
func TestWarmTargetExamples(t *testing.T) {
	five := cloud.Limits{MaxENIs: 10, IPv4PerENI: 6}
	twenty := cloud.Limits{MaxENIs: 10, IPv4PerENI: 21}
	ten := cloud.Limits{MaxENIs: 10, IPv4PerENI: 11}
	prefixes := ipam.DefaultAWS()
	prefixes.PrefixDelegation = true
	for _, c := range []struct {
		name   string
		limits cloud.Limits
		policy ipam.Policy
		pods   int
		want   string
	}{
		{"WARM_ENI_TARGET 1, 5 used: the second ENI is warm", five, ipam.Policy{WarmENI: 1}, 5, "5,5"},
		{"WARM_ENI_TARGET 1, the 6th pod brings the third ENI", five, ipam.Policy{WarmENI: 1}, 6, "5,5,5"},
		{"WARM_IP_TARGET 5, 15 used: one ENI is enough", twenty, ipam.Policy{WarmIP: 5}, 15, "20"},
		// The document takes all 20 of the second ENI here; the observed table
		// takes what the target needs, and holds.
		{"WARM_IP_TARGET 5, the 16th brings a second ENI", twenty, ipam.Policy{WarmIP: 5}, 16, "20,1"},
		{"MINIMUM_IP_TARGET 100: 9 more ENIs at once", ten, ipam.Policy{MinimumIP: 100, WarmENI: 1, WarmIP: 1}, 0, "10,10,10,10,10,10,10,10,10,10"},
		{"c5.large with a CoreDNS pod", c5large, ipam.DefaultAWS(), 1, "9,9"},
		{"c5.large without pods", c5large, ipam.DefaultAWS(), 0, "9"},
		// The same with prefixes, of which each takes the place of an address.
		{"WARM_IP_TARGET 5, 15 used, by prefixes", prefixed(twenty), ipam.Policy{WarmIP: 5, PrefixDelegation: true}, 15, "32"},
		{"WARM_IP_TARGET 5, 27 used, by prefixes", prefixed(twenty), ipam.Policy{WarmIP: 5, PrefixDelegation: true}, 27, "32"},
		{"WARM_IP_TARGET 5, the 28th brings a third prefix", prefixed(twenty), ipam.Policy{WarmIP: 5, PrefixDelegation: true}, 28, "48"},
		{"MINIMUM_IP_TARGET 100: 7 prefixes on one ENI", prefixed(ten), ipam.Policy{MinimumIP: 100, WarmIP: 1, PrefixDelegation: true}, 0, "112"},
		{"WARM_PREFIX_TARGET 1, 80 used: a sixth prefix on a second ENI", prefixed(five), prefixes, 80, "80,16"},
		{"c5.large with a CoreDNS pod, by prefixes", c5large, prefixes, 1, "32"},
		{"c5.large without pods, by prefixes", c5large, prefixes, 0, "16"},
	} {
		t.Run(c.name, func(t *testing.T) {
			newSim(t, c.limits, c.policy).with(c.pods).wants("addresses per ENI", c.want)
			// A pod with IPv6 beside takes no more of IPv4, and IPv6 alone takes one /80.
			for set, want := range map[ipfamily.Set]string{ipfamily.Dual: c.want, ipfamily.OnlyIPv6: fmt.Sprint(ipam.IPv6PrefixAddresses)} {
				w := newPairs(c.limits, c.policy)
				w.limits.IPv6PerENI, w.limits.Prefixes, w.policy.Families = c.limits.IPv4PerENI, true, set
				check.Equal(t, w.with(t, c.pods), want, "%s: pods per ENI", set)
			}
		})
	}
}

// prefixed returns limits of an instance type with prefixes.
func prefixed(l cloud.Limits) cloud.Limits { l.Prefixes = true; return l }

func mustPlan(t *testing.T, l cloud.Limits, p ipam.Policy, s State, want ...Action) {
	t.Helper()
	check.Same(t, Make(l, p, s).Actions, want)
}

var (
	forNew = []Subnet{{ID: "s1", Free: 1000, ForNew: true}}
	eni0   = ENI{ID: "eni-0", Subnet: "s1", Phase: Attached, Primary: true, Ours: true}
)

func with(e ENI, change func(*ENI)) ENI {
	change(&e)
	return e
}

func TestForeignENIsTakeIndexesAndRoomOnly(t *testing.T) {
	foreign := ENI{ID: "efa", Subnet: "s1", Index: 1, Phase: Attached, Amount: addresses(9)}
	s := State{Subnets: forNew, Waiting: 4, ENIs: []ENI{eni0, foreign}}
	mustPlan(t, t3small, ipam.Policy{WarmIP: 1}, s,
		Action{Kind: Assign, ENI: "eni-0", Amount: addresses(3)},
		Action{Kind: Create, Subnet: "s1", Index: 2, Amount: addresses(2)})
	s.Waiting = 9 // a third ENI would be the fourth of three
	mustPlan(t, t3small, ipam.Policy{WarmIP: 1}, s,
		Action{Kind: Assign, ENI: "eni-0", Amount: addresses(3)},
		Action{Kind: Create, Subnet: "s1", Index: 2, Amount: addresses(3)})
}

func TestFirstInterfaceIndex(t *testing.T) {
	s := State{Subnets: forNew, ENIs: []ENI{with(eni0, func(e *ENI) { e.Addresses = 2 })}}
	p := ipam.DefaultCilium()
	mustPlan(t, m5xlarge, p, s, Action{Kind: Create, Subnet: "s1", Index: 1, Amount: addresses(8)})
	p.FirstInterfaceIndex = 2
	mustPlan(t, m5xlarge, p, s, Action{Kind: Create, Subnet: "s1", Index: 2, Amount: addresses(8)})
}

func TestSubnetChoice(t *testing.T) {
	full := with(eni0, func(e *ENI) { e.Addresses, e.Used = 14, 14 })
	s := State{ENIs: []ENI{full}, Waiting: 20, Subnets: []Subnet{
		{ID: "s1", Free: 5000}, {ID: "s2", Free: 300, ForNew: true}, {ID: "s3", Free: 301, ForNew: true}}}
	mustPlan(t, m5xlarge, ipam.Policy{WarmIP: 1}, s,
		Action{Kind: Create, Subnet: "s3", Index: 1, Amount: addresses(14)},
		Action{Kind: Create, Subnet: "s2", Index: 2, Amount: addresses(7)})
	s.Subnets[2].OtherRoutes = true // s3: other routes, though more free addresses
	mustPlan(t, m5xlarge, ipam.Policy{WarmIP: 1}, s,
		Action{Kind: Create, Subnet: "s2", Index: 1, Amount: addresses(14)},
		Action{Kind: Create, Subnet: "s2", Index: 2, Amount: addresses(7)})
	s.Subnets[1].Free = 15 // taken up by the first
	mustPlan(t, m5xlarge, ipam.Policy{WarmIP: 1}, s,
		Action{Kind: Create, Subnet: "s2", Index: 1, Amount: addresses(14)},
		Action{Kind: Create, Subnet: "s3", Index: 2, Amount: addresses(7)})
	s.Subnets[1].Free = 14 // not for all that an ENI is to have, which would take up an index
	mustPlan(t, m5xlarge, ipam.Policy{WarmIP: 1}, s,
		Action{Kind: Create, Subnet: "s3", Index: 1, Amount: addresses(14)},
		Action{Kind: Create, Subnet: "s2", Index: 2, Amount: addresses(7)})
	warm := s
	warm.Waiting = 0 // nobody waits: the ENI goes where pods find their way
	mustPlan(t, m5xlarge, ipam.Policy{WarmIP: 14}, warm,
		Action{Kind: Create, Subnet: "s2", Index: 1, Amount: addresses(13)},
		Action{Kind: Create, Subnet: "s3", Index: 2, Amount: addresses(1)})
	s.Subnets[2].Free = 14 // nor has the other
	mustPlan(t, m5xlarge, ipam.Policy{WarmIP: 1}, s,
		Action{Kind: Create, Subnet: "s2", Index: 1, Amount: addresses(13)},
		Action{Kind: Create, Subnet: "s3", Index: 2, Amount: addresses(8)})
	s.Subnets[2].Free = 5000
	prefixes := ipam.Policy{PrefixDelegation: true, WarmIP: 1} // 21 addresses are two prefixes
	for _, c := range []struct {
		home Subnet
		want []Action
	}{
		{Subnet{ID: "s2", Free: 33, ForNew: true}, []Action{{Kind: Create, Subnet: "s2", Index: 1, Amount: blocks(2)}}},
		{Subnet{ID: "s2", Free: 32, ForNew: true}, []Action{{Kind: Create, Subnet: "s3", Index: 1, Amount: blocks(2)}}},
		{Subnet{ID: "s2", Free: 32, ForNew: true, NoPrefix: true}, []Action{{Kind: Create, Subnet: "s2", Index: 1, Amount: addresses(14)}, {Kind: Create, Subnet: "s2", Index: 2, Amount: addresses(7)}}},
	} {
		s.Subnets[1] = c.home
		mustPlan(t, m5xlarge, prefixes, s, c.want...)
	}
	s.Subnets = []Subnet{{ID: "s2", Free: 1, ForNew: true}}
	mustPlan(t, m5xlarge, ipam.Policy{WarmIP: 1}, s)
}

func TestDetachedENIsAreAttachedFirst(t *testing.T) {
	begun := ENI{ID: "eni-b", Subnet: "s1", Phase: Detached, Ours: true, Amount: addresses(3)}
	stray := ENI{ID: "eni-c", Subnet: "s1", Phase: Detached, Ours: true}
	s := State{Subnets: forNew, ENIs: []ENI{eni0, begun, stray}, Waiting: 3}
	mustPlan(t, t3small, ipam.Policy{MinimumIP: 1}, s,
		Action{Kind: Attach, ENI: "eni-b", Index: 1}, Action{Kind: Delete, ENI: "eni-c"})
	s.Waiting = 0
	s.ENIs[0].Addresses = 1
	mustPlan(t, t3small, ipam.Policy{MinimumIP: 1}, s,
		Action{Kind: Delete, ENI: "eni-b"}, Action{Kind: Delete, ENI: "eni-c"})
	s.Waiting, s.NoMoreENIs = 9, true
	mustPlan(t, t3small, ipam.Policy{MinimumIP: 1}, s,
		Action{Kind: Assign, ENI: "eni-0", Amount: addresses(2)},
		Action{Kind: Delete, ENI: "eni-b"}, Action{Kind: Delete, ENI: "eni-c"})
}

func TestShrink(t *testing.T) {
	second := ENI{ID: "eni-1", Subnet: "s1", Index: 1, Phase: Attached, Ours: true}
	occupied := func(e ENI, addrs, used, cool int) ENI {
		e.Addresses, e.Used, e.Cooling, e.Free.Addresses = addrs, used, cool, addrs-used-cool
		return e
	}
	for _, c := range []struct {
		name    string
		policy  ipam.Policy
		enis    []ENI
		release int
		want    []Action
	}{
		{"nothing before the excess has persisted", ipam.Policy{WarmIP: 1},
			[]ENI{occupied(eni0, 3, 0, 0)}, 0, nil},
		{"whole ENIs first, then the primary's free addresses", ipam.Policy{WarmIP: 1},
			[]ENI{occupied(eni0, 3, 0, 0), occupied(second, 3, 0, 0)}, 99,
			[]Action{{Kind: Detach, ENI: "eni-1"}, {Kind: Unassign, ENI: "eni-0", Amount: addresses(2)}}},
		{"an ENI with a cooling address stays, and that address too", ipam.Policy{WarmIP: 1},
			[]ENI{occupied(eni0, 3, 3, 0), occupied(second, 3, 0, 1)}, 99,
			[]Action{{Kind: Unassign, ENI: "eni-1", Amount: addresses(2)}}},
		{"no more than has persisted", ipam.Policy{WarmIP: 1},
			[]ENI{occupied(eni0, 3, 1, 0), occupied(second, 3, 1, 0)}, 1,
			[]Action{{Kind: Unassign, ENI: "eni-1", Amount: addresses(1)}}},
		{"whole ENIs only", ipam.Policy{WarmENI: 1},
			[]ENI{occupied(eni0, 3, 1, 0), occupied(second, 3, 1, 0), {ID: "eni-2", Index: 2, Phase: Attached, Ours: true, Amount: addresses(3), Free: addresses(3)}}, 99,
			[]Action{{Kind: Detach, ENI: "eni-2"}}},
		{"an ENI without addresses serves nobody", ipam.Policy{WarmIP: 1},
			[]ENI{occupied(eni0, 3, 2, 0), occupied(second, 0, 0, 0)}, 0,
			[]Action{{Kind: Detach, ENI: "eni-1"}}},
		{"an ENI that only cools goes whole, and the primary gives nothing in its place", ipam.Policy{WarmIP: 2},
			[]ENI{occupied(eni0, 3, 0, 0), occupied(second, 3, 0, 3)}, 99,
			[]Action{{Kind: Unassign, ENI: "eni-0", Amount: addresses(1)}}},
		{"what cools on an ENI in use is its share of the excess", ipam.Policy{WarmIP: 1},
			[]ENI{occupied(eni0, 3, 1, 0), occupied(second, 3, 1, 2)}, 99,
			[]Action{{Kind: Unassign, ENI: "eni-0", Amount: addresses(1)}}},
		{"above the watermark is kept", ipam.Policy{Dialect: ipam.Cilium, PreAllocate: 1, MaxAboveWatermark: 2},
			[]ENI{occupied(eni0, 3, 0, 0)}, 99, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			mustPlan(t, t3small, c.policy, State{Subnets: forNew, ENIs: c.enis, Release: c.release}, c.want...)
		})
	}
}

// After a scale-down the surplus ENIs are detached, once cooling is over.
func TestScaleDown(t *testing.T) {
	s := newSim(t, m5xlarge, ipam.Policy{WarmENI: 1})
	s.runPods(50)
	s.wants("with 50 pods", "14,14,14,14")
	for k := 5; k < 50; k++ {
		s.alloc.Release(k, s.now)
	}
	s.release = true
	s.converge()
	s.wants("while addresses cool", "14,14,14,14")
	s.alloc.Expire(s.now.Add(ipam.DefaultCooling))
	s.converge()
	s.wants("after cooling, with 5 pods on the first", "14,14")
}

func TestFragmentedSubnetFallsBackAndRecovers(t *testing.T) {
	s := newSim(t, t3small, ipam.Policy{PrefixDelegation: true, WarmPrefix: 1})
	s.subnet.NoPrefix = true
	s.converge()
	s.wants("without prefixes and pods", "3")
	s.runPods(4)
	s.wants("without prefixes, 4 pods", "3,3")
	s.subnet.NoPrefix = false
	s.converge()
	s.release = true
	s.converge()
	singles, prefixes := 0, 0
	for _, e := range s.state().ENIs {
		singles += e.Addresses
		prefixes += e.Prefixes
	}
	if singles != 4 || prefixes != 1 {
		t.Errorf("recovered: %d single addresses, %d prefixes (%s); want the 4 used and 1", singles, prefixes, s.layout())
	}
}

func TestRepairs(t *testing.T) {
	e := ENI{ID: "eni-1", Subnet: "s1", Index: 1, Phase: Attached, Ours: true, Amount: addresses(1), Used: 1, WrongDeleteOnTermination: true, WrongTags: true}
	p := with(eni0, func(e *ENI) { e.Addresses, e.WrongDeleteOnTermination = 1, true })
	foreign := ENI{ID: "eni-f", Index: 2, Phase: Attached, WrongDeleteOnTermination: true}
	mustPlan(t, t3small, ipam.Policy{WarmIP: 1}, State{ENIs: []ENI{p, e, foreign}},
		Action{Kind: Retag, ENI: "eni-1"}, Action{Kind: SetDeleteOnTermination, ENI: "eni-1"})
}

func BenchmarkPlan(b *testing.B) {
	s := State{Subnets: forNew, Waiting: 100, ENIs: []ENI{eni0}}
	for i := 1; i < 10; i++ {
		s.ENIs = append(s.ENIs, ENI{ID: fmt.Sprint("eni-", i), Subnet: "s1", Index: i, Phase: Attached, Ours: true, Amount: addresses(49), Used: 49})
	}
	l := cloud.Limits{MaxENIs: 15, IPv4PerENI: 50}
	b.ReportAllocs()
	for b.Loop() {
		Make(l, ipam.DefaultAWS(), s)
	}
}

// A detached ENI whose addresses pods have is attached again, whatever is free elsewhere, and never
// deleted. An ENI without a link is neither supply nor released.
func TestENIsUnderPods(t *testing.T) {
	full := func(index int) ENI {
		return ENI{ID: fmt.Sprint("eni-", index), Subnet: "a", Index: index, Phase: Attached, Ours: true, Primary: index == 0, Amount: cloud.Amount{Addresses: 3}}
	}
	detached := ENI{ID: "eni-x", Subnet: "a", Phase: Detached, Ours: true, Amount: cloud.Amount{Addresses: 3}}
	used, noLink := detached, full(1)
	used.Used, noLink.NoLink = 1, true
	noLink.Free = noLink.Amount
	refused := used
	refused.Refused = true
	for name, tt := range map[string]struct {
		enis []ENI
		want string
	}{
		"used":             {[]ENI{full(0), used}, "[attach eni-x at device index 1]"},
		"used, no room":    {[]ENI{full(0), full(1), full(2), used}, "[detach eni-2 detach eni-1]"},
		"used, refused":    {[]ENI{full(0), refused}, "[]"},
		"not used":         {[]ENI{full(0), detached}, "[delete eni-x]"},
		"without a link":   {[]ENI{full(0), noLink}, "[]"},
		"no link, nothing": {[]ENI{noLink}, "[create an ENI with 1 addresses in a for device index 2]"},
	} {
		p := Make(t3small, ipam.Policy{WarmIP: 1, MinimumIP: 1}, State{ENIs: tt.enis, Subnets: []Subnet{{ID: "a", Free: 100, ForNew: true}}, Release: 6})
		check.Equal(t, fmt.Sprint(p.Actions), tt.want, "%s", name)
	}
}

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
