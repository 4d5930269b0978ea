package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/test/harness/check"
)

// dualGroup has three IPv4 addresses, a /30, a single IPv6 address and a /80.
func dualGroup(i int) Group {
	addr := func(format string) netip.Addr { return netip.MustParseAddr(fmt.Sprintf(format, i)) }
	return Group{
		ID: fmt.Sprintf("eni-%d", i), Index: i,
		Addresses: []netip.Addr{addr("10.0.%d.4"), addr("10.0.%d.5"), addr("10.0.%d.6"), addr("2001:db8::%d:5")},
		Prefixes:  []netip.Prefix{netip.PrefixFrom(addr("10.0.%d.16"), 30), netip.PrefixFrom(addr("2001:db8:0:0:%d::"), 80)},
	}
}

func TestPodsGetAddressesOfOneGroup(t *testing.T) {
	n := NewNode[string](DefaultCooling)
	now := time.Unix(0, 0)
	six, four := dualGroup(1), dualGroup(2)
	six.Addresses, six.Prefixes = six.Addresses[3:], six.Prefixes[1:]
	four.Addresses, four.Prefixes = four.Addresses[:2], nil
	for _, g := range []Group{six, four} {
		n.SetGroup(g)
		n.SetReady(g.ID, true)
	}
	if got, ok := n.Take("a", ipfamily.Dual, now); ok {
		t.Errorf("got %v, and no group has both families", got)
	}
	if got, ok := n.Take("b", ipfamily.OnlyIPv4, now); !ok || got.Group != "eni-2" || len(got.List()) != 1 {
		t.Errorf("IPv4 alone: %v", got)
	}
	if got, ok := n.Take("c", ipfamily.OnlyIPv6, now); !ok || got.Group != "eni-1" || got.Addresses[ipfamily.IPv6].Is4() {
		t.Errorf("IPv6 alone: %v", got)
	}
	n.SetGroup(dualGroup(2))
	first, ok := n.Take("a", ipfamily.Dual, now)
	if !ok || first.Group != "eni-2" || first.Index != 2 || len(first.List()) != 2 {
		t.Errorf("both: %v", first)
	}
	if again, _ := n.Take("a", ipfamily.OnlyIPv4, now); again != first {
		t.Errorf("again: %v, not %v", again, first)
	}
	if got, _ := n.Take("b", ipfamily.Dual, now); len(got.List()) != 1 {
		t.Errorf("a holder of one family has %v", got)
	}
	if g := n.Groups()[1]; g.Used() != 2 || g.Assignable(ipfamily.Dual) != 5 || g.Assignable(ipfamily.OnlyIPv6) != IPv6PrefixAddresses {
		t.Errorf("counts %+v", g)
	}
	if err := n.WithdrawGroup("eni-1"); err == nil {
		t.Error("withdrew a group with a used IPv6 address")
	}
	got, ok := n.Release("a", now)
	if !ok || !slices.Equal(got.List(), first.List()) || !n.Busy(got[ipfamily.IPv6]) || n.Groups()[1].Cooling() != 1 {
		t.Errorf("released %v of %v", got, first)
	}
	if at, ok := n.NextExpiry(); !ok || !at.Equal(now.Add(DefaultCooling)) || n.Expire(at) != 2 {
		t.Errorf("both cool until %v", at)
	}
}

// The addresses of a record are held together or not at all.
func TestHoldsOfBothFamiliesAreWhole(t *testing.T) {
	n := NewNode[string](DefaultCooling)
	n.SetGroup(dualGroup(1))
	four, six := netip.MustParseAddr("10.0.1.4"), netip.MustParseAddr("2001:db8:0:0:1::7")
	check.OK(t, n.Hold("a", []netip.Addr{six}, time.Unix(0, 0)))
	if err := n.Hold("b", []netip.Addr{four, six}, time.Unix(0, 0)); err == nil || n.Busy(four) {
		t.Errorf("two hold %v: %v", six, err)
	}
	if err := n.Hold("a", []netip.Addr{four, six}, time.Unix(0, 0)); err != nil || !n.Busy(four) {
		t.Errorf("the holder of %v: %v", six, err)
	}
}

// Whatever is taken and released, in whatever families, no address is held twice, handed out while it
// cools, or withdrawn from a pod, and a pod's addresses are of one group.
func TestNodeOfBothFamilies(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		n, now := NewNode[string](DefaultCooling), time.Unix(0, 0)
		held, cooling, gone := map[string]Taken{}, map[netip.Addr]time.Time{}, map[netip.Prefix]bool{}
		for i := range 3 {
			n.SetGroup(dualGroup(i))
			n.SetReady(dualGroup(i).ID, rapid.Bool().Draw(r, "ready"))
		}
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			key, group := fmt.Sprint(rapid.IntRange(0, 25).Draw(r, "pod")), dualGroup(rapid.IntRange(0, 2).Draw(r, "group"))
			switch rapid.IntRange(0, 7).Draw(r, "step") {
			case 0, 1, 2:
				set := rapid.SampledFrom([]ipfamily.Set{ipfamily.OnlyIPv4, ipfamily.OnlyIPv6, ipfamily.Dual}).Draw(r, "set")
				got, ok := n.Take(key, set, now)
				before, had := held[key]
				if had && got.Addresses != before.Addresses || ok && !had && len(got.List()) != len(set.Families()) {
					r.Fatalf("%s of %s got %v, had %v", key, set, got, before)
				}
				if ok && !had {
					checkTaken(r, got, held, cooling, gone, now)
					held[key] = got
				}
			case 3:
				got, ok := n.Release(key, now)
				if _, had := held[key]; ok != had || got != held[key].Addresses {
					r.Fatalf("released %v of %v", got, held[key])
				}
				for _, a := range got.List() {
					cooling[a] = now
				}
				delete(held, key)
			case 4:
				now = now.Add(DefaultCooling / 2)
			case 5:
				f := rapid.SampledFrom([]ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6}).Draw(r, "family")
				for _, p := range n.Withdraw(group.ID, f, 1, 1) {
					gone[p] = true
					for _, l := range held {
						if slices.ContainsFunc(l.List(), p.Contains) {
							r.Fatalf("withdrew %v from %v", p, l)
						}
					}
				}
			case 6:
				var back []netip.Prefix
				for p := range gone {
					back = append(back, p)
				}
				n.Restore(back)
				clear(gone)
			default:
				n.SetReady(group.ID, rapid.Bool().Draw(r, "ready"))
			}
		}
	})
}

// checkTaken checks addresses that were just taken.
func checkTaken(r *rapid.T, got Taken, held map[string]Taken, cooling map[netip.Addr]time.Time, gone map[netip.Prefix]bool, now time.Time) {
	g := dualGroup(got.Index)
	for _, a := range got.List() {
		of := slices.Contains(g.Addresses, a) || slices.ContainsFunc(g.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
		if g.ID != got.Group || !of {
			r.Fatalf("%v is not of %s", a, got.Group)
		}
		if since, cools := cooling[a]; cools && since.Add(DefaultCooling).After(now) {
			r.Fatalf("%v cools since %v", a, since)
		}
		for p := range gone {
			if p.Contains(a) {
				r.Fatalf("%v of %v is withdrawn", a, p)
			}
		}
		for key, l := range held {
			if slices.Contains(l.List(), a) {
				r.Fatalf("%v is held by %s", a, key)
			}
		}
	}
}
