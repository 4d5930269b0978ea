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
