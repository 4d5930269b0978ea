package fleet

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/test/harness/check"
)

// An address, and a delegated prefix that contains it, belong to one node in each subnet.
func TestHoldersOfPrefixes(t *testing.T) {
	h := newHolders()
	h.set(eni.Inventory{InstanceID: "i-1", ENIs: []eni.ENI{{
		ID: "eni-1", SubnetID: "s1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.2.5")}, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/28")},
		IPv6: []netip.Addr{netip.MustParseAddr("2001:db8:1::7")},
	}}})
	for _, c := range []struct{ instance, subnet, thing, want string }{
		{"i-2", "s1", "10.0.1.3/32", "eni-1"},
		{"i-2", "s1", "10.0.2.0/28", "eni-1"},
		{"i-2", "s1", "10.0.3.0/28", ""},
		{"i-2", "s2", "10.0.1.3/32", ""},
		{"i-1", "s1", "10.0.1.3/32", ""},
		{"i-2", "s1", "2001:db8::/80", ""}, // must not iterate over its addresses
		{"i-2", "s1", "2001:db8:1::/80", "eni-1"},
		{"i-1", "s1", "2001:db8:1::/80", ""},
		{"i-2", "s3", "10.0.1.3/32", ""}, // an unknown subnet
	} {
		check.Equal(t, h.other(c.instance, c.subnet, netip.MustParsePrefix(c.thing)), c.want, "holder of %s in %s other than %s", c.thing, c.subnet, c.instance)
	}
	h.drop("i-1")
	check.Equal(t, h.other("i-2", "s1", netip.MustParsePrefix("10.0.1.3/32")), "", "holder after its node was removed")
}

// What nodes hold depends only on their last inventories, not on those before.
func TestHoldersFollowTheInventories(t *testing.T) {
	things := []string{"10.0.2.5/32", "10.0.2.6/32", "10.0.1.0/28", "2001:db8:1::7/128", "2001:db8:2::/80"}
	inventory := func(r *rapid.T, instance string) eni.Inventory {
		enis := []eni.ENI{{ID: instance + "-1", SubnetID: "s1"}, {ID: instance + "-2", SubnetID: "s1"}}
		inv := eni.Inventory{InstanceID: instance}
		for _, text := range things {
			p, on := netip.MustParsePrefix(text), rapid.IntRange(0, 3).Draw(r, "ENIs with "+text) // 3: both
			for i := range enis {
				if on&(i+1) != 0 {
					hold(&enis[i], p)
				}
			}
			if on > 0 && rapid.IntRange(0, 40).Draw(r, "releasing "+text) == 40 {
				inv.Releasing = append(inv.Releasing, eni.Release{Prefix: p, ENI: enis[0].ID})
			}
		}
		if rapid.Bool().Draw(r, "as the primary address") {
			enis[0].PrimaryIPv4 = netip.MustParsePrefix(things[0]).Addr()
		}
		inv.ENIs = enis[:2-rapid.IntRange(0, 8).Draw(r, "fewer ENIs")/7]
		return inv
	}
	rapid.Check(t, func(r *rapid.T) {
		h, fresh := newHolders(), newHolders()
		last := []eni.Inventory{{InstanceID: "i-1"}, {InstanceID: "i-2"}}
		for range rapid.IntRange(0, 8).Draw(r, "inventories") {
			of := rapid.IntRange(0, 1).Draw(r, "instance")
			last[of] = inventory(r, last[of].InstanceID)
			h.set(last[of])
		}
		for _, inv := range last {
			h.set(inv)
			fresh.set(inv)
		}
		for _, text := range append(things, "2001:db8:1::/80") {
			p := netip.MustParsePrefix(text)
			if got, want := h.other("i-3", "s1", p), fresh.other("i-3", "s1", p); got != want {
				r.Fatalf("holder of %s = %q, want %q as with the last inventories alone", p, got, want)
			}
		}
	})
}

// hold adds an address or prefix to an ENI.
func hold(e *eni.ENI, p netip.Prefix) {
	singles, prefixes := &e.Addresses, &e.Prefixes
	if !p.Addr().Is4() {
		singles, prefixes = &e.IPv6, &e.IPv6Prefixes
	}
	if p.IsSingleIP() {
		*singles = append(*singles, p.Addr())
	} else {
		*prefixes = append(*prefixes, p)
	}
}

// Nodes are served in order of their due times; news during a pass makes another pass due.
func TestSchedule(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	s := schedule{wake: retry.NewSignal()}
	a, b, c := &member{name: "a", index: -1}, &member{name: "b", index: -1}, &member{name: "c", index: -1}
	s.enqueue(a, at(10))
	s.enqueue(b, at(20))
	s.sooner(c, at(30))
	s.sooner(b, at(5))
	s.sooner(a, at(40)) // must not become later
	if m, wait := s.next(at(0)); m != nil || wait != 5*time.Second {
		t.Errorf("next(0) = %v, %v, want nothing for 5s", m, wait)
	}
	for i, want := range []*member{b, a} {
		if m, _ := s.next(at(10)); m != want {
			t.Errorf("next() number %d = %v, want %s", i, m, want.name)
		}
	}
	s.drop(c)
	s.drop(c)
	if m, _ := s.next(at(60)); m != nil {
		t.Errorf("next() = %s, want none after drop", m.name)
	}
	a.running = true
	s.sooner(a, at(70))
	s.sooner(a, at(65))
	s.sooner(a, at(90))
	if !a.again || !a.againAt.Equal(at(65)) || a.index >= 0 {
		t.Errorf("news during a pass: again = %v at %v, index %d, want another pass at 65", a.again, a.againAt, a.index)
	}
}

// Requests of one key share a call. Requests that nobody waits for any longer cause none.
func TestAbandonedRequestsCauseNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls [][]string
		g := gatherer[int]{
			clock: clock.Real{}, spacing: time.Second, most: 2,
			spawn: func(do func(context.Context)) { go do(t.Context()) },
			call: func(_ context.Context, keys []string) (map[string]int, error) {
				calls = append(calls, keys)
				return map[string]int{"a": 1, "d": 4}, nil
			},
		}
		listed := make(chan struct{})
		ask := func(key string, listed <-chan struct{}) {
			go func() {
				if got, err := g.ask(t.Context(), key, listed); err == nil && got.value != map[string]int{"a": 1, "d": 4}[key] {
					t.Errorf("ask(%s) = %d", key, got.value)
				}
			}()
			synctest.Wait()
		}
		for _, key := range []string{"a", "b", "c"} {
			ask(key, listed)
		}
		ask("a", nil)
		close(listed)
		synctest.Wait()
		ask("d", nil)
		ask("b", nil)
		pass(time.Minute)
		synctest.Wait()
		check.Equal(t, fmt.Sprint(calls), "[[a b] [d]]", "calls")
	})
}
