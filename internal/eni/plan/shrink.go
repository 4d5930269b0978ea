package plan

import (
	"cmp"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/ipam"
)

// shrink gives back excess that has persisted. See Plan for the order.
func (b *planner) shrink() {
	excess := min(b.tally.total-b.demand.Keep, b.release)
	gone := b.detachUnused(&excess)
	given := map[string]bool{} // one change an ENI and plan
	if b.moves && len(gone) == 0 {
		excess = min(excess, b.shift(gone, given))
	}
	if b.demand.WholeENIs || excess <= 0 {
		return
	}
	emptiest := sorted(b.enis, func(e ENI) bool { return serves(e, b.policy) && !gone[e.ID] && !given[e.ID] },
		func(x, y ENI) int {
			if x.Primary != y.Primary {
				return map[bool]int{true: 1, false: -1}[x.Primary]
			}
			return cmp.Or(cmp.Compare(x.Used, y.Used), -byIndex(x, y))
		})
	for _, e := range emptiest {
		share, now := b.shareOf(e, excess)
		if now > 0 {
			b.do(Action{Kind: Unassign, ENI: e.ID, Amount: cloud.Amount{Addresses: now}})
			given[e.ID] = true
		}
		excess -= share
	}
	for _, e := range emptiest {
		if n := min(excess/ipam.PrefixAddresses, e.Free.Prefixes); n > 0 && !given[e.ID] {
			b.do(Action{Kind: Unassign, ENI: e.ID, Amount: cloud.Amount{Prefixes: n}})
			excess -= n * ipam.PrefixAddresses
		}
	}
}

// shareOf is how much of the excess an ENI is to give back, and how many single
// addresses of that can go now. What cools is part of the share: it goes once
// it has cooled, and until then no fuller ENI gives anything in its place. An
// ENI that only cools, and fits into the excess whole, waits to go as one.
func (b *planner) shareOf(e ENI, excess int) (share, now int) {
	if !e.Primary && e.Used == 0 && e.Cooling > 0 && e.total() <= excess {
		return e.total(), 0
	}
	unused := e.Free.Addresses
	if e.Prefixes == 0 {
		unused += e.Cooling
	}
	share = min(excess, unused)
	return share, min(share, e.Free.Addresses)
}

// detachUnused detaches ENIs that nothing needs, if the target is still met
// without them. One without any address serves nobody and needs no patience.
func (b *planner) detachUnused(excess *int) map[string]bool {
	gone := map[string]bool{}
	for _, e := range b.unused() {
		if n := e.total(); n == 0 || n <= *excess {
			*excess -= n
			gone[e.ID] = true
			b.do(Action{Kind: Detach, ENI: e.ID})
		}
	}
	return gone
}

// unused are the ENIs that serve nobody and may go, by falling index.
func (b *planner) unused() []ENI {
	return sorted(b.enis, func(e ENI) bool {
		return serves(e, b.policy) && !e.Primary && e.Used+e.Cooling+e.Withdrawn == 0
	}, func(x, y ENI) int { return -byIndex(x, y) })
}

// tidy deletes detached ENIs that the plan has no use for and puts the
// attributes of the others right.
func (b *planner) tidy() {
	for _, e := range sorted(b.enis, func(e ENI) bool { return e.Ours && e.Phase == Detached && !e.JustMade && !b.claimed[e.ID] }, byIndex) {
		b.do(Action{Kind: Delete, ENI: e.ID})
	}
	for _, e := range sorted(b.enis, func(e ENI) bool { return e.Ours && !e.Primary && e.Phase == Attached }, byIndex) {
		if e.WrongTags {
			b.do(Action{Kind: Retag, ENI: e.ID})
		}
		if e.WrongDeleteOnTermination {
			b.do(Action{Kind: SetDeleteOnTermination, ENI: e.ID})
		}
	}
}
