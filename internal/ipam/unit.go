package ipam

import (
	"math"
	"net/netip"
)

// unit is a prefix, or the single addresses of a group. The addresses of a prefix are not enumerated:
// an address that was never used has no entry, and the cursor is the first of these.
type unit[K comparable] struct {
	group     *group[K]
	prefix    netip.Prefix // zero for single addresses
	since     uint64       // when its untouched addresses became free
	cursor    netip.Addr   // the next untouched address; invalid when none is left
	members   map[netip.Addr]*entry[K]
	free      indexed[*entry[K]]
	count     [states]int // members by state
	withdrawn bool        // the prefix is being released
	pos       int         // in the group's queue of units
}

// largeBits is the number of host bits from which on a prefix (an IPv6 /80 has 48) is so large that
// released addresses in it are forgotten once they have cooled: its never-used addresses, which have
// been free longer, do not run out.
const largeBits = 32

func newUnit[K comparable](g *group[K], p netip.Prefix, since uint64) *unit[K] {
	u := &unit[K]{group: g, prefix: p, since: since, members: map[netip.Addr]*entry[K]{}, pos: -1}
	u.free = indexed[*entry[K]]{less: lessFree[K], pos: func(e *entry[K]) *int { return &e.pos }}
	if p.IsValid() {
		u.cursor = p.Addr()
	}
	return u
}

// adopt makes e a member; the caller places it.
func (u *unit[K]) adopt(e *entry[K]) {
	e.unit = u
	u.members[e.addr] = e
}

func (u *unit[K]) hostBits() int { return u.prefix.Addr().BitLen() - u.prefix.Bits() }

func (u *unit[K]) large() bool { return u.prefix.IsValid() && u.hostBits() >= largeBits }

// size returns the number of addresses of the unit.
func (u *unit[K]) size() int {
	if !u.prefix.IsValid() {
		return len(u.members)
	}
	return 1 << min(u.hostBits(), 62)
}

// busy returns the number of addresses that are used or cooling.
func (u *unit[K]) busy() int { return u.count[used] + u.count[cooling] }

// stays reports whether the prefix may not be released: somebody has an address of it, a pod or who it is withheld for.
func (u *unit[K]) stays() bool { return u.busy()+u.count[withheld] > 0 }

// assignable returns the number of addresses that could be handed out if the group is ready.
func (u *unit[K]) assignable() int {
	switch {
	case u.withdrawn:
		return 0
	case u.prefix.IsValid():
		return u.size() - u.busy() - u.count[withheld]
	default:
		return u.count[free]
	}
}

// pick returns the address of the unit that has been free longest, and adds its entry if it was never
// used. The unit must have an assignable address.
func (u *unit[K]) pick(a *Allocator[K]) *entry[K] {
	fresh, ok := u.untouched()
	if u.free.Len() > 0 {
		top := u.free.top()
		if !ok || top.freed < u.since || top.freed == u.since && top.addr.Less(fresh) {
			return top
		}
	}
	e := &entry[K]{addr: fresh, pos: -1, freed: u.since}
	a.entries[fresh] = e
	u.adopt(e)
	a.place(e)
	return e
}

// longestFree returns when the address that pick would return became free; while an address changes its
// state, the far future.
func (u *unit[K]) longestFree() uint64 {
	at := uint64(math.MaxUint64)
	if u.free.Len() > 0 {
		at = u.free.top().freed
	}
	if _, ok := u.untouched(); ok {
		at = min(at, u.since)
	}
	return at
}

// untouched moves the cursor to the next address without an entry. In a large prefix it starts over at
// the end, since released addresses are forgotten there.
func (u *unit[K]) untouched() (netip.Addr, bool) {
	for u.cursor.IsValid() {
		if _, touched := u.members[u.cursor]; !touched {
			return u.cursor, true
		}
		u.cursor = u.cursor.Next()
		if u.prefix.Contains(u.cursor) {
			continue
		}
		u.cursor = netip.Addr{}
		if u.large() {
			u.cursor = u.prefix.Addr()
		}
	}
	return netip.Addr{}, false
}
