package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// shrinking is the part of a plan that releases addresses and ENIs.
type shrinking struct {
	plan  *planner
	gone  map[string]bool // ENIs to be detached
	given map[string]bool // ENIs already changed by the plan
}

// shrink releases excess that has lasted. See Make for the order.
func (b *planner) shrink() {
	s := &shrinking{plan: b, gone: map[string]bool{}, given: map[string]bool{}}
	excess := min(b.tally.total-b.demand.Keep, b.release)
	excess -= s.detachUnused(excess)
	b.drainFree()
	if b.moves && len(s.gone) == 0 {
		excess = min(excess, s.shift())
	}
	if !b.demand.WholeENIs && excess > 0 {
		s.reduce(excess)
	}
	s.trim()
}

// open reports whether the plan may still change an ENI.
func (s *shrinking) open(e ENI) bool { return !s.gone[e.ID] && !s.given[e.ID] }

// unassign releases addresses of an ENI.
func (s *shrinking) unassign(e ENI, a cloud.Amount) {
	s.plan.do(Action{Kind: Unassign, ENI: e.ID, Amount: a})
	s.given[e.ID] = true
}

// detachUnused detaches ENIs that are not needed, if the target is still met without them, and returns the number of
// pods that they had addresses for. An ENI without any address is useless and detached immediately.
func (s *shrinking) detachUnused(excess int) (pods int) {
	for _, e := range s.plan.unused() {
		if n := s.plan.capacity.total(*e); n == 0 || n <= excess-pods {
			pods += n
			s.gone[e.ID] = true
			s.plan.do(Action{Kind: Detach, ENI: e.ID})
		}
	}
	return pods
}

// shift plans a move, if possible, and returns how much it adds to the excess.
func (s *shrinking) shift() (excess int) {
	b := s.plan
	excess = b.tally.total - b.demand.Keep
	from, assign, gain := b.move()
	if len(assign) == 0 {
		return excess
	}
	s.gone[from.ID] = true
	excess += gain - b.capacity.total(from)
	for _, a := range assign {
		s.given[a.ENI] = true
		b.do(a)
	}
	return excess
}

// reduce releases the excess, counted in pods, from free addresses; trim releases the unmatched addresses of the
// other family. An outdated ENI that will be detached keeps its addresses until it is drained: it cannot get new ones
// instead, and a node with such remainders on all ENIs could spare none.
func (s *shrinking) reduce(excess int) {
	lead := s.plan.capacity.policy.Families.Families()[0]
	emptiest := sorted(s.plan.enis, func(e ENI) bool { return s.plan.capacity.grows(e) && s.open(e) },
		func(x, y *ENI) int {
			if x.Primary != y.Primary {
				return map[bool]int{true: 1, false: -1}[x.Primary]
			}
			return cmp.Or(cmp.Compare(x.Used, y.Used), -byIndex(x, y))
		})
	for _, e := range emptiest {
		share, now := s.shareOf(*e, excess, lead)
		if now > 0 {
			s.unassign(*e, cloud.AmountIn(lead, now, 0))
		}
		excess -= share
	}
	unit := prefixAddresses[lead]
	for _, e := range emptiest {
		_, prefixes := e.Free.Of(lead)
		if n := min(excess/unit, prefixes); n > 0 && s.open(*e) {
			s.unassign(*e, cloud.AmountIn(lead, 0, n))
			excess -= n * unit
		}
	}
}

// shareOf returns an ENI's share of the excess, and how many single addresses of the leading family it can release
// for that now. Cooling addresses are part of the share: they are released once they have cooled down, and until then
// no fuller ENI releases addresses instead. An ENI with only cooling addresses that fits into the excess as a whole
// waits to be detached.
func (s *shrinking) shareOf(e ENI, excess int, lead ipfamily.Family) (share, now int) {
	if total := s.plan.capacity.total(e); !e.Primary && e.Used == 0 && e.Cooling > 0 && total <= excess {
		return total, 0
	}
	free, _ := e.Free.Of(lead)
	unused := free
	if _, prefixes := e.Of(lead); prefixes == 0 {
		unused += e.Cooling
	}
	share = min(excess, unused)
	return share, min(share, free)
}

// trim releases an ENI's addresses of one family that no pod can use because the ENI lacks the other family, and its
// addresses of a family that pods no longer get. Single IPv6 addresses of such a family stay, as does all IPv6 of the
// primary ENI: the subnet or a user may have assigned them to the instance.
func (s *shrinking) trim() {
	for _, e := range sorted(s.plan.enis, func(e ENI) bool { return s.plan.capacity.stays(e) && s.open(e) }, byIndex) {
		for _, f := range []ipfamily.Family{ipfamily.IPv6, ipfamily.IPv4} {
			if a := s.surplusOf(*e, f); a != none {
				s.unassign(*e, a)
				break
			}
		}
	}
}

