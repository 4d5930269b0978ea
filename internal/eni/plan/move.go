package plan

import (
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/ipam"
)

// Pods end in any order, so an ENI may be kept only for the addresses that the
// policy keeps free, although ENIs with lower indexes have room for as many. Then
// these are assigned there first. That makes an excess, by which the ENI goes as a
// whole. Each move ends an ENI, and none is created while there is room, so moves
// come to an end.

// Movable tells whether the node has an ENI that could go if others took its
// addresses over.
func Movable(l cloud.Limits, p ipam.Policy, s State) bool {
	b := newPlanner(l, p, s)
	if b.need > 0 {
		return false
	}
	_, assign := b.move()
	return len(assign) > 0
}

// shift plans a move if there is one, notes the ENIs that it concerns, and tells
// how much more is in excess.
func (b *planner) shift(gone, given map[string]bool) (excess int) {
	excess = b.tally.total - b.demand.Keep
	from, assign := b.move()
	if len(assign) == 0 {
		return excess
	}
	gone[from.ID] = true
	excess -= from.total()
	for _, a := range assign {
		given[a.ENI] = true
		excess += a.Weight()
		b.do(a)
	}
	return excess
}

// Moves tells whether an action is part of a move: no pod needs what it assigns.
func (d Plan) Moves(a Action) bool { return a.Kind == Assign && d.Needed == 0 }

// move finds the ENI with the highest index that can be emptied, and what is to be
// assigned to the others for that.
func (b *planner) move() (from ENI, assign []Action) {
	if b.demand.WholeENIs {
		return from, nil
	}
	surplus := b.tally.total - b.demand.Keep
	for _, e := range b.unused() {
		short := e.total() - surplus
		if short <= 0 {
			break // it goes by itself, once that has lasted
		}
		if assign := b.elsewhere(e, short); assign != nil {
			return e, assign
		}
	}
	return from, nil
}

// elsewhere is how n addresses are had on the ENIs besides e; nil if they
// cannot. Those that would give addresses back before e are none to put more on.
func (b *planner) elsewhere(e ENI, n int) (out []Action) {
	taken := map[string]int{} // by subnet
	fits := func(o ENI) bool {
		return serves(o, b.policy) && o.ID != e.ID && (o.Primary || o.Used > 0 || o.Index < e.Index)
	}
	for _, o := range sorted(b.enis, fits, byIndex) {
		room, sn := b.slots-o.Addresses-o.Prefixes-o.Withdrawn, b.subnet(o.Subnet)
		a := Action{Kind: Assign, ENI: o.ID}
		if unit, free := b.demand.Unit, sn.Free-taken[o.Subnet]; unit == 1 {
			a.Addresses = max(0, min(n, room, free))
		} else if !sn.NoPrefix { // never single addresses in place of a prefix
			a.Prefixes = max(0, min((n+unit-1)/unit, room, free/unit))
		}
		if w := a.Weight(); w > 0 {
			n -= w
			taken[o.Subnet] += w
			out = append(out, a)
		}
		if n <= 0 {
			return out
		}
	}
	return nil
}
