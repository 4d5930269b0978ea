// Package plan decides what to do next about the ENIs of one node. It is a
// function of values: it makes no call, reads no clock, keeps nothing and logs
// nothing. The linter refuses any import by which it could.
//
//	state.go     a node as a plan sees it
//	action.go    what a plan asks for
//	plan.go      limits, policy and state to actions: growth
//	shrink.go    ... and what is given back, and which ENI is emptied onto the others
//	drain.go     ... and which outdated ENIs are emptied
//	trunk.go     ... and that the node has its trunk
//	supply.go    how many addresses ENIs can have
//	places.go    device indexes, and how many more ENIs there may be
//	subnets.go   in which subnets new ENIs may be created
//	shortage.go  why pods that wait get nothing
//	excess.go    how much of an excess has lasted long enough to be given back;
//	             the reconciler keeps it from plan to plan (planning.go of package eni)
package plan

import (
	"cmp"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// Plan is what to do next for a node, and how the node does.
type Plan struct {
	Actions    []Action
	Available  int  // for how many pods there are addresses, used ones included
	Used       int  // of those; cooling ones too
	Needed     int  // for how many more the policy wants some
	Exhausted  bool // the node lacks addresses, or its trunk, that it has room for and its subnets do not
	AtCapacity bool // nothing can give the node what it would have without limits
}

// Make returns what to do next to bring a node to its policy. It is pure: the
// same input gives the same actions, in the order in which to do them. Within
// one plan each ENI is asked for addresses at most once a family.
//
// Growth: first ENIs of ours that are begun but not attached, then room on
// attached ENIs by device index, then new ENIs, each with as many addresses as
// are still needed. Shrinking, only without a need to grow and only what
// Release allows: whole ENIs with nothing used or cooling, the highest index
// first, then free addresses of the emptiest ENI, the primary last, since it
// can never be given back; what cools there is waited for. If an ENI is kept only
// for addresses that are to be free, as many are assigned to others first (move.go).
// Detached ENIs of ours that nobody needs are deleted. Outdated ENIs are emptied if
// State.Drain says so (drain.go). A trunk comes last (trunk.go).
//
// What is asked for at once is min(free in the subnet, room on the ENI, needed +
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

// planner is the working copy of a state that a plan's steps spend.
type planner struct {
	capacity capacity
	places   places
	subnets  subnets
	demand   ipam.Demand
	tally    tally
	need     int // pods for which addresses are still to be asked for; 0 when the target is met
	asked    int // pods for which the plan asks for some so far
	enis     []ENI
	moves    bool // State.Moves
	release  int
	claimed  map[string]bool // detached ENIs that the plan attaches
	actions  []Action
}

func newPlanner(l cloud.Limits, p ipam.Policy, s State) *planner {
	return plannerOf(l, p, s.drained(l, p))
}

// plannerOf returns newPlanner for a state whose draining ENIs are known.
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
	b.attachBegun()
	for _, e := range sorted(b.enis, b.capacity.grows, byIndex) {
		b.assign(e)
	}
	for b.need > 0 && b.create() {
	}
}

// attachBegun finishes ENIs that were created but not attached.
func (b *planner) attachBegun() {
	for _, i := range b.begun() {
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

// attachUsed attaches ENIs again that somebody took off the instance although pods that
// run have addresses of theirs.
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

// cutOff reports whether pods that run have addresses of a detached ENI.
func (e ENI) cutOff() bool { return e.Ours && e.Phase == Detached && e.Used > 0 }

// begun returns the places of the ENIs that were created but not attached.
func (b *planner) begun() (out []int) {
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

// create plans a new ENI and reports whether it could.
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
	// While prefixes cannot be had, a warm target is met as far as attached
	// ENIs have room; a new ENI is for pods that wait, or when nothing is free.
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

// spend notes that addresses for pods are asked for in a subnet.
func (b *planner) spend(sn *Subnet, pods int, more cloud.Amount) {
	b.need -= pods
	b.asked += pods
	sn.Free -= Count(more)
}

// makeRoomForPrefixes gives single addresses back whose slots a prefix can
// take: how a node that a fragmented subnet filled with singles recovers.
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

// subnetForNew picks the subnet for a new ENI; nil: none can have one.
func (b *planner) subnetForNew() *Subnet {
	return b.subnets.forNew(min(b.need-b.capacity.bonus, max(1, b.tally.Waiting-b.tally.free())))
}

// hasRoom reports whether the instance, were its subnets endless, could grow.
func (b *planner) hasRoom() bool {
	_, ok := b.places.free()
	return ok || slices.ContainsFunc(b.enis, b.capacity.roomOn)
}
