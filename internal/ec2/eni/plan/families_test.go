package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/test/harness/check"
)

// dual is limits of a Nitro instance type and of one before, which has no prefixes.
var (
	nitro = cloud.Limits{MaxENIs: 3, IPv4PerENI: 4, IPv6PerENI: 4, Prefixes: true}
	xen   = cloud.Limits{MaxENIs: 3, IPv4PerENI: 6, IPv6PerENI: 4}
)

func TestPlansForFamilies(t *testing.T) {
	eth0 := func(a cloud.Amount) ENI {
		return ENI{ID: "eni-0", Subnet: "subnet-1", Phase: Attached, Primary: true, Ours: true, Amount: a, Free: a}
	}
	eth1 := func(a cloud.Amount) ENI {
		return ENI{ID: "eni-1", Subnet: "subnet-1", Index: 1, Phase: Attached, Ours: true, Amount: a, Free: a}
	}
	open, closed := Subnet{ID: "subnet-1", Free: 100, ForNew: true}, Subnet{ID: "subnet-1", Free: 100, ForNew: true, NoIPv6: true}
	native := Subnet{ID: "subnet-1", ForNew: true, IPv6Native: true}
	learned := Subnet{ID: "subnet-1", Free: Unlimited, ForNew: true, IPv6Native: true} // from a file
	dual, six := ipam.Policy{Families: ipfamily.Dual, WarmIP: 2}, ipam.Policy{Families: ipfamily.OnlyIPv6, WarmENI: 1, WarmPrefix: 1}
	index1 := ipam.Policy{Families: ipfamily.Dual, WarmIP: 2, FirstInterfaceIndex: 1}
	for _, tt := range []struct {
		name    string
		limits  cloud.Limits
		policy  ipam.Policy
		subnet  Subnet
		enis    []ENI
		waiting int
		want    string
	}{
		{"dual: both on the primary", nitro, dual, open, []ENI{eth0(cloud.Amount{})}, 0,
			"assign 1 IPv6 prefixes to eni-0; assign 2 addresses to eni-0"},
		{"dual: what lacks", nitro, dual, open, []ENI{eth0(cloud.Amount{Addresses: 2})}, 0, "assign 1 IPv6 prefixes to eni-0"},
		{"dual: with /28 prefixes", nitro, ipam.Policy{Families: ipfamily.Dual, WarmPrefix: 1, PrefixDelegation: true}, open, []ENI{eth0(cloud.Amount{IPv6Prefixes: 1})}, 0,
			"assign 1 prefixes to eni-0"},
		{"dual: a new ENI has both at once", nitro, index1, open, []ENI{eth0(cloud.Amount{})}, 0,
			"create an ENI with 2 addresses and 1 IPv6 prefixes in subnet-1 for device index 1"},
		{"dual: no more IPv4 than there can be IPv6", xen, index1, open, []ENI{eth0(cloud.Amount{}), eth1(cloud.Amount{})}, 9,
			"assign 4 IPv6 addresses to eni-1; assign 4 addresses to eni-1; create an ENI with 4 addresses and 4 IPv6 addresses in subnet-1 for device index 2"},
		{"dual: an instance's own IPv6 addresses are none for pods", xen, dual, open, []ENI{eth0(cloud.Amount{})}, 0,
			"create an ENI with 2 addresses and 2 IPv6 addresses in subnet-1 for device index 1"},
		{"dual: a subnet without IPv6", nitro, dual, closed, []ENI{eth0(cloud.Amount{})}, 0, ""},
		{"dual: enough", nitro, dual, open, []ENI{eth0(cloud.Amount{Addresses: 2, IPv6Prefixes: 1})}, 0, ""},
		{"dual: what no pod can have goes back", xen, index1, open, []ENI{eth0(cloud.Amount{}), eth1(cloud.Amount{Addresses: 4, IPv6: 2})}, 0,
			"unassign 2 addresses from eni-1"},
		{"IPv6: one prefix is enough", nitro, six, open, []ENI{eth0(cloud.Amount{})}, 5, "assign 1 IPv6 prefixes to eni-0"},
		{"IPv6: and none more", nitro, six, open, []ENI{eth0(cloud.Amount{IPv6Prefixes: 1})}, 50, ""},
		{"IPv6: IPv4 of before goes back", nitro, six, open, []ENI{eth0(cloud.Amount{IPv6Prefixes: 1, Addresses: 3})}, 0, "unassign 3 addresses from eni-0"},
		{"IPv6: single addresses", xen, ipam.Policy{Families: ipfamily.OnlyIPv6, WarmIP: 3, FirstInterfaceIndex: 1}, open, []ENI{eth0(cloud.Amount{})}, 0,
			"create an ENI with 3 IPv6 addresses in subnet-1 for device index 1"},
		{"IPv6: prefixes take the slots of single addresses", nitro, ipam.Policy{Families: ipfamily.OnlyIPv6, WarmIP: 9, FirstInterfaceIndex: 1, MaxENI: 2}, open,
			[]ENI{eth0(cloud.Amount{}), eth1(cloud.Amount{IPv6: 4})}, 0, "unassign 1 IPv6 addresses from eni-1"},
		{"IPv6: an IPv6-only subnet has no IPv4 addresses to count", nitro, ipam.Policy{Families: ipfamily.OnlyIPv6, WarmIP: 3, FirstInterfaceIndex: 1}, native, []ENI{eth0(cloud.Amount{})}, 0,
			"create an ENI with 1 IPv6 prefixes in subnet-1 for device index 1"},
		{"IPv6: and its ENIs grow", nitro, six, native, []ENI{eth0(cloud.Amount{})}, 5, "assign 1 IPv6 prefixes to eni-0"},
		{"IPv6: not on an instance before Nitro", xen, ipam.Policy{Families: ipfamily.OnlyIPv6, WarmIP: 3, FirstInterfaceIndex: 1}, native, []ENI{eth0(cloud.Amount{})}, 9, ""},
		{"dual: an IPv6-only subnet", nitro, index1, native, []ENI{eth0(cloud.Amount{}), eth1(cloud.Amount{})}, 9, ""},
		{"dual: an IPv6-only subnet, not described yet", nitro, index1, learned, []ENI{eth0(cloud.Amount{}), eth1(cloud.Amount{})}, 9, ""},
		{"IPv6: an IPv6-only subnet, not described yet", nitro, ipam.Policy{Families: ipfamily.OnlyIPv6, WarmIP: 3, FirstInterfaceIndex: 1}, learned, []ENI{eth0(cloud.Amount{})}, 0,
			"create an ENI with 1 IPv6 prefixes in subnet-1 for device index 1"},
		{"IPv4: an IPv6-only subnet", nitro, ipam.Policy{WarmIP: 2, FirstInterfaceIndex: 1}, native, []ENI{eth0(cloud.Amount{})}, 9, ""},
		{"IPv4: IPv6 of a subnet's doing stays", nitro, ipam.Policy{WarmIP: 2}, open, []ENI{eth0(cloud.Amount{Addresses: 2, IPv6Prefixes: 1, IPv6: 1}), eth1(cloud.Amount{IPv6: 1})}, 0,
			"detach eni-1"},
		{"IPv4: prefixes of before go back", nitro, ipam.Policy{WarmIP: 2}, open, []ENI{eth0(cloud.Amount{}), eth1(cloud.Amount{Addresses: 2, IPv6Prefixes: 1, IPv6: 1})}, 0,
			"unassign 1 IPv6 prefixes from eni-1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, a := range Make(tt.limits, tt.policy, State{ENIs: tt.enis, Subnets: []Subnet{tt.subnet}, Waiting: tt.waiting}).Actions {
				got = append(got, a.String())
			}
			if s := strings.Join(got, "; "); s != tt.want {
				t.Errorf("got  %s\nwant %s", s, tt.want)
			}
		})
	}
}

