// Package plan decides what to do next for the ENIs of one node. It is a pure function: it makes no calls, reads no
// clock, keeps no state and logs nothing. The linter rejects any import that would allow this.
//
//	state.go     input: the state of a node
//	action.go    output: the actions of a plan
//	plan.go      limits, policy and state to actions: growth
//	shrink.go    ... releases, moves of addresses off an ENI, and the measurement of how long excess has
//	             lasted, which the reconciler keeps between plans (planning.go of package eni)
//	drain.go     ... draining of outdated ENIs
//	trunk.go     ... the trunk
//	supply.go    how many addresses ENIs can have
//	places.go    device indexes, and how many more ENIs fit
//	subnets.go   in which subnets new ENIs may be created
//	shortage.go  why waiting pods get no address
package plan

import (
	"cmp"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// Plan lists the next actions for a node, and describes its supply.
type Plan struct {
	Actions    []Action
	Available  int  // pods that the node has addresses for, including used ones
	Used       int  // used or cooling addresses among those
	Needed     int  // further pods that the policy demands addresses for
	Exhausted  bool // the node has room for more addresses or its trunk, but its subnets do not
	AtCapacity bool // limits keep the node from its target, and no action changes that
}

// Make returns the actions that bring a node closer to its policy. It is pure: the same input gives the same actions,
// in the order in which to do them. A plan requests addresses for each ENI at most once per family.
//
// Growth comes in this order: Berth's ENIs that were created but not attached, room on attached ENIs by device index,
// new ENIs, each with as many addresses as are still needed.
//
// The plan shrinks only if there is no need to grow, and only by the amount of Release: first whole ENIs with nothing
// used or cooling, the highest index first; then free addresses of the emptiest ENI. The primary comes last, because
// it can never be detached; its cooling addresses are waited for. If an ENI is kept only for addresses that the
// policy keeps free, the same number is first assigned to other ENIs (shrink.go).
//
// Berth's detached ENIs that are not needed are deleted. Outdated ENIs are drained according to State.Drain
// (drain.go). The trunk comes last (trunk.go).
//
// The amount of one request is min(free in the subnet, room on the ENI, needed + max-above-watermark) (Cilium, "AWS
// ENI", "IP Allocation").
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

// planner collects the actions of a plan for a state, which it does not change.
type planner struct {
	capacity capacity
	places   places
	subnets  subnets
	demand   ipam.Demand
	tally    tally
	need     int   // pods for which addresses must still be requested; 0 when the target is met
	asked    int   // pods for which the plan requests addresses so far
	enis     []ENI // those of the state, unless reach changed them
	moves    bool  // State.Moves
	release  int
	claimed  []string // detached ENIs that the plan attaches
	actions  []Action
}

func newPlanner(l cloud.Limits, p ipam.Policy, s State) planner {
	return plannerOf(l, p, s.drained(l, p))
}

// plannerOf is newPlanner for a state with known draining ENIs.
func plannerOf(l cloud.Limits, p ipam.Policy, s State) planner {
	b := planner{
		capacity: capacity{limits: l, policy: p, supplies: supplies(l, p)}, places: newPlaces(l, p, s),
		subnets: subnets{slices.Clone(s.Subnets)}, release: s.Release, moves: s.Moves, enis: s.ENIs,
	}
	if s.PrimaryServes {
		b.capacity.bonus = 1
	}
	b.tally, b.demand, b.need = s.needs(l, p)
	return b
}

// needs returns what a state with known draining ENIs has, the policy's demand, and planner.need.
func (s State) needs(l cloud.Limits, p ipam.Policy) (t tally, d ipam.Demand, need int) {
	t = s.tally(p)
	d = Demand(l, p, t.Usage)
	if t.total < d.Want {
		need = d.Request - t.total
	}
	return t, d, need
}

// none is an empty amount.
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

// extendAll requests addresses wherever there is room.
func (b *planner) extendAll() {
	b.attachCreated()
	for _, e := range sorted(b.enis, b.capacity.grows, byIndex) {
		b.assign(*e)
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
		b.claimed = append(b.claimed, e.ID)
		b.places.take(index)
		b.need -= b.capacity.total(e)
		b.asked += b.capacity.total(e)
		b.do(Action{Kind: Attach, ENI: e.ID, Index: index})
	}
}

// attachUsed reattaches ENIs that someone detached although running pods have their addresses.
func (b *planner) attachUsed() {
	for _, e := range sorted(b.enis, func(e ENI) bool { return e.cutOff() && !e.Trunk && !e.Refused }, byIndex) {
		index, ok := b.places.free()
		if !ok {
			return
		}
		b.claimed = append(b.claimed, e.ID)
		b.places.take(index)
		free := max(0, b.capacity.total(*e)-e.Used)
		b.need -= free
		b.asked += free
		b.do(Action{Kind: Attach, ENI: e.ID, Index: index})
	}
}

// cutOff reports whether running pods have addresses of a detached ENI.
func (e ENI) cutOff() bool { return e.Ours && e.Phase == Detached && e.Used > 0 }

// unattached returns the indexes in b.enis of ENIs that were created but not attached.
func (b *planner) unattached() (out []int) {
	for i, e := range b.enis {
		if e.Ours && !e.Trunk && e.Phase == Detached && !e.Refused && e.drain == stays && !slices.Contains(b.claimed, e.ID) {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(i, j int) int {
		x, y := b.enis[i], b.enis[j]
		return cmp.Or(cmp.Compare(b.capacity.total(y), b.capacity.total(x)), cmp.Compare(x.ID, y.ID))
	})
	return out
}

// assign fills the room on an attached ENI.
func (b *planner) assign(e ENI) {
	if b.need <= 0 {
		return
	}
	sn := b.subnets.of(e.Subnet)
	gain, more := b.capacity.extend(b.capacity.held(e), sn, sn.Free, b.need)
	b.spend(sn, gain, more)
	b.capacity.each(more, func(a cloud.Amount) { b.do(Action{Kind: Assign, ENI: e.ID, Amount: a}) })
}

// create plans a new ENI, and reports whether that was possible.
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
	gain, more := b.capacity.extend(h, sn, sn.Free-1, b.need-own) // minus the ENI's primary address
	// Without prefixes, a warm target is met only as far as attached ENIs have room; a new ENI is created only for
	// waiting pods, or if no address is free.
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

// spend records a request for addresses in a subnet.
func (b *planner) spend(sn *Subnet, pods int, more cloud.Amount) {
	b.need -= pods
	b.asked += pods
	sn.Free -= Count(more)
}

// makeRoomForPrefixes releases single addresses whose slots a prefix can take. This is how a node recovers after a
// fragmented subnet filled it with single addresses.
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

// subnetForNew returns the subnet for a new ENI; nil if there is none.
func (b *planner) subnetForNew() *Subnet {
	return b.subnets.forNew(&b.capacity, min(b.need-b.capacity.bonus, max(1, b.tally.Waiting-b.tally.free())))
}

// hasRoom reports whether the instance could grow if its subnets were unlimited.
func (b *planner) hasRoom() bool {
	_, ok := b.places.free()
	return ok || slices.ContainsFunc(b.enis, b.capacity.roomOn)
}
