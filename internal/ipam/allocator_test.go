package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/test/harness/check"
)

var t0 = time.Unix(1_000_000, 0)

func addrs(list ...string) []netip.Addr {
	out := make([]netip.Addr, len(list))
	for i, s := range list {
		out[i] = netip.MustParseAddr(s)
	}
	return out
}

func prefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, s := range list {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

func newReady(groups ...Group) *Allocator[string] {
	a := New[string](DefaultCooling)
	for _, g := range groups {
		a.SetGroup(g)
		a.SetReady(g.ID, true)
	}
	return a
}

func mustTake(t *testing.T, a *Allocator[string], key string, now time.Time) netip.Addr {
	t.Helper()
	got, ok := a.Take(key, now)
	if !ok {
		t.Fatalf("Take(%s): nothing assignable", key)
	}
	return got.Addr
}

func TestLongestFreeFirst(t *testing.T) {
	a := newReady(Group{ID: "eni-a", Addresses: addrs("10.0.0.1", "10.0.0.2", "10.0.0.3")})
	one := mustTake(t, a, "one", t0)
	a.Release("one", t0)
	now := t0.Add(DefaultCooling)
	var order []netip.Addr
	for _, k := range []string{"two", "three", "four"} {
		order = append(order, mustTake(t, a, k, now))
	}
	if want := addrs("10.0.0.2", "10.0.0.3", "10.0.0.1"); one != want[2] || !slices.Equal(order, want) {
		t.Errorf("took %v, then %v, want the cooled one last", one, order)
	}
}

func TestCoolingEndsOnTime(t *testing.T) {
	a := newReady(Group{ID: "eni-a", Addresses: addrs("10.0.0.1")})
	mustTake(t, a, "one", t0)
	a.Release("one", t0)
	if got, ok := a.Take("two", t0.Add(DefaultCooling-1)); ok {
		t.Fatalf("handed out %v a nanosecond early", got.Addr)
	}
	if got := a.Withdraw("eni-a", 1); got != nil {
		t.Fatalf("withdrew cooling %v", got)
	}
	if at, ok := a.NextExpiry(); !ok || !at.Equal(t0.Add(DefaultCooling)) {
		t.Fatalf("next expiry %v %v", at, ok)
	}
	mustTake(t, a, "two", t0.Add(DefaultCooling))
}

func TestCoolingSinceTheFutureLastsOnePeriod(t *testing.T) {
	a := newReady(Group{ID: "eni-a", Addresses: addrs("10.0.0.1")})
	a.Cool(addrs("10.0.0.1")[0], t0.Add(time.Hour), t0)
	mustTake(t, a, "one", t0.Add(DefaultCooling))
}

func TestCancelGivesTheSameAddressNext(t *testing.T) {
	a := newReady(Group{ID: "eni-a", Prefixes: prefixes("10.0.0.16/28")})
	first := mustTake(t, a, "one", t0)
	a.Cancel("one")
	check.Equal(t, mustTake(t, a, "two", t0), first, "after a cancel")
}

func TestUnlistedHoldIsNeverReassigned(t *testing.T) {
	a := newReady(Group{ID: "eni-a", Addresses: addrs("10.0.0.1")})
	lost := addrs("10.0.0.9")[0]
	check.OK(t, a.Hold("pod", lost, t0))
	if err := a.Hold("other", lost, t0); err == nil {
		t.Fatal("a second holder was accepted")
	}
	a.SetGroup(Group{ID: "eni-a", Addresses: append(addrs("10.0.0.1"), lost)})
	mustTake(t, a, "one", t0)
	if got, ok := a.Take("two", t0); ok {
		t.Fatalf("handed out %v, which a pod holds", got.Addr)
	}
	if got, _ := a.Take("pod", t0); got.Group != "eni-a" {
		t.Errorf("once listed, the hold is of group %q", got.Group)
	}
}

func TestLargePrefixIsNotEnumerated(t *testing.T) {
	a := newReady(Group{ID: "eni-a", Prefixes: prefixes("2001:db8::/80")})
	now, seen := t0, map[netip.Addr]bool{}
	for i := range 10_000 {
		key := fmt.Sprint(i)
		addr := mustTake(t, a, key, now)
		if seen[addr] {
			t.Fatalf("%v came twice of 2^48", addr)
		}
		seen[addr] = true
		a.Release(key, now)
		now = now.Add(time.Second)
	}
	if a.Expire(now.Add(time.Hour)); len(a.entries) != 0 {
		t.Errorf("%d entries remain of addresses that are free again", len(a.entries))
	}
}

// BenchmarkTake shows that taking an address costs the same on a small node and on a full large one:
// half of the addresses are held while one is taken and released.
func BenchmarkTake(b *testing.B) {
	for _, size := range []struct{ groups, perGroup int }{{3, 3}, {4, 14}, {15, 49}, {15, 784}} {
		b.Run(fmt.Sprintf("addresses=%d", size.groups*size.perGroup), func(b *testing.B) {
			a := New[int](0)
			addr := netip.MustParseAddr("10.0.0.0")
			for g := range size.groups {
				list := make([]netip.Addr, size.perGroup)
				for i := range list {
					addr = addr.Next()
					list[i] = addr
				}
				id := fmt.Sprintf("eni-%02d", g)
				a.SetGroup(Group{ID: id, Index: g, Addresses: list})
				a.SetReady(id, true)
			}
			for k := range size.groups * size.perGroup / 2 {
				a.Take(-1-k, t0)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := a.Take(1, t0); !ok {
					b.Fatal("nothing assignable")
				}
				a.Release(1, t0)
			}
		})
	}
}

// Blocks with one address each take turns.
func TestGroupsThatAreAlikeTakeTurns(t *testing.T) {
	a := New[string](0)
	for _, addr := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
		a.SetGroup(Group{ID: addr, Prefixes: []netip.Prefix{netip.MustParsePrefix(addr + "/32")}})
		a.SetReady(addr, true)
	}
	now := time.Unix(0, 0)
	var got []string
	for i := range 6 {
		key := string(rune('a' + i))
		v, ok := a.Take(key, now)
		if !ok {
			t.Fatal("no address")
		}
		got = append(got, v.Group)
		a.Release(key, now)
	}
	want := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.1", "10.0.0.2", "10.0.0.3"}
	check.Equal(t, got, want, "handed out")
}

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