func TestShortageNamesTheFamily(t *testing.T) {
	full := ENI{ID: "eni-0", Subnet: "subnet-1", Phase: Attached, Primary: true, Ours: true, Amount: cloud.Amount{Addresses: 3, IPv6Prefixes: 1}, Used: 3}
	empty := ENI{ID: "eni-0", Subnet: "subnet-1", Phase: Attached, Primary: true, Ours: true}
	single := cloud.Limits{MaxENIs: 2, IPv4PerENI: 4, IPv6PerENI: 4} // addresses, no prefixes
	dual, one := ipam.Policy{Families: ipfamily.Dual, WarmIP: 1}, ipam.Policy{Families: ipfamily.Dual, WarmIP: 1, MaxENI: 1}
	for _, tt := range []struct {
		name         string
		limits       cloud.Limits
		policy       ipam.Policy
		eni          ENI
		subnet       Subnet
		reason, says string
	}{
		{"no IPv6 on the type", cloud.Limits{MaxENIs: 2, IPv4PerENI: 2}, dual, empty, Subnet{ID: "subnet-1", Free: 9, ForNew: true}, ReasonNoIPv6, "instance type has no IPv6"},
		{"none in the subnet", nitro, dual, empty, Subnet{ID: "subnet-1", Free: 9, ForNew: true, NoIPv6: true}, ReasonNoIPv6, "associate an IPv6 CIDR block"},
		{"no IPv4 in the subnet", nitro, dual, empty, Subnet{ID: "subnet-1", ForNew: true}, ReasonSubnetFull, "a free IPv4 address"},
		{"no IPv4 for another ENI", single, ipam.Policy{Families: ipfamily.OnlyIPv6, WarmIP: 1}, empty, Subnet{ID: "subnet-1", ForNew: true}, ReasonSubnetFull, "a free IPv4 address"},
		{"an IPv6-only subnet", nitro, ipam.Policy{Families: ipfamily.Dual, WarmIP: 1, FirstInterfaceIndex: 1}, empty, Subnet{ID: "subnet-1", ForNew: true, IPv6Native: true}, ReasonNoIPv4, "configure one that has IPv4 addresses"},
		{"its own IPv6-only subnet", nitro, dual, empty, Subnet{ID: "subnet-1", ForNew: true, IPv6Native: true}, ReasonNoIPv4, "configure one that has IPv4 addresses"},
		{"and no Nitro", single, ipam.Policy{Families: ipfamily.OnlyIPv6, WarmIP: 1}, empty, Subnet{ID: "subnet-1", ForNew: true, IPv6Native: true}, ReasonNoIPv4, "built on Nitro"},
		{"no subnet for new ENIs", single, ipam.Policy{Families: ipfamily.OnlyIPv6, WarmIP: 1}, empty, Subnet{ID: "subnet-1", Free: 9}, ReasonSubnetFull, "none of the configured subnets exists"},
		{"no slot for IPv4", nitro, one, full, Subnet{ID: "subnet-1", Free: 9, ForNew: true}, ReasonENILimit, "full of IPv4 addresses"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := State{ENIs: []ENI{tt.eni}, Subnets: []Subnet{tt.subnet}, Waiting: 1}
			if reason, message := Shortage(tt.limits, tt.policy, s); reason != tt.reason || !strings.Contains(message, tt.says) {
				t.Errorf("%s: %s", reason, message)
			}
		})
	}
}