// surplusOf returns the addresses of a family that trim releases.
func (s *shrinking) surplusOf(e ENI, f ipfamily.Family) cloud.Amount {
	addresses, prefixes := e.Free.Of(f)
	wanted := false
	for _, of := range s.plan.capacity.supplies {
		if of.family != f {
			continue
		}
		wanted = true
		surplus := e.count(f) - s.plan.capacity.total(e)
		prefixes = min(prefixes, surplus/prefixAddresses[f])
		if addresses = min(addresses, surplus); of.unit > 1 {
			addresses = 0 // these will be used, or released as excess
		}
	}
	if f == ipfamily.IPv6 && !wanted {
		addresses = 0
		if e.Primary {
			prefixes = 0
		}
	}
	if addresses > 0 {
		prefixes = 0 // a call accepts only one kind
	}
	return cloud.AmountIn(f, addresses, prefixes)
}

// unused returns the ENIs that serve no pod and may be detached: outdated ones first, then by descending index.
func (b *planner) unused() []*ENI {
	return sorted(b.enis, func(e ENI) bool { return b.capacity.stays(e) && e.unused() },
		func(x, y *ENI) int { return cmp.Or(-cmp.Compare(x.drain, y.drain), -byIndex(x, y)) })
}

// unused reports whether an ENI serves no pod and may be detached.
func (e ENI) unused() bool { return !e.Primary && e.Used+e.Cooling == 0 && e.Withdrawn == none }

// tidy deletes detached ENIs that the plan does not use, and corrects the attributes of the others.
func (b *planner) tidy(s State) {
	for _, e := range sorted(b.enis, func(e ENI) bool {
		return e.Ours && e.Phase == Detached && !e.JustMade && !e.cutOff() && !slices.Contains(b.claimed, e.ID)
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

// Pods end in any order, so an ENI may be kept only for addresses that the policy keeps free, although ENIs with
// lower indexes have room for them. In that case addresses are assigned there first. That creates an excess, and the
// ENI is detached. Each move removes an ENI, and no ENI is created while there is room, so moves end.

// Movable reports whether the node has an ENI that could be detached if others took over its addresses.
func Movable(l cloud.Limits, p ipam.Policy, s State) bool {
	if !slices.ContainsFunc(s.ENIs, ENI.unused) {
		return false
	}
	b := newPlanner(l, p, s)
	if b.need > 0 {
		return false
	}
	_, assign, _ := b.move()
	return len(assign) > 0
}

// Moves reports whether an action is part of a move: no pod needs the addresses that it assigns.
func (d Plan) Moves(a Action) bool { return a.Kind == Assign && d.Needed == 0 }

// move returns the ENI with the highest index that can be emptied, the assignments to the others that this takes, and
// the number of pods these serve.
func (b *planner) move() (from ENI, assign []Action, gain int) {
	if b.demand.WholeENIs {
		return from, nil, 0
	}
	surplus := b.tally.total - b.demand.Keep
	for _, e := range b.unused() {
		short := b.capacity.total(*e) - surplus
		if short <= 0 {
			break // detached anyway once its excess has lasted
		}
		if assign, gain := b.elsewhere(*e, short); assign != nil {
			return *e, assign, gain
		}
	}
	return from, nil, 0
}

// elsewhere returns the assignments that give ENIs other than e addresses for n pods; nil if impossible. ENIs that
// would be shrunk before e get no addresses.
func (b *planner) elsewhere(e ENI, n int) (out []Action, gain int) {
	taken := map[string]int{} // by subnet
	fits := func(o ENI) bool {
		return b.capacity.grows(o) && o.ID != e.ID && (o.Primary || o.Used > 0 || o.Index < e.Index)
	}
	for _, o := range sorted(b.enis, fits, byIndex) {
		sn := b.subnets.of(o.Subnet)
		more, a := b.capacity.extend(b.capacity.held(*o), sn, sn.Free-taken[o.Subnet], n-gain)
		if more == 0 || b.capacity.byPrefix() && a.Addresses > 0 { // never single addresses instead of a prefix
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

// Lasting measures how much of a node's excess has lasted, and for how long, so that addresses freed by a short dip
// in pods are not released and requested again.
type Lasting struct {
	levels  []level // ascending in both fields: pods end one after the other
	allowed int     // the last result of Allow
	total   int     // total in the last call of Allow
}

// level is an excess of at least n since a time.
type level struct {
	since time.Time
	n     int
}

// Allow records the excess at now and the total that it is part of, and returns how much of the excess has lasted for
// delay. If the total falls, by up to the last result, excess was released. If the excess falls by more, pods took
// the rest, starting with the most recent part.
func (e *Lasting) Allow(n, total int, now time.Time, delay time.Duration) int {
	given := min(e.allowed, max(0, e.total-total))
	e.total = total
	kept := e.levels[:0]
	since := now
	for _, l := range e.levels {
		switch l.n -= given; {
		case l.n <= 0:
		case l.n < n:
			kept = append(kept, l)
		case l.since.Before(since):
			since = l.since // time of the first level that includes it
		}
	}
	e.levels, e.allowed = kept, 0
	if n > 0 {
		e.levels = append(e.levels, level{since, n})
	}
	for _, l := range e.levels {
		if now.Sub(l.since) >= delay {
			e.allowed = l.n
		}
	}
	return e.allowed
}

// Due returns when more of the excess will have lasted for delay than at now; zero means never.
func (e *Lasting) Due(now time.Time, delay time.Duration) time.Time {
	for _, l := range e.levels {
		if at := l.since.Add(delay); at.After(now) {
			return at
		}
	}
	return time.Time{}
}
