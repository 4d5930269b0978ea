package eni

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni/plan"
)

// An address belongs to one ENI, and an ENI keeps its MAC and primary address
// for life. A description that says otherwise is wrong, or part of it is older
// than the rest: what is claimed twice stays with the ENI that is known to have
// it, and serves nobody else until descriptions agree.

// claim is that an ENI has an address or prefix.
type claim struct {
	thing   netip.Prefix
	eni     string
	primary bool // the ENI's own
}

// claims are all that the ENIs say they have, in the order of addresses, and
// what contains before what is contained.
func claims(enis []cloud.ENI) []claim {
	var out []claim
	for _, e := range enis {
		if e.Primary.IsValid() {
			out = append(out, claim{host(e.Primary), e.ID, true})
		}
		for _, p := range held(e) {
			out = append(out, claim{p, e.ID, false})
		}
	}
	slices.SortFunc(out, func(x, y claim) int {
		return cmp.Or(x.thing.Addr().Compare(y.thing.Addr()), cmp.Compare(x.thing.Bits(), y.thing.Bits()), cmp.Compare(x.eni, y.eni))
	})
	return out
}

// held are an ENI's addresses and prefixes for pods, IPv6 included.
func held(e cloud.ENI) []netip.Prefix {
	return slices.Concat(hosts(e.Addresses), hosts(e.IPv6), e.Prefixes, e.IPv6Prefixes)
}

// dispute is a claim that is not believed, as others have the thing too.
type dispute struct {
	claim
	among []string // all ENIs that claim it
}

// disputes finds what several have, or one has twice. Before is what was known
// of the ENIs: an ENI's own primary address wins, then who had the thing before.
// Of a thing that nobody had, no claim is believed.
func disputes(before, now []cloud.ENI) []dispute {
	var out []dispute
	all := claims(now)
	for i := 0; i < len(all); {
		j := i + 1
		for j < len(all) && all[i].thing.Overlaps(all[j].thing) {
			j++
		}
		if group := all[i:j]; len(group) > 1 {
			out = append(out, losers(before, group)...)
		}
		i = j
	}
	return out
}

// losers are all claims of one group for pods but that which stands, if one does.
func losers(before []cloud.ENI, group []claim) []dispute {
	known := func(c claim) bool {
		return slices.ContainsFunc(before, func(e cloud.ENI) bool { return e.ID == c.eni && slices.Contains(held(e), c.thing) })
	}
	stands := slices.IndexFunc(group, func(c claim) bool { return c.primary })
	if stands < 0 {
		stands = slices.IndexFunc(group, known)
	}
	var among []string
	for _, c := range group {
		among = append(among, c.eni)
	}
	var out []dispute
	for i, c := range group {
		if i != stands && !c.primary {
			out = append(out, dispute{c, among})
		}
	}
	return out
}

// doubles finds ENIs whose MAC, primary address or place on the instance another
// has too, the one that was known with it before excepted.
func doubles(before, now []cloud.ENI) []string {
	var out []string
	for _, e := range now {
		if slices.ContainsFunc(unique, func(same sameness) bool {
			twice := slices.ContainsFunc(now, func(o cloud.ENI) bool { return o.ID != e.ID && same(e, o) })
			return twice && !slices.ContainsFunc(before, func(o cloud.ENI) bool { return o.ID == e.ID && same(e, o) })
		}) {
			out = append(out, e.ID)
		}
	}
	return out
}

// sameness tells whether two ENIs have one thing of which each has its own.
type sameness func(x, y cloud.ENI) bool

// unique are the things of which each ENI of a node has its own.
var unique = []sameness{
	func(x, y cloud.ENI) bool { return len(x.MAC) > 0 && bytes.Equal(x.MAC, y.MAC) },
	func(x, y cloud.ENI) bool { return x.Primary.IsValid() && x.Primary == y.Primary },
	func(x, y cloud.ENI) bool { return samePlace(x.Attachment, y.Attachment) },
}

// samePlace tells whether two that are attached have one device index.
func samePlace(x, y *cloud.Attachment) bool {
	return phaseOf(x) == plan.Attached && phaseOf(y) == plan.Attached && x.NetworkCard == y.NetworkCard && x.DeviceIndex == y.DeviceIndex
}

// arbitrate takes what is disputed out of the view. Before is what was known of
// the ENIs before the listing.
func (v *view) arbitrate(before []cloud.ENI) {
	clear(v.contradictions)
	now := make([]cloud.ENI, 0, len(v.enis))
	for _, k := range v.list() {
		k.disputed, k.ambiguous = 0, false
		if k.contradiction != "" {
			v.contradictions[k.contradiction] = []string{k.ID}
		}
		e := k.ENI
		leaving := func(p netip.Prefix) bool { _, ok := k.releasing[p]; return ok }
		if len(k.releasing) > 0 { // what may be gone already is no claim
			e.Addresses = without(e.Addresses, func(a netip.Addr) bool { return leaving(host(a)) })
			e.Prefixes = without(e.Prefixes, leaving)
		}
		now = append(now, e)
	}
	for _, d := range disputes(before, now) {
		k := v.enis[d.eni]
		k.disputed++
		is := func(p netip.Prefix) bool { return p == d.thing }
		one := func(a netip.Addr) bool { return host(a) == d.thing }
		k.Addresses, k.IPv6 = without(k.Addresses, one), without(k.IPv6, one)
		k.Prefixes, k.IPv6Prefixes = without(k.Prefixes, is), without(k.IPv6Prefixes, is)
		v.contradictions[fmt.Sprintf("%s is listed for %s, and not for it alone", brief(d.thing), k.ID)] = d.among
	}
	for _, id := range doubles(before, now) {
		v.enis[id].ambiguous = true
		v.contradictions[id+" is listed with the MAC, primary address or device index of another ENI of the node"] = []string{id}
	}
}

// without is a copy of list without what is gone.
func without[T any](list []T, gone func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(list), gone)
}

// keepForLife has a listing of an ENI that is known change neither its MAC nor
// its primary address.
func (k *known) keepForLife(e *cloud.ENI) {
	k.contradiction = ""
	if len(k.MAC) > 0 && len(e.MAC) > 0 && !bytes.Equal(k.MAC, e.MAC) {
		k.contradiction = fmt.Sprintf("%s is listed with the MAC address %v, and has %v", k.ID, e.MAC, k.MAC)
		e.MAC = k.MAC
	}
	if k.Primary.IsValid() && e.Primary.IsValid() && k.Primary != e.Primary {
		k.contradiction = fmt.Sprintf("%s is listed with the primary address %v, and has %v", k.ID, e.Primary, k.Primary)
		e.Primary = k.Primary
	}
}

// checkContradictions tells once of what a listing says that cannot be true, and has
// the ENIs described again soon.
func (r *Reconciler) checkContradictions() {
	soon := r.cfg.Clock.Now().Add(r.cfg.Lag)
	for what, ids := range r.view.contradictions {
		if !r.contradicted[what] {
			r.cfg.Logger.Warn("EC2 describes what cannot be true; it is not used until descriptions agree", "enis", ids, "what", what)
		}
		for _, id := range ids {
			if r.lookups.at[id].IsZero() {
				r.lookups.at[id] = soon
			}
		}
	}
	clear(r.contradicted)
	for what := range r.view.contradictions {
		r.contradicted[what] = true
	}
}