// pairs is a node whose cloud does at once what a plan says; pods are numbers. The used addresses of an
// ENI are spread over its prefixes and single addresses as they come.
type pairs struct {
	limits  cloud.Limits
	policy  ipam.Policy
	subnet  Subnet  // of the primary ENI
	native  *Subnet // of IPv6 alone, if there is one
	enis    []*pairENI
	waiting int
	made    int
	drain   bool // outdated ENIs are
	trunk   Trunk
}

// newPairs returns a node with its primary ENI.
func newPairs(l cloud.Limits, p ipam.Policy) *pairs {
	eth0 := &pairENI{ENI: ENI{ID: "eni-0", Subnet: "subnet-1", Phase: Attached, Primary: true, Ours: true}, pods: map[ipfamily.Set]int{}}
	return &pairs{limits: l, policy: p, subnet: Subnet{ID: "subnet-1", Free: 10_000, ForNew: true}, enis: []*pairENI{eth0}}
}

// with returns the number of pods that each ENI has addresses for, after n pods started one by one.
func (w *pairs) with(t *testing.T, n int) string {
	t.Helper()
	var out []string
	for i := range n + 1 {
		if i > 0 {
			w.waiting++
			w.place()
		}
		if err := w.rest(); err != nil || w.waiting > 0 {
			t.Fatalf("pod %d of %d: %d wait: %v", i, n, w.waiting, err)
		}
	}
	for _, e := range w.enis {
		out = append(out, fmt.Sprint(e.total(w.policy.Families)))
	}
	return strings.Join(out, ",")
}