// Addresses that had cooled before a restart come after those that were never used, in the order of
// release, whether the cloud lists them before or after the records are read.
func TestOrderOfFreedomOutlastsARestart(t *testing.T) {
	singles := Group{ID: "eni-a", Addresses: addrs("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")}
	prefix := Group{ID: "eni-a", Prefixes: prefixes("10.0.0.0/30")}
	for _, c := range []struct {
		name   string
		group  Group
		freed  []netip.Addr // the earliest release first
		listed bool         // before the records are read
		want   []netip.Addr
	}{
		{"singles", singles, addrs("10.0.0.2", "10.0.0.1"), true, addrs("10.0.0.3", "10.0.0.4", "10.0.0.2", "10.0.0.1")},
		{"singles listed later", singles, addrs("10.0.0.2", "10.0.0.1"), false, addrs("10.0.0.3", "10.0.0.4", "10.0.0.2", "10.0.0.1")},
		{"prefix", prefix, addrs("10.0.0.1", "10.0.0.0"), true, addrs("10.0.0.2", "10.0.0.3", "10.0.0.1", "10.0.0.0")},
		{"prefix listed later", prefix, addrs("10.0.0.1", "10.0.0.0"), false, addrs("10.0.0.2", "10.0.0.3", "10.0.0.1", "10.0.0.0")},
		{"of no group", singles, addrs("10.9.9.9"), true, addrs("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := New[string](DefaultCooling)
			if c.listed {
				a.SetGroup(c.group)
			}
			for i, addr := range c.freed {
				a.Cool(addr, t0.Add(-2*DefaultCooling).Add(time.Duration(i)*time.Second), t0)
			}
			if !c.listed {
				a.SetGroup(c.group)
			}
			a.SetReady(c.group.ID, true)
			var got []netip.Addr
			for _, key := range []string{"a", "b", "c", "d"} {
				got = append(got, mustTake(t, a, key, t0))
			}
			check.Equal(t, got, c.want, "handed out")
		})
	}
}
