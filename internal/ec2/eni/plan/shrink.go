package plan

import (
	"cmp"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipfamily"
)

// shrink gives back excess that has persisted. See Plan for the order.
func (b *planner) shrink() {
	excess := min(b.tally.total-b.demand.Keep, b.release)
	gone := b.detachUnused(&excess)
	given := map[string]bool{} // one change an ENI and plan
	b.drainFree()
	if b.moves && len(gone) == 0 {
		excess = min(excess, b.shift(gone, given))
	}
	if !b.demand.WholeENIs && excess > 0 {
		b.reduce(excess, gone, given)
	}
	b.trim(gone, given)
}

// reduce gives free addresses back, for as many pods as are in excess. What that
// leaves of the other family goes by trim. An outdated ENI that is to go keeps what it
// has until it is drained: it can have no other in its place, and a node with such
// remainders on all ENIs could spare none.
func (b *planner) reduce(excess int, gone, given map[string]bool) {
	lead := b.policy.Families.Families()[0]
	emptiest := sorted(b.enis, func(e ENI) bool { return b.grows(e) && !gone[e.ID] && !given[e.ID] },
		func(x, y ENI) int {
			if x.Primary != y.Primary {
				return map[bool]int{true: 1, false: -1}[x.Primary]
			}
			return cmp.Or(cmp.Compare(x.Used, y.Used), -byIndex(x, y))
		})
	for _, e := range emptiest {
		share, now := b.shareOf(e, excess, lead)
		if now > 0 {
			b.do(Action{Kind: Unassign, ENI: e.ID, Amount: cloud.AmountIn(lead, now, 0)})
			given[e.ID] = true
		}
		excess -= share
	}
	unit := prefixAddresses[lead]
	for _, e := range emptiest {
		_, prefixes := e.Free.Of(lead)
		if n := min(excess/unit, prefixes); n > 0 && !given[e.ID] {
			b.do(Action{Kind: Unassign, ENI: e.ID, Amount: cloud.AmountIn(lead, 0, n)})
			given[e.ID] = true
			excess -= n * unit
		}
	}
}

// shareOf is how much of the excess an ENI is to give back, and how many single
// addresses of a family, that which leads, can go for that now. What cools is part
// of the share: it goes once it has cooled, and until then no fuller ENI gives
// anything in its place. An ENI that only cools, and fits into the excess whole,
// waits to go as one.
func (b *planner) shareOf(e ENI, excess int, lead ipfamily.Family) (share, now int) {
	if !e.Primary && e.Used == 0 && e.Cooling > 0 && b.total(e) <= excess {
		return b.total(e), 0
	}
	free, _ := e.Free.Of(lead)
	unused := free
	if _, prefixes := e.Of(lead); prefixes == 0 {
		unused += e.Cooling
	}
	share = min(excess, unused)
	return share, min(share, free)
}

// trim gives back what an ENI has of one family and no pod can have, as it lacks
// the other; and what it has of a family that pods do not get any more. Single IPv6
// addresses of the latter kind stay, as does all IPv6 of the primary ENI: a subnet
// or a person may have given them to the instance.
func (b *planner) trim(gone, given map[string]bool) {
	for _, e := range sorted(b.enis, func(e ENI) bool { return b.stays(e) && !gone[e.ID] && !given[e.ID] }, byIndex) {
		for _, f := range []ipfamily.Family{ipfamily.IPv6, ipfamily.IPv4} {
			if a := b.surplusOf(e, f); a != none {
				b.do(Action{Kind: Unassign, ENI: e.ID, Amount: a})
				break // one change an ENI and plan
			}
		}
	}
}

// surplusOf is what trim gives back of a family.
func (b *planner) surplusOf(e ENI, f ipfamily.Family) cloud.Amount {
	addresses, prefixes := e.Free.Of(f)
	wanted := false
	for _, s := range b.supplies {
		if s.family != f {
			continue
		}
		wanted = true
		surplus := e.count(f) - b.total(e)
		prefixes = min(prefixes, surplus/prefixAddresses[f])
		if addresses = min(addresses, surplus); s.unit > 1 {
			addresses = 0 // they will be of use, or go with an excess
		}
	}
	if f == ipfamily.IPv6 && !wanted {
		addresses = 0
		if e.Primary {
			prefixes = 0
		}
	}
	if addresses > 0 {
		prefixes = 0 // one kind
	}
	return cloud.AmountIn(f, addresses, prefixes)
}

// detachUnused detaches ENIs that nothing needs, if the target is still met
// without them. One without any address serves nobody and needs no patience.
func (b *planner) detachUnused(excess *int) map[string]bool {
	gone := map[string]bool{}
	for _, e := range b.unused() {
		if n := b.total(e); n == 0 || n <= *excess {
			*excess -= n
			gone[e.ID] = true
			b.do(Action{Kind: Detach, ENI: e.ID})
		}
	}
	return gone
}

// unused are the ENIs that serve nobody and may go: outdated ones first, then by
// falling index.
func (b *planner) unused() []ENI {
	return sorted(b.enis, func(e ENI) bool { return b.stays(e) && e.unused() },
		func(x, y ENI) int { return cmp.Or(-cmp.Compare(x.drain, y.drain), -byIndex(x, y)) })
}

// stays tells whether an ENI serves pods and is not drained.
func (b *planner) stays(e ENI) bool { return serves(e, b.policy) && e.drain != draining }

// unused tells whether an ENI serves nobody and may go.
func (e ENI) unused() bool { return !e.Primary && e.Used+e.Cooling == 0 && e.Withdrawn == none }

// tidy deletes detached ENIs that the plan has no use for and puts the
// attributes of the others right.
func (b *planner) tidy(s State) {
	for _, e := range sorted(b.enis, func(e ENI) bool {
		return e.Ours && e.Phase == Detached && !e.JustMade && !e.cutOff() && !b.claimed[e.ID]
	}, byIndex) {
		b.do(Action{Kind: Delete, ENI: e.ID})
	}
	for _, e := range sorted(b.enis, func(e ENI) bool { return e.Ours && !e.Primary && e.Phase == Attached }, byIndex) {
		if e.WrongTags {
			b.do(Action{Kind: Retag, ENI: e.ID})
		}
		if e.OtherGroups && s.FollowGroups {
			b.do(Action{Kind: SetGroups, ENI: e.ID})
		}
		if e.WrongDeleteOnTermination {
			b.do(Action{Kind: SetDeleteOnTermination, ENI: e.ID})
		}
	}
}