type pairENI struct {
	ENI
	pods map[ipfamily.Set]int // by the families that they have addresses of
}

func (e *pairENI) used(f ipfamily.Family) (n int) {
	for s, pods := range e.pods {
		if s.Has(f) {
			n += pods
		}
	}
	return n
}

func (w *pairs) subnets() []Subnet {
	if w.native == nil {
		return []Subnet{w.subnet}
	}
	return []Subnet{w.subnet, *w.native}
}

// state returns the node as a plan sees it. Single addresses are used first.
func (w *pairs) state() State {
	st := State{Subnets: w.subnets(), Waiting: w.waiting, Release: Unlimited, Moves: true, Drain: w.drain, Trunk: w.trunk}
	for _, e := range w.enis {
		out := e.ENI
		out.Free = cloud.Amount{}
		for _, f := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
			used := e.used(f)
			out.Used = max(out.Used, used)
			addresses, prefixes := e.Of(f)
			left := max(0, used-addresses)
			busy := (left + prefixAddresses[f] - 1) / prefixAddresses[f]
			out.Free = out.Free.Plus(cloud.AmountIn(f, max(0, addresses-used), prefixes-busy))
		}
		st.ENIs = append(st.ENIs, out)
	}
	return st
}

// place serves waiting pods, each from one ENI.
func (w *pairs) place() {
	for _, e := range w.enis {
		for w.waiting > 0 && serves(e.ENI, w.policy) && !slices.ContainsFunc(w.policy.Families.Families(), func(f ipfamily.Family) bool {
			return e.used(f) >= CountOf(f, e.Amount)
		}) {
			e.pods[w.policy.Families]++
			w.waiting--
		}
	}
}

func (w *pairs) find(id string) *pairENI {
	for _, e := range w.enis {
		if e.ID == id {
			return e
		}
	}
	return nil
}

