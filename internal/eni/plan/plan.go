package plan

import (
	"cmp"
	"slices"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/ipam"
)

// Plan is what to do next for a node, and how the node does.
type Plan struct {
	Actions    []Action
	Available  int  // addresses for pods, used ones included
	Used       int  // of those; cooling ones too
	Needed     int  // addresses that the policy wants beyond Available
	Exhausted  bool // the node lacks addresses that its ENIs have room for and its subnets do not
	AtCapacity bool // nothing can give the node what it would have without limits
}

// Make tells what to do next to bring a node to its policy. It is pure: the
// same input gives the same actions, in the order in which to do them. Within
// one plan each ENI is asked for addresses at most once.
//
// Growth: first ENIs of ours that are begun but not attached, then room on
// attached ENIs by device index, then new ENIs, each with as many addresses as
// are still needed. Shrinking, only without a need to grow and only what
// Release allows: whole ENIs with nothing used or cooling, the highest index
// first, then free addresses of the emptiest ENI, the primary last, since it
// can never be given back; what cools there is waited for. If an ENI is kept only
// for addresses that are to be free, as many are assigned to others first (move.go).
// Detached ENIs of ours that nobody needs are deleted.
//
// What is asked for at once is min(free in the subnet, room on the ENI, needed +
// max-above-watermark) (Cilium, "AWS ENI", "IP Allocation").
func Make(l cloud.Limits, p ipam.Policy, s State) Plan {
	b := newPlanner(l, p, s)
	d := Plan{Available: b.tally.total, Used: b.tally.Used + b.tally.Cooling, Needed: max(0, b.demand.Want-b.tally.total)}
	if b.need > 0 {
		b.grow()
		d.Exhausted = len(b.actions) == 0 && b.hasRoom()
	} else {
		b.shrink()
	}
	d.AtCapacity = len(b.actions) == 0 && p.Uncapped().Demand(b.slots, l.Prefixes, b.tally.Usage).Want > b.tally.total
	b.tidy()
	d.Actions = b.actions
	return d
}

// planner is the working copy of a state that a plan's steps spend.
type planner struct {
	limits  cloud.Limits
	policy  ipam.Policy
	demand  ipam.Demand
	tally   tally
	slots   int
	need    int // addresses still to ask for; 0 when the target is met
	asked   int // addresses that the plan asks for so far
	enis    []ENI
	subnets []Subnet
	indexes map[int]bool // device indexes taken
	ours    int          // ENIs that count towards MAX_ENI
	refused bool         // State.NoMoreENIs
	moves   bool         // State.Moves
	bonus   int          // addresses for pods that a new ENI brings by itself
	release int
	claimed map[string]bool // detached ENIs that the plan attaches
	actions []Action
}

func newPlanner(l cloud.Limits, p ipam.Policy, s State) *planner {
	b := &planner{
		limits: l, policy: p, slots: slots(l), tally: s.tally(p), release: s.Release, refused: s.NoMoreENIs, moves: s.Moves,
		enis: slices.Clone(s.ENIs), subnets: slices.Clone(s.Subnets),
		indexes: map[int]bool{}, claimed: map[string]bool{},
	}
	if s.PrimaryServes {
		b.bonus = 1
	}
	b.demand = p.Demand(b.slots, l.Prefixes, b.tally.Usage)
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
	b.attachBegun()
	for _, e := range sorted(b.enis, func(e ENI) bool { return serves(e, b.policy) }, byIndex) {
		b.assign(e)
	}
	for b.need > 0 && b.create() {
	}
	if b.need > 0 && len(b.actions) == 0 {
		b.makeRoomForPrefixes()
	}
}

// attachBegun finishes ENIs that were created but not attached.
func (b *planner) attachBegun() {
	begun := sorted(b.enis, func(e ENI) bool { return e.Ours && e.Phase == Detached && !e.Refused },
		func(x, y ENI) int { return cmp.Or(cmp.Compare(y.total(), x.total()), cmp.Compare(x.ID, y.ID)) })
	for _, e := range begun {
		index, ok := b.freeIndex()
		if !ok || b.need <= 0 {
			return
		}
		b.claimed[e.ID] = true
		b.useIndex(index)
		b.need -= e.total()
		b.asked += e.total()
		b.do(Action{Kind: Attach, ENI: e.ID, Index: index})
	}
}

