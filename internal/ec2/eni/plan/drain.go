package plan

import (
	"cmp"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// With State.Drain, outdated ENIs get no more addresses, except for waiting pods that no other ENI can serve. ENIs
// that the node can spare are drained: their free addresses no longer count as supply, so that other ENIs grow
// first, and are then released. An empty ENI is detached as a whole. Because an outdated ENI gets addresses only for
// waiting pods, draining ends as pods end.

// drain is the effect of State.Drain on an ENI.
type drain int

const (
	stays    drain = iota
	closed         // outdated: gets more addresses only if pods would wait otherwise
	draining       // closed, and its free addresses are released
)

// drained returns the state with the effect of Drain on each ENI.
//
// An ENI is drained only if the others have, or can get, an address for each pod, including those of this ENI, and a
// free one. Otherwise its pods could not move, and others would wait. ENIs are drained, the emptiest first and then
// the highest index, if the node has or can get the policy's demand without their free addresses, or as much of it as
// possible at all. If no ENI qualifies, one that can be replaced is drained regardless of the warm target, alone, and
// only while no ENI is being detached: a node that uses all its ENIs could otherwise never replace them. The same
// applies to an ENI that serves no pod while no pod waits, even if it has the only free addresses.
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

// emptiest returns the indexes of the outdated ENIs that serve pods, the emptiest first.
func (s State) emptiest(p ipam.Policy) (out []int) {
	for i, e := range s.ENIs {
		if e.drain == closed && serves(e, p) {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(i, j int) int {
		x, y := &s.ENIs[i], &s.ENIs[j]
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

// with returns the state with another drain value for the ENI at i.
func (s State) with(i int, d drain) State {
	s.ENIs = slices.Clone(s.ENIs)
	s.ENIs[i].drain = d
	return s
}

// reach returns how many of n addresses the node has or can get.
func (s State) reach(l cloud.Limits, p ipam.Policy, n int) int {
	b := plannerOf(l, p, s)
	b.enis = slices.Clone(b.enis)
	for _, i := range b.unattached() {
		if index, ok := b.places.free(); ok { // a new ENI fits
			b.places.take(index)
			b.enis[i].Phase, b.enis[i].Index = Attached, index
			b.tally.total += b.capacity.total(b.enis[i])
		}
	}
	b.need = n - b.tally.total
	b.extendAll()
	return n - max(0, b.need)
}

// idle reports whether an ENI is useless for any current or new pod.
func (e ENI) idle(p ipam.Policy) bool { return e.unused() && e.assigned(p.Families) == 0 }

// elsewhere returns the state as if no address on draining ENIs were in use.
func (s State) elsewhere() State {
	s.ENIs = slices.Clone(s.ENIs)
	for i := range s.ENIs {
		if e := &s.ENIs[i]; e.drain == draining {
			e.Used, e.Cooling = 0, 0
		}
	}
	return s
}

// replaceable reports whether removing the ENI at i would allow a new ENI. That may be the trunk, which does not fit
// while other ENIs take all slots.
func (s State) replaceable(l cloud.Limits, p ipam.Policy, i int) bool {
	s.Trunk.Wanted = false
	s.ENIs = slices.Delete(slices.Clone(s.ENIs), i, i+1)
	b := plannerOf(l, p, s)
	_, ok := b.places.free()
	return ok && b.subnetForNew() != nil
}

// growOutdated lets outdated ENIs serve waiting pods if nothing else can, first those that are not drained. An ENI
// without any addresses is detached instead if another can be created.
func (b *planner) growOutdated() {
	b.need = min(b.need, b.tally.Waiting-b.tally.free())
	for _, d := range []drain{closed, draining} {
		for _, e := range sorted(b.enis, func(e ENI) bool { return serves(e, b.capacity.policy) && e.drain == d }, byIndex) {
			if !e.idle(b.capacity.policy) || b.subnetForNew() == nil {
				b.assign(*e)
			}
		}
	}
}

// drainShort releases the free addresses of draining ENIs although the node lacks addresses, if it cannot grow and no
// pod waits. An ENI without addresses for pods is always detached, because another can take its device index.
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

// drainFree releases the free addresses of draining ENIs, and detaches those that are unused.
func (b *planner) drainFree() {
	for _, e := range b.draining() {
		if e.unused() {
			b.do(Action{Kind: Detach, ENI: e.ID})
		} else if a := e.spare(); a != none {
			b.do(Action{Kind: Unassign, ENI: e.ID, Amount: a})
		}
	}
}

// draining returns the draining ENIs, the highest index first.
func (b *planner) draining() []*ENI {
	return sorted(b.enis, func(e ENI) bool { return e.drain == draining }, func(x, y *ENI) int { return -byIndex(x, y) })
}

// spare returns an ENI's free addresses or prefixes of one family, without its primary address.
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
