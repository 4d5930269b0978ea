package clientplan

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
)

// overlaps compares each destination with each.
func overlaps(a, b *Egress, yields bool) bool {
	return slices.ContainsFunc(a.destinations, func(p netip.Prefix) bool {
		return slices.ContainsFunc(b.destinations, func(q netip.Prefix) bool {
			all, part := p.Bits() == 0 && q.Bits() > 0, p.Bits() > 0 && q.Bits() == 0
			return p.Overlaps(q) && !all && (!part || yields)
		})
	})
}

func TestOverlap(t *testing.T) {
	dice, found := rand.New(rand.NewPCG(1, 2)), 0
	some := func(name string) *Egress {
		var list []string
		for range 1 + dice.IntN(3) {
			at := netip.AddrFrom4([4]byte{byte(dice.IntN(4) << 6)})
			if dice.IntN(3) == 0 {
				at = netip.AddrFrom16([16]byte{byte(dice.IntN(4) << 6)})
			}
			list = append(list, netip.PrefixFrom(at, dice.IntN(4)).Masked().String())
		}
		return made(name, 0, v1alpha1.EgressSpec{Destinations: list})
	}
	for i := range 5000 {
		a, b := some("a"), some("b")
		got, want := overlap(a, b, i%2 == 0), overlaps(a, b, i%2 == 0)
		if (got != "") != want {
			t.Fatalf("%v and %v: %q, want an overlap: %t", a.spec.Destinations, b.spec.Destinations, got, want)
		}
		if want {
			found++
		}
	}
	if found < 1000 || found > 4000 {
		t.Errorf("%d of 5000 overlap: the test has too few or too many", found)
	}
}

// Users have pods name as many Egresses of as many destinations as they may. What that costs the operator does
// not grow with the square of their number: with sixteen times as many as may be, such a comparison takes minutes.
func TestManyDestinationsOfEgresses(t *testing.T) {
	var list []*Egress
	names := ""
	for i := range membership.MaxEgresses {
		var destinations []string
		for k := range 4096 {
			destinations = append(destinations, fmt.Sprintf("10.%d.%d.%d/28", i, k/16, k%16*16))
		}
		list = append(list, made(fmt.Sprintf("tenant/e-%d", i), i, v1alpha1.EgressSpec{Destinations: destinations}))
		names += fmt.Sprintf(",e-%d", i)
	}
	p := Pod{Namespace: membership.Namespace{Name: "tenant"}, Annotations: map[string]string{v1alpha1.AnnotationEgressPrefix + "tenant": names[1:]}}
	if d := Decide(p, NewEgresses("", list)); len(d.Egresses) != len(list) {
		t.Fatalf("uses %d of %d", len(d.Egresses), len(list))
	}
}
