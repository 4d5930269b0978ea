// Package plan decides what to do next for the ENIs of one node. It is a
// function of values: it makes no calls, reads no clock, keeps no state and logs
// nothing. The linter rejects any import that would allow it.
//
//	state.go     a node as a plan sees it
//	action.go    what a plan asks for
//	plan.go      limits, policy and state to actions: growth
//	shrink.go    ... releases, the ENI whose addresses move to the others, and how much
//	             of an excess has lasted for long enough, which the reconciler keeps
//	             from plan to plan (planning.go of package eni)
//	drain.go     ... outdated ENIs that are emptied
//	trunk.go     ... the trunk
//	supply.go    how many addresses ENIs can have
//	places.go    device indexes, and how many more ENIs there may be
//	subnets.go   in which subnets new ENIs may be created
//	shortage.go  why waiting pods get nothing
package plan

import (
	"cmp"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// Plan is what to do next for a node, and how well the node is supplied.
type Plan struct {
	Actions    []Action
	Available  int  // pods that the node has addresses for, used ones included
	Used       int  // of those, used or cooling
	Needed     int  // further pods that the policy demands addresses for
	Exhausted  bool // the node has room for more addresses, or its trunk, and its subnets have not
	AtCapacity bool // the node has less than it would have without limits, and no action changes that
}

// Make returns what to do next to bring a node to its policy. It is pure: the same input gives the same
// actions, in the order in which to do them. Within one plan each ENI is asked for addresses at most
// once per family.
//
// Growth comes in this order: ENIs of ours that were created but not attached, room on attached ENIs by
// device index, new ENIs, each with as many addresses as are still needed.
//
// The plan shrinks only without a need to grow, and only by what Release allows: first whole ENIs with
// nothing used or cooling, the highest index first; then free addresses of the emptiest ENI. The
// primary comes last, since it can never be detached; its cooling addresses are waited for. If an ENI
// is kept only for addresses that are to be free, as many are assigned to others first (shrink.go).
//
// Detached ENIs of ours that nobody needs are deleted. Outdated ENIs are emptied if State.Drain says so
// (drain.go). The trunk comes last (trunk.go).
//
// The amount asked for at once is min(free in the subnet, room on the ENI, needed +
// max-above-watermark) (Cilium, "AWS ENI", "IP Allocation").
func Make(l cloud.Limits, p ipam.Policy, s State) Plan {
	b := newPlanner(l, p, s)
	b.attachUsed()
	d := Plan{Available: b.tally.total, Used: b.tally.Used + b.tally.Cooling, Needed: max(0, b.demand.Want-b.tally.total)}
	if b.need > 0 {
		b.grow()
		d.Exhausted = len(b.actions) == 0 && b.hasRoom()
		b.drainShort()
	} else {
		b.shrink()
	}
	d.AtCapacity = len(b.actions) == 0 && Demand(l, p.Uncapped(), b.tally.Usage).Want > b.tally.total
	d.Exhausted = b.keepTrunk(s) || d.Exhausted
	b.tidy(s)
	d.Actions = b.actions
	return d
}

// planner is the working copy of a state, from which the steps of a plan are taken.
type planner struct {
	capacity capacity
	places   places
	subnets  subnets
	demand   ipam.Demand
	tally    tally
	need     int // pods that addresses are still to be asked for; 0 when the target is met
	asked    int // pods that the plan asks for addresses so far
	enis     []ENI
	moves    bool // State.Moves
	release  int
	claimed  map[string]bool // detached ENIs that the plan attaches
	actions  []Action
}

func newPlanner(l cloud.Limits, p ipam.Policy, s State) *planner {
	return plannerOf(l, p, s.drained(l, p))
}

// plannerOf is newPlanner for a state whose draining ENIs are known.
func plannerOf(l cloud.Limits, p ipam.Policy, s State) *planner {
	b := &planner{
		capacity: capacity{limits: l, policy: p, supplies: supplies(l, p)}, places: newPlaces(l, p, s),
		tally: s.tally(p), release: s.Release, moves: s.Moves, enis: slices.Clone(s.ENIs), claimed: map[string]bool{},
	}
	if s.PrimaryServes {
		b.capacity.bonus = 1
	}
	b.subnets = subnets{capacity: &b.capacity, list: slices.Clone(s.Subnets)}
	b.demand = Demand(l, p, b.tally.Usage)
	if b.tally.total < b.demand.Want {
		b.need = b.demand.Request - b.tally.total
	}
	return b
}

// none is an Amount of nothing.
var none cloud.Amount

func (b *planner) do(a Action) { b.actions = append(b.actions, a) }

func (b *planner) grow() {
	b.extendAll()
	if b.need > 0 && len(b.actions) == 0 {
		b.makeRoomForPrefixes()
	}
	if len(b.actions) == 0 {
		b.growOutdated()
	}
}

// extendAll asks for addresses wherever there is room.
func (b *planner) extendAll() {
	b.attachCreated()
	for _, e := range sorted(b.enis, b.capacity.grows, byIndex) {
		b.assign(e)
	}
	for b.need > 0 && b.create() {
	}
}

// attachCreated attaches ENIs that were created but not attached.
func (b *planner) attachCreated() {
	for _, i := range b.unattached() {
		e := b.enis[i]
		index, ok := b.places.free()
		if !ok || b.need <= 0 {
			return
		}
		b.claimed[e.ID] = true
		b.places.take(index)
		b.need -= b.capacity.total(e)
		b.asked += b.capacity.total(e)
		b.do(Action{Kind: Attach, ENI: e.ID, Index: index})
	}
}

// attachUsed attaches ENIs again that someone detached although running pods have their addresses.
func (b *planner) attachUsed() {
	for _, e := range sorted(b.enis, func(e ENI) bool { return e.cutOff() && !e.Trunk && !e.Refused }, byIndex) {
		index, ok := b.places.free()
		if !ok {
			return
		}
		b.claimed[e.ID] = true
		b.places.take(index)
		free := max(0, b.capacity.total(e)-e.Used)
		b.need -= free
		b.asked += free
		b.do(Action{Kind: Attach, ENI: e.ID, Index: index})
	}
}

// cutOff reports whether running pods have addresses of a detached ENI.
func (e ENI) cutOff() bool { return e.Ours && e.Phase == Detached && e.Used > 0 }

// unattached returns the indexes in b.enis of the ENIs that were created but not attached.
func (b *planner) unattached() (out []int) {
	for i, e := range b.enis {
		if e.Ours && !e.Trunk && e.Phase == Detached && !e.Refused && e.drain == stays && !b.claimed[e.ID] {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(i, j int) int {
		x, y := b.enis[i], b.enis[j]
		return cmp.Or(cmp.Compare(b.capacity.total(y), b.capacity.total(x)), cmp.Compare(x.ID, y.ID))
	})
	return out
}

// assign fills room on an attached ENI.
func (b *planner) assign(e ENI) {
	if b.need <= 0 {
		return
	}
	sn := b.subnets.of(e.Subnet)
	gain, more := b.capacity.extend(b.capacity.held(e), sn, sn.Free, b.need)
	b.spend(sn, gain, more)
	b.capacity.each(more, func(a cloud.Amount) { b.do(Action{Kind: Assign, ENI: e.ID, Amount: a}) })
}

// create plans a new ENI, and reports whether it could.
func (b *planner) create() bool {
	index, ok := b.places.free()
	if !ok {
		return false
	}
	sn := b.subnetForNew()
	if sn == nil {
		return false
	}
	var h holding
	h.count[ipfamily.IPv4] = b.capacity.bonus
	own := b.capacity.pods(h)
	gain, more := b.capacity.extend(h, sn, sn.Free-1, b.need-own) // less the ENI's primary address
	// While there are no prefixes, a warm target is met as far as attached
	// ENIs have room; a new ENI is only for waiting pods, or if no address is free.
	free := b.tally.free() + b.asked + own
	wanting := b.tally.Waiting > free || free == 0
	if own+gain == 0 || b.capacity.byPrefix() && more.Prefixes == 0 && !wanting {
		return false
	}
	sn.Free--
	b.spend(sn, own+gain, more)
	b.places.take(index)
	b.do(Action{Kind: Create, Subnet: sn.ID, Index: index, Amount: more})
	return true
}

// spend records that addresses for pods are asked for in a subnet.
func (b *planner) spend(sn *Subnet, pods int, more cloud.Amount) {
	b.need -= pods
	b.asked += pods
	sn.Free -= Count(more)
}

// makeRoomForPrefixes releases single addresses whose slots a prefix can take. A node that a fragmented
// subnet filled with single addresses recovers in this way.
func (b *planner) makeRoomForPrefixes() {
	for _, s := range b.capacity.supplies {
		if s.unit == 1 {
			continue
		}
		for _, e := range sorted(b.enis, func(e ENI) bool { return b.capacity.grows(e) && e.count(s.family) == b.capacity.total(e) }, byIndex) {
			singles, _ := e.Free.Of(s.family)
			room := holding{} // as if the singles' slots were free
			room.taken[s.family] = s.slots - singles
			sn := b.subnets.of(e.Subnet)
			if _, n := s.more(room, sn, sn.Free, b.need).Of(s.family); n > 0 {
				b.do(Action{Kind: Unassign, ENI: e.ID, Amount: cloud.AmountIn(s.family, n, 0)})
				return
			}
		}
	}
}

// subnetForNew returns the subnet for a new ENI; nil: there is none.
func (b *planner) subnetForNew() *Subnet {
	return b.subnets.forNew(min(b.need-b.capacity.bonus, max(1, b.tally.Waiting-b.tally.free())))
}

// hasRoom reports whether the instance could grow if its subnets were unlimited.
func (b *planner) hasRoom() bool {
	_, ok := b.places.free()
	return ok || slices.ContainsFunc(b.enis, b.capacity.roomOn)
}
