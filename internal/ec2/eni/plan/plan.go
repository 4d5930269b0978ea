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

// Make tells what to do next to bring a node to its policy. It is pure: the
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
	limits cloud.Limits
	policy ipam.Policy
	demand ipam.Demand
	tally  tally
	// supplies are those of the families that pods get, IPv6 first.
	supplies []supply
	need     int // pods for which addresses are still to be asked for; 0 when the target is met
	asked    int // pods for which the plan asks for some so far
	enis     []ENI
	subnets  []Subnet
	indexes  map[int]bool // device indexes taken
	ours     int          // ENIs that count towards MAX_ENI
	reserved int          // ENIs for which a place is kept: the trunk
	refused  bool         // State.NoMoreENIs
	moves    bool         // State.Moves
	bonus    int          // IPv4 addresses for pods that a new ENI brings by itself
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
		limits: l, policy: p, supplies: supplies(l, p), tally: s.tally(p), release: s.Release, refused: s.NoMoreENIs, moves: s.Moves,
		enis: slices.Clone(s.ENIs), subnets: slices.Clone(s.Subnets),
		indexes: map[int]bool{}, claimed: map[string]bool{},
	}
	if s.PrimaryServes {
		b.bonus = 1
	}
	if s.lacksTrunk() {
		b.reserved = 1
	}
	b.demand = Demand(l, p, b.tally.Usage)
	if b.tally.total < b.demand.Want {
		b.need = b.demand.Request - b.tally.total
	}
	for _, e := range s.ENIs {
		if e.Phase == Detached {
			continue
		}
		b.indexes[e.Index] = true
		if e.Ours {
			b.ours++
		}
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
	for _, e := range sorted(b.enis, b.grows, byIndex) {
		b.assign(e)
	}
	for b.need > 0 && b.create() {
	}
}

// grows tells whether an ENI may be given more addresses for pods.
func (b *planner) grows(e ENI) bool { return serves(e, b.policy) && e.drain == stays }

// attachBegun finishes ENIs that were created but not attached.
func (b *planner) attachBegun() {
	for _, i := range b.begun() {
		e := b.enis[i]
		index, ok := b.freeIndex()
		if !ok || b.need <= 0 {
			return
		}
		b.claimed[e.ID] = true
		b.useIndex(index)
		b.need -= b.total(e)
		b.asked += b.total(e)
		b.do(Action{Kind: Attach, ENI: e.ID, Index: index})
	}
}

// attachUsed attaches ENIs again that somebody took off the instance although pods that
// run have addresses of theirs.
func (b *planner) attachUsed() {
	for _, e := range sorted(b.enis, func(e ENI) bool { return e.cutOff() && !e.Trunk && !e.Refused }, byIndex) {
		index, ok := b.freeIndex()
		if !ok {
			return
		}
		b.claimed[e.ID] = true
		b.useIndex(index)
		free := max(0, b.total(e)-e.Used)
		b.need -= free
		b.asked += free
		b.do(Action{Kind: Attach, ENI: e.ID, Index: index})
	}
}

// cutOff tells whether pods that run have addresses of a detached ENI.
func (e ENI) cutOff() bool { return e.Ours && e.Phase == Detached && e.Used > 0 }