// act does what a plan says, and returns what is wrong with it.
func (w *pairs) act(a Action, free cloud.Amount) error {
	minus := func(x, y cloud.Amount) cloud.Amount {
		return cloud.Amount{Addresses: x.Addresses - y.Addresses, Prefixes: x.Prefixes - y.Prefixes, IPv6: x.IPv6 - y.IPv6, IPv6Prefixes: x.IPv6Prefixes - y.IPv6Prefixes}
	}
	e := w.find(a.ENI)
	if w.drain && (a.Kind == Assign && w.waiting == 0 || a.Kind == Attach) && e.Outdated {
		return fmt.Errorf("is for an outdated ENI, and no pod waits")
	}
	switch a.Kind {
	case Create:
		w.made++
		e = &pairENI{ENI: ENI{ID: fmt.Sprintf("eni-%d", w.made), Subnet: a.Subnet, Ours: true, Amount: a.Amount}, pods: map[ipfamily.Set]int{}}
		w.enis = append(w.enis, e)
	case CreateTrunk:
		w.made++
		w.enis = append(w.enis, &pairENI{ENI: ENI{ID: fmt.Sprintf("eni-%d", w.made), Subnet: a.Subnet, Ours: true, Trunk: true}})
		return nil
	case Attach, AttachTrunk:
		e.Phase, e.Index = Attached, a.Index
	case Assign:
		e.Amount = e.Plus(a.Amount)
	case Unassign:
		if left := minus(free, a.Amount); min(left.Addresses, left.Prefixes, left.IPv6, left.IPv6Prefixes) < 0 {
			return fmt.Errorf("takes more than is free, %+v", free)
		}
		e.Amount = minus(e.Amount, a.Amount)
	case Detach, DetachTrunk, Delete:
		if e.used(ipfamily.IPv4)+e.used(ipfamily.IPv6) > 0 {
			return fmt.Errorf("takes an ENI with pods")
		}
		w.enis = slices.DeleteFunc(w.enis, func(o *pairENI) bool { return o == e })
		return nil
	}
	if e.Addresses+e.Prefixes > w.limits.IPv4PerENI-1 || e.IPv6+e.IPv6Prefixes+e.OwnIPv6 > w.limits.IPv6PerENI {
		return fmt.Errorf("puts more on an ENI than it holds: %+v", e.Amount)
	}
	if e.Primary && a.IPv6 > 0 {
		return fmt.Errorf("asks for single IPv6 addresses on the primary ENI")
	}
	if native := w.native != nil && e.Subnet == w.native.ID; native && (!w.limits.Prefixes || a.Kind != Unassign && a.Addresses+a.Prefixes > 0) {
		return fmt.Errorf("asks for what there is not in an IPv6-only subnet")
	} else if !native && w.subnet.NoIPv6 && a.Kind != Unassign && a.IPv6+a.IPv6Prefixes > 0 {
		return fmt.Errorf("asks for IPv6 in a subnet without")
	}
	return nil
}

// rest plans and acts until there is nothing left to do.
func (w *pairs) rest() error {
	if err := w.steps(200); err != nil {
		return err
	}
	if left := Make(w.limits, w.policy, w.state()).Actions; len(left) > 0 {
		return fmt.Errorf("no end of plans; the last: %v", left)
	}
	return nil
}

// steps plans and acts at most n times: one step, then another plan, as a reconciler does.
func (w *pairs) steps(n int) error {
	for range n {
		st := w.state()
		plan := Make(w.limits, w.policy, st).Actions
		if len(plan) == 0 {
			return nil
		}
		free := cloud.Amount{}
		if i := slices.IndexFunc(st.ENIs, func(e ENI) bool { return e.ID == plan[0].ENI }); i >= 0 {
			free = st.ENIs[i].Free
		}
		if err := w.act(plan[0], free); err != nil {
			return fmt.Errorf("%v: %w", plan[0], err)
		}
		w.place()
	}
	return nil
}

// Whatever pods and settings do, plans end, keep to the limits, take nothing from pods, and leave pods
// waiting only with a reason.
func TestPlansOfFamiliesComeToAnEnd(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newPairs(
			rapid.SampledFrom([]cloud.Limits{nitro, xen, {MaxENIs: 4, IPv4PerENI: 15, IPv6PerENI: 15, Prefixes: true}, {MaxENIs: 2, IPv4PerENI: 2, IPv6PerENI: 2}, {MaxENIs: 3, IPv4PerENI: 3, IPv6PerENI: 1, Prefixes: true}}).Draw(r, "limits"),
			rapid.SampledFrom([]ipam.Policy{
				{WarmIP: 2}, {WarmENI: 1, WarmPrefix: 1}, {WarmIP: 3, MinimumIP: 8}, {Dialect: ipam.Cilium, PreAllocate: 3, MaxAboveWatermark: 2, FirstInterfaceIndex: 1},
			}).Draw(r, "policy"),
		)
		w.policy.PrefixDelegation = rapid.Bool().Draw(r, "prefixes")
		if rapid.Bool().Draw(r, "native") {
			w.native = &Subnet{ID: "subnet-6", IPv6Native: true, ForNew: true, Free: rapid.SampledFrom([]int{0, Unlimited}).Draw(r, "known")}
		}
		w.enis[0].OwnIPv6 = rapid.IntRange(0, 1).Draw(r, "own")
		for range rapid.IntRange(1, 12).Draw(r, "rounds") {
			switch rapid.IntRange(0, 6).Draw(r, "what") {
			case 6:
				if w.native != nil { // one of the two at least is for new ENIs
					w.subnet.ForNew = rapid.Bool().Draw(r, "at home")
					w.native.ForNew = !w.subnet.ForNew || rapid.Bool().Draw(r, "in the other")
				}
			case 0:
				w.policy.Families = rapid.SampledFrom([]ipfamily.Set{ipfamily.OnlyIPv4, ipfamily.OnlyIPv6, ipfamily.Dual}).Draw(r, "families")
			case 1:
				w.subnet.NoIPv6 = !w.subnet.NoIPv6
			case 2, 3:
				w.waiting += rapid.IntRange(1, 9).Draw(r, "pods")
			default:
				random := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 0))
				for _, e := range w.enis {
					for s, n := range e.pods {
						e.pods[s] -= random.IntN(n + 1)
					}
				}
			}
			w.place()
			if err := w.rest(); err != nil {
				r.Fatal(err)
			}
			if reason, message := Shortage(w.limits, w.policy, w.state()); w.waiting > 0 && (reason == "" || message == "") {
				r.Fatalf("%d pods wait, and nothing says why: %+v", w.waiting, w.state())
			}
		}
	})
}

