package plan

import (
	"github.com/berthnet/berth/internal/ec2/cloud"
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
	_, assign, _ := b.move()
	return len(assign) > 0
}

// Moves tells whether an action is part of a move: no pod needs what it assigns.
func (d Plan) Moves(a Action) bool { return a.Kind == Assign && d.Needed == 0 }

// move finds the ENI with the highest index that can be emptied, what is to be
// assigned to the others for that, and for how many pods that is enough.
func (b *planner) move() (from ENI, assign []Action, gain int) {
	if b.demand.WholeENIs {
		return from, nil, 0
	}
	surplus := b.tally.total - b.demand.Keep
	for _, e := range b.unused() {
		short := b.capacity.total(e) - surplus
		if short <= 0 {
			break // it goes by itself, once that has lasted
		}
		if assign, gain := b.elsewhere(e, short); assign != nil {
			return e, assign, gain
		}
	}
	return from, nil, 0
}

// elsewhere is how addresses for n pods are had on the ENIs besides e; nil if they
// cannot. Those that would give addresses back before e are none to put more on.
func (b *planner) elsewhere(e ENI, n int) (out []Action, gain int) {
	taken := map[string]int{} // by subnet
	fits := func(o ENI) bool {
		return b.capacity.grows(o) && o.ID != e.ID && (o.Primary || o.Used > 0 || o.Index < e.Index)
	}
	for _, o := range sorted(b.enis, fits, byIndex) {
		sn := b.subnets.of(o.Subnet)
		more, a := b.capacity.extend(b.capacity.held(o), sn, sn.Free-taken[o.Subnet], n-gain)
		if more == 0 || b.capacity.byPrefix() && a.Addresses > 0 { // never single addresses in place of a prefix
			continue
		}
		gain += more
		taken[o.Subnet] += Count(a)
		b.capacity.each(a, func(a cloud.Amount) { out = append(out, Action{Kind: Assign, ENI: o.ID, Amount: a}) })
		if gain >= n {
			return out, gain
		}
	}
	return nil, 0
}