// begun are the places of the ENIs that were created but not attached.
func (b *planner) begun() (out []int) {
	for i, e := range b.enis {
		if e.Ours && !e.Trunk && e.Phase == Detached && !e.Refused && e.drain == stays && !b.claimed[e.ID] {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(i, j int) int {
		x, y := b.enis[i], b.enis[j]
		return cmp.Or(cmp.Compare(b.total(y), b.total(x)), cmp.Compare(x.ID, y.ID))
	})
	return out
}

// total is for how many pods an ENI has addresses.
func (b *planner) total(e ENI) int { return e.total(b.policy.Families) }

// assign fills room on an attached ENI.
func (b *planner) assign(e ENI) {
	if b.need <= 0 {
		return
	}
	sn := b.subnet(e.Subnet)
	gain, more := b.extend(b.held(e), sn, sn.Free, b.need)
	b.spend(sn, gain, more)
	b.each(more, func(a cloud.Amount) { b.do(Action{Kind: Assign, ENI: e.ID, Amount: a}) })
}

// create plans a new ENI and tells whether it could.
func (b *planner) create() bool {
	index, ok := b.freeIndex()
	if !ok {
		return false
	}
	sn := b.subnetForNew()
	if sn == nil {
		return false
	}
	var h holding
	h.count[ipfamily.IPv4] = b.bonus
	own := b.pods(h)
	gain, more := b.extend(h, sn, sn.Free-1, b.need-own) // less the ENI's primary address
	// While prefixes cannot be had, a warm target is met as far as attached
	// ENIs have room; a new ENI is for pods that wait, or when nothing is free.
	free := b.tally.free() + b.asked + own
	wanting := b.tally.Waiting > free || free == 0
	if own+gain == 0 || b.byPrefix() && more.Prefixes == 0 && !wanting {
		return false
	}
	sn.Free--
	b.spend(sn, own+gain, more)
	b.useIndex(index)
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
	for _, s := range b.supplies {
		if s.unit == 1 {
			continue
		}
		for _, e := range sorted(b.enis, func(e ENI) bool { return b.grows(e) && e.count(s.family) == b.total(e) }, byIndex) {
			singles, _ := e.Free.Of(s.family)
			room := holding{} // as if the singles' slots were free
			room.taken[s.family] = s.slots - singles
			sn := b.subnet(e.Subnet)
			if _, n := s.more(room, sn, sn.Free, b.need).Of(s.family); n > 0 {
				b.do(Action{Kind: Unassign, ENI: e.ID, Amount: cloud.AmountIn(s.family, n, 0)})
				return
			}
		}
	}
}

// freeIndex finds the lowest free device index from the first that serves
// pods, if the instance and MAX_ENI have room for one more ENI besides those for which
// a place is kept. An index beyond those of as many ENIs as the instance may have is
// not tried.
func (b *planner) freeIndex() (int, bool) {
	if b.noPlace(b.reserved) {
		return 0, false
	}
	index := max(1, b.policy.FirstInterfaceIndex)
	for b.indexes[index] {
		index++
	}
	return index, index < b.limits.MaxENIs
}

// noPlace tells whether there can be no more ENI besides so many that are to come.
func (b *planner) noPlace(reserved int) bool {
	return b.refused || len(b.indexes)+reserved >= b.limits.MaxENIs || b.policy.MaxENI > 0 && b.ours+reserved >= b.policy.MaxENI
}

// beyond tells whether no ENI that the instance may have serves pods.
func (b *planner) beyond() bool {
	return b.limits.MaxENIs > 0 && b.policy.FirstInterfaceIndex >= b.limits.MaxENIs
}

func (b *planner) useIndex(i int) {
	b.indexes[i] = true
	b.ours++
}

// subnet finds a subnet's working copy; one not known is unlimited.
func (b *planner) subnet(id string) *Subnet {
	for i := range b.subnets {
		if b.subnets[i].ID == id {
			return &b.subnets[i]
		}
	}
	b.subnets = append(b.subnets, Subnet{ID: id, Free: Unlimited})
	return &b.subnets[len(b.subnets)-1]
}

// subnetForNew picks the subnet for a new ENI: one with the routes of the
// primary's, unless only others have all that pods wait for, then one of IPv6 alone, as no
// IPv4 address is taken there, then one that has prefixes if those are wanted, then the most
// free addresses, then the lowest ID.
func (b *planner) subnetForNew() *Subnet {
	var best *Subnet
	apart := b.onlyOtherRoutes()
	for i := range b.subnets {
		sn := &b.subnets[i]
		if sn.ForNew && len(b.lacking(sn)) == 0 && (best == nil || b.better(sn, best, apart)) {
			best = sn
		}
	}
	return best
}

// lacking are the families of which a subnet has no address for a new ENI and its pods. An ENI
// takes one IPv4 address for itself, so two must be free, or one if that is for pods, or pods need
// none. In a subnet of IPv6 alone it needs none, on an instance that is built on Nitro.
func (b *planner) lacking(sn *Subnet) (lacks []ipfamily.Family) {
	four := b.policy.Families.Has(ipfamily.IPv4)
	least := 2 - b.bonus
	if !four {
		least = 1
	}
	short := sn.Free < least
	if sn.IPv6Native {
		short = four || !b.limits.Prefixes // which only instances built on Nitro have, too
	}
	if short {
		lacks = append(lacks, ipfamily.IPv4)
	}
	if sn.NoIPv6 && b.policy.Families.Has(ipfamily.IPv6) {
		lacks = append(lacks, ipfamily.IPv6)
	}
	return lacks
}

// onlyOtherRoutes tells whether a new ENI gets all that pods wait for only in
// subnets whose routes are not the primary's. A subnet with the primary's routes and
// too few addresses would use up one of the few ENIs that the instance may have. A
// warm target alone is no reason to use other routes.
func (b *planner) onlyOtherRoutes() bool {
	apart := false
	for i := range b.subnets {
		if sn := &b.subnets[i]; sn.ForNew && b.suffices(sn) {
			if !sn.OtherRoutes {
				return false
			}
			apart = true
		}
	}
	return apart
}

// suffices tells whether a new ENI in a subnet gets all that it has room for of what
// pods wait for, and one address at least.
func (b *planner) suffices(sn *Subnet) bool {
	if len(b.lacking(sn)) > 0 || !b.policy.Families.Has(ipfamily.IPv4) {
		return len(b.lacking(sn)) == 0
	}
	need, free, unit := min(b.need-b.bonus, max(1, b.tally.Waiting-b.tally.free())), sn.Free-1, b.unit()
	if sn.NoPrefix {
		unit = 1
	}
	return free >= unit*min((need+unit-1)/unit, slots(ipfamily.IPv4, b.limits))
}

// better tells whether x is the better subnet for a new ENI than y. With apart, one
// with other routes than the primary's is.
func (b *planner) better(x, y *Subnet, apart bool) bool {
	if x.OtherRoutes != y.OtherRoutes {
		return x.OtherRoutes == apart
	}
	if x.IPv6Native != y.IPv6Native {
		return x.IPv6Native
	}
	px, py := b.hasPrefix(x), b.hasPrefix(y)
	if px != py {
		return px
	}
	return cmp.Or(cmp.Compare(y.Free, x.Free), cmp.Compare(x.ID, y.ID)) < 0
}

func (b *planner) hasPrefix(sn *Subnet) bool {
	return b.byPrefix() && !sn.NoPrefix && sn.Free > b.unit()
}