// Among suitable subnets an IPv6-only one is preferred, as no IPv4 address is taken there. A subnet
// with routes other than the primary's still comes last.
func TestSubnetOfIPv6AloneFirst(t *testing.T) {
	policy := ipam.Policy{Families: ipfamily.OnlyIPv6, WarmIP: 3, FirstInterfaceIndex: 1}
	eth0 := ENI{ID: "eni-0", Subnet: "a", Phase: Attached, Primary: true, Ours: true}
	both, native := Subnet{ID: "a", Free: 4000, ForNew: true}, Subnet{ID: "b", ForNew: true, IPv6Native: true}
	elsewhere, full := native, native
	elsewhere.OtherRoutes, full.NoIPv6 = true, true
	for _, tt := range []struct {
		name  string
		other Subnet
		want  string
	}{{"of IPv6 alone", native, "b"}, {"with other routes", elsewhere, "a"}, {"that had nothing free", full, "a"}} {
		got := Make(nitro, policy, State{ENIs: []ENI{eth0}, Subnets: []Subnet{both, tt.other}}).Actions
		if len(got) != 1 || got[0].Subnet != tt.want {
			t.Errorf("beside one %s: %v, want one in %s", tt.name, got, tt.want)
		}
	}
	native.Free = Unlimited // not described yet
	for _, f := range []ipfamily.Set{ipfamily.OnlyIPv4, ipfamily.Dual} {
		policy.Families = f
		got := Make(nitro, policy, State{ENIs: []ENI{eth0}, Subnets: []Subnet{both, native}, PrimaryServes: f == ipfamily.OnlyIPv4}).Actions
		if len(got) != 1 || got[0].Subnet != "a" {
			t.Errorf("%s: %v, want one in the subnet that has IPv4", f, got)
		}
	}
}

// A trunk takes no IPv4 address in an IPv6-only subnet, and is not created if there is no IPv6 address
// either.
func TestTrunkInAnIPv6OnlySubnet(t *testing.T) {
	prefix := cloud.Amount{IPv6Prefixes: 1}
	eth0 := ENI{ID: "eni-0", Subnet: "subnet-1", Phase: Attached, Primary: true, Ours: true, Amount: prefix, Free: prefix}
	for none, want := range map[bool]int{false: 1, true: 0} {
		s := State{ENIs: []ENI{eth0}, Subnets: []Subnet{{ID: "subnet-1", IPv6Native: true, NoIPv6: none}}, Trunk: Trunk{Wanted: true, Branches: true}}
		check.Equal(t, len(Make(nitro, ipam.Policy{Families: ipfamily.OnlyIPv6}, s).Actions), want, "with nothing free: %t", none)
	}
}