// assign fills room on an attached ENI.
func (b *planner) assign(e ENI) {
	room := b.slots - e.Addresses - e.Prefixes - e.Withdrawn
	if b.need <= 0 || room <= 0 {
		return
	}
	sn := b.subnet(e.Subnet)
	a := Action{Kind: Assign, ENI: e.ID}
	if a.Amount = b.amount(room, sn.Free, sn.NoPrefix); a.Amount != none {
		b.spend(sn, a)
		b.do(a)
	}
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
	a := Action{Kind: Create, Subnet: sn.ID, Index: index}
	sn.Free-- // the ENI's primary address
	b.need -= b.bonus
	b.asked += b.bonus
	a.Amount = b.amount(b.slots, sn.Free, sn.NoPrefix)
	// While prefixes cannot be had, a warm target is met as far as attached
	// ENIs have room; a new ENI is for pods that wait, or when nothing is free.
	free := b.tally.free() + b.asked
	wanting := b.tally.Waiting > free || free == 0
	if a.Amount == none && b.bonus == 0 || b.demand.Unit > 1 && a.Prefixes == 0 && !wanting {
		sn.Free++
		b.need += b.bonus
		b.asked -= b.bonus
		return false
	}
	b.spend(sn, a)
	b.useIndex(index)
	b.do(a)
	return true
}

// amount is how much of the need one ENI with some free slots in a subnet with
// some free addresses can take: whole prefixes where the policy says so and the
// subnet has them, else single addresses.
func (b *planner) amount(room, free int, noPrefix bool) cloud.Amount {
	unit := b.demand.Unit
	if unit > 1 && !noPrefix && free >= unit {
		return cloud.Amount{Prefixes: min((b.need+unit-1)/unit, room, free/unit)}
	}
	return cloud.Amount{Addresses: max(0, min(b.need, room, free))}
}

func (b *planner) spend(sn *Subnet, a Action) {
	n := Count(a.Amount)
	b.need -= n
	b.asked += n
	sn.Free -= n
}

// makeRoomForPrefixes gives single addresses back whose slots a prefix can
// take: how a node that a fragmented subnet filled with singles recovers.
func (b *planner) makeRoomForPrefixes() {
	if b.demand.Unit == 1 {
		return
	}
	for _, e := range sorted(b.enis, func(e ENI) bool { return serves(e, b.policy) && e.Free.Addresses > 0 }, byIndex) {
		sn := b.subnet(e.Subnet)
		if n := min(e.Free.Addresses, (b.need+b.demand.Unit-1)/b.demand.Unit, sn.Free/b.demand.Unit); !sn.NoPrefix && n > 0 {
			b.do(Action{Kind: Unassign, ENI: e.ID, Amount: cloud.Amount{Addresses: n}})
			return
		}
	}
}

// freeIndex finds the lowest free device index from the first that serves
// pods, if the instance and MAX_ENI have room for one more ENI. An index beyond
// those of as many ENIs as the instance may have is not tried.
func (b *planner) freeIndex() (int, bool) {
	full := len(b.indexes) >= b.limits.MaxENIs || b.policy.MaxENI > 0 && b.ours >= b.policy.MaxENI
	if full || b.refused {
		return 0, false
	}
	index := max(1, b.policy.FirstInterfaceIndex)
	for b.indexes[index] {
		index++
	}
	return index, index < b.limits.MaxENIs
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
// primary's, unless only others have all that pods wait for, then one that has
// prefixes if those are wanted, then the most free addresses, then the lowest ID.
// An ENI takes one address for itself, so two must be free, or one if that is for
// pods.
func (b *planner) subnetForNew() *Subnet {
	var best *Subnet
	apart := b.onlyOtherRoutes()
	for i := range b.subnets {
		sn := &b.subnets[i]
		if sn.ForNew && sn.Free >= 2-b.bonus && (best == nil || b.better(sn, best, apart)) {
			best = sn
		}
	}
	return best
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
	need, free, unit := min(b.need-b.bonus, max(1, b.tally.Waiting-b.tally.free())), sn.Free-1, b.demand.Unit
	if sn.NoPrefix {
		unit = 1
	}
	return free >= unit*min((need+unit-1)/unit, b.slots)
}

// better tells whether x is the better subnet for a new ENI than y. With apart, one
// with other routes than the primary's is.
func (b *planner) better(x, y *Subnet, apart bool) bool {
	if x.OtherRoutes != y.OtherRoutes {
		return x.OtherRoutes == apart
	}
	px, py := b.hasPrefix(x), b.hasPrefix(y)
	if px != py {
		return px
	}
	return cmp.Or(cmp.Compare(y.Free, x.Free), cmp.Compare(x.ID, y.ID)) < 0
}

func (b *planner) hasPrefix(sn *Subnet) bool {
	return b.demand.Unit > 1 && !sn.NoPrefix && sn.Free > b.demand.Unit
}
