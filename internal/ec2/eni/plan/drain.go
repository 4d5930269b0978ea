package plan

import (
	"cmp"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// With State.Drain no outdated ENI is given more addresses, but for pods that wait and
// get none of others. Those that the node can spare are drained: what is free of them
// is no supply any more, so that others grow first, and then it is given back. One that
// is empty is detached as a whole. What an outdated ENI gave back it gets again for
// pods alone, so drains come to an end as pods go.

// drain is what State.Drain means for an ENI.
type drain int

const (
	stays    drain = iota
	closed         // outdated: it gets no more addresses, unless pods would wait
	draining       // likewise, and what is free of it goes back
)

// drained returns the state with what its Drain means for each ENI.
//
// An ENI is drained only if the others have, or can have, an address for each pod, its
// own included, and a free one: else its pods would have nowhere to go, and others
// would wait. Those are drained, the emptiest first and then the highest index, without
// whose free addresses the node has, or can have, what the policy wants, or as much of
// that as it can have at all. Otherwise one that can be replaced is drained whatever is
// warm, and alone, while no ENI is on its way out: a node with all of its ENIs could
// never replace them else. So is one that serves nobody while no pod waits, which may
// have the only free addresses.
func (s State) drained(l cloud.Limits, p ipam.Policy) State {
	if !s.Drain {
		return s
	}
	leaves := false
	for i, e := range s.ENIs {
		leaves = leaves || e.Ours && !e.Trunk && e.Phase == Detaching
		if e.Ours && e.Outdated && !e.Primary {
			s = s.with(i, closed)
		}
	}
	usage := s.tally(p).Usage
	want := s.reach(l, p, Demand(l, p, usage).Want)
	pods := capped(usage.Used+usage.Cooling+usage.Waiting+1, p)
	alone := !leaves
	for _, i := range s.emptiest(p) {
		without := s.with(i, draining)
		room := without.elsewhere().reach(l, p, pods) >= pods
		switch {
		case s.ENIs[i].idle(p) || room && without.reach(l, p, want) >= want:
			s, alone = without, false
		case alone && (room || s.ENIs[i].unused() && s.Waiting == 0) && s.replaceable(l, p, i):
			return without
		}
	}
	return s
}

// emptiest returns the places of the outdated ENIs that serve pods, the emptiest first.
func (s State) emptiest(p ipam.Policy) (out []int) {
	for i, e := range s.ENIs {
		if e.drain == closed && serves(e, p) {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(i, j int) int {
		x, y := s.ENIs[i], s.ENIs[j]
		return cmp.Or(cmp.Compare(x.Used+x.Cooling, y.Used+y.Cooling), -byIndex(x, y))
	})
	return out
}

func capped(n int, p ipam.Policy) int {
	if most := p.Cap(); most > 0 {
		return min(n, most)
	}
	return n
}

// with returns the state with something else for the ENI at i.
func (s State) with(i int, d drain) State {
	s.ENIs = slices.Clone(s.ENIs)
	s.ENIs[i].drain = d
	return s
}

// reach returns how many of n addresses the node has, or can have.
func (s State) reach(l cloud.Limits, p ipam.Policy, n int) int {
	b := plannerOf(l, p, s)
	for _, i := range b.begun() {
		if index, ok := b.places.free(); ok { // it has room for more than it has
			b.places.take(index)
			b.enis[i].Phase, b.enis[i].Index = Attached, index
			b.tally.total += b.capacity.total(b.enis[i])
		}
	}
	b.need = n - b.tally.total
	b.extendAll()
	return n - max(0, b.need)
}

// idle reports that an ENI is of no use to pods, neither to those that run nor to others.
func (e ENI) idle(p ipam.Policy) bool { return e.unused() && e.assigned(p.Families) == 0 }

// elsewhere returns the state as if nothing on draining ENIs was of use.
func (s State) elsewhere() State {
	s.ENIs = slices.Clone(s.ENIs)
	for i := range s.ENIs {
		if e := &s.ENIs[i]; e.drain == draining {
			e.Used, e.Cooling = 0, 0
		}
	}
	return s
}

// replaceable reports whether a new ENI could be made if that at i had gone. It may be the
// trunk, which lacks a place as long as any other ENI does.
func (s State) replaceable(l cloud.Limits, p ipam.Policy, i int) bool {
	s.Trunk.Wanted = false
	s.ENIs = slices.Delete(slices.Clone(s.ENIs), i, i+1)
	b := plannerOf(l, p, s)
	_, ok := b.places.free()
	return ok && b.subnetForNew() != nil
}

// growOutdated has pods that wait get addresses of outdated ENIs after all, first of
// those that are not drained: nothing else can give them any. One without any addresses
// goes instead if another can be made.
func (b *planner) growOutdated() {
	b.need = min(b.need, b.tally.Waiting-b.tally.free())
	for _, d := range []drain{closed, draining} {
		for _, e := range sorted(b.enis, func(e ENI) bool { return serves(e, b.capacity.policy) && e.drain == d }, byIndex) {
			if !e.idle(b.capacity.policy) || b.subnetForNew() == nil {
				b.assign(e)
			}
		}
	}
}

// drainShort gives back what is free of draining ENIs although the node lacks addresses:
// once nothing makes it grow, and unless pods wait. One without addresses for pods goes
// in any case, as another can take its device index.
func (b *planner) drainShort() {
	if len(b.actions) > 0 {
		return
	}
	if b.tally.Waiting == 0 {
		b.drainFree()
		return
	}
	for _, e := range b.draining() {
		if e.idle(b.capacity.policy) {
			b.do(Action{Kind: Detach, ENI: e.ID})
		}
	}
}

// drainFree gives back what is free of draining ENIs, and whole ENIs that are unused.
func (b *planner) drainFree() {
	for _, e := range b.draining() {
		if e.unused() {
			b.do(Action{Kind: Detach, ENI: e.ID})
		} else if a := e.spare(); a != none {
			b.do(Action{Kind: Unassign, ENI: e.ID, Amount: a})
		}
	}
}

// draining returns the ENIs that are drained, by falling index.
func (b *planner) draining() []ENI {
	return sorted(b.enis, func(e ENI) bool { return e.drain == draining }, func(x, y ENI) int { return -byIndex(x, y) })
}

// spare returns what is free of an ENI, of one kind and family. Its primary address stays.
func (e ENI) spare() cloud.Amount {
	for _, f := range []ipfamily.Family{ipfamily.IPv6, ipfamily.IPv4} {
		addresses, prefixes := e.Free.Of(f)
		assigned, _ := e.Of(f)
		if n := min(addresses, assigned); n > 0 {
			return cloud.AmountIn(f, n, 0)
		}
		if prefixes > 0 {
			return cloud.AmountIn(f, 0, prefixes)
		}
	}
	return none
}
