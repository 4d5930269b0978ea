package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"
)

// Allocator hands out the addresses of one node, in one family, to holders of type K, one address each.
// It is in memory only, and not safe for concurrent use.
type Allocator[K comparable] struct {
	period  time.Duration
	seq     uint64 // incremented whenever an address becomes free, to order free addresses
	entries map[netip.Addr]*entry[K]
	holders map[K]*entry[K]
	groups  map[string]*group[K]
	rested  map[netip.Addr]time.Time // recorded release times of cooled addresses that the cloud does not list yet
	ready   indexed[*group[K]]       // groups with an assignable address
	cooling indexed[*entry[K]]       // by end of cooling
}

// state of an address that has an entry.
type state uint8

const (
	free state = iota
	used
	cooling
	withdrawn
	withheld // free, but not assignable (Withhold)
	states
)

// entry is an address: a single one, or one of a prefix that has been used at least once.
type entry[K comparable] struct {
	addr  netip.Addr
	state state
	key   K         // when used
	since time.Time // when it became used or cooling
	freed uint64    // when it last became free, as seq
	unit  *unit[K]  // nil: held or cooling, but not listed by the cloud
	pos   int       // in its unit's free heap, or in the cooling heap
}

// New returns an empty allocator. Released addresses cool for period.
func New[K comparable](period time.Duration) *Allocator[K] {
	return &Allocator[K]{
		period:  period,
		entries: map[netip.Addr]*entry[K]{},
		holders: map[K]*entry[K]{},
		groups:  map[string]*group[K]{},
		rested:  map[netip.Addr]time.Time{},
		ready:   indexed[*group[K]]{less: lessGroup[K], pos: func(g *group[K]) *int { return &g.pos }},
		cooling: indexed[*entry[K]]{less: lessCooling[K], pos: func(e *entry[K]) *int { return &e.pos }},
	}
}

// Assignment is the address of a holder and its origin. Group is empty while the cloud does not list the address.
type Assignment struct {
	Addr   netip.Addr
	Group  string
	Index  int
	Prefix netip.Prefix // zero for a single address
}

func (e *entry[K]) assignment() Assignment {
	a := Assignment{Addr: e.addr}
	if e.unit != nil {
		a.Group, a.Index, a.Prefix = e.unit.group.id, e.unit.group.index, e.unit.prefix
	}
	return a
}

// Take assigns an address to key; ok is false if none is assignable at now. A key that holds an address gets the same
// one again. Addresses whose cooling has ended are free. O(log n) in the number of addresses, groups and prefixes.
func (a *Allocator[K]) Take(key K, now time.Time) (Assignment, bool) {
	if e, ok := a.holders[key]; ok {
		return e.assignment(), true
	}
	a.Expire(now)
	if a.ready.Len() == 0 {
		return Assignment{}, false
	}
	return a.takeIn(a.ready.top(), key, now), true
}

// takeIn assigns to key an address of a group that has an assignable one.
func (a *Allocator[K]) takeIn(g *group[K], key K, now time.Time) Assignment {
	e := g.units.top().pick(a)
	a.move(e, used)
	e.key, e.since = key, now
	a.holders[key] = e
	return e.assignment()
}

// Hold restores an assignment from a stored record: key has held addr since the given time. The cloud need not list
// addr. If addr is cooling, it stops cooling, because the holder's record is newer. It is an error if key holds another
// address, or another key holds addr.
func (a *Allocator[K]) Hold(key K, addr netip.Addr, since time.Time) error {
	if h, ok := a.holders[key]; ok {
		if h.addr == addr {
			return nil
		}
		return fmt.Errorf("hold %v for %v: it already holds %v", addr, key, h.addr)
	}
	e := a.entry(addr)
	if e.state == used {
		return fmt.Errorf("hold %v for %v: held by %v", addr, key, e.key)
	}
	a.move(e, used)
	e.key, e.since = key, since
	a.holders[key] = e
	return nil
}

// Release ends key's hold; the address cools from now on. It returns that address, if any.
func (a *Allocator[K]) Release(key K, now time.Time) (netip.Addr, bool) {
	e, ok := a.unhold(key)
	if !ok {
		return netip.Addr{}, false
	}
	a.cool(e, now)
	return e.addr, true
}

// Cancel ends key's hold on an address that was never used: the address is immediately free, and keeps its place among
// the free ones.
func (a *Allocator[K]) Cancel(key K) (netip.Addr, bool) {
	e, ok := a.unhold(key)
	if !ok {
		return netip.Addr{}, false
	}
	a.move(e, free)
	a.forgetIfUnlisted(e)
	return e.addr, true
}

func (a *Allocator[K]) unhold(key K) (*entry[K], bool) {
	e, ok := a.holders[key]
	if ok {
		delete(a.holders, key)
		var none K
		e.key = none
	}
	return e, ok
}

// entry returns the entry of addr. If there is none it adds one, in the prefix that contains addr, or unlisted.
func (a *Allocator[K]) entry(addr netip.Addr) *entry[K] {
	if e, ok := a.entries[addr]; ok {
		return e
	}
	e := &entry[K]{addr: addr, pos: -1}
	a.entries[addr] = e
	if u := a.prefixUnit(addr); u != nil {
		e.freed = u.since
		u.adopt(e)
	}
	a.place(e)
	return e
}

// prefixUnit returns the delegated prefix that contains addr. It is slow, and only used for restoring and moving.
func (a *Allocator[K]) prefixUnit(addr netip.Addr) *unit[K] {
	for _, g := range a.groups {
		for p, u := range g.prefixes {
			if p.Contains(addr) {
				return u
			}
		}
	}
	return nil
}

// move changes the state of an entry, with all dependent counts and queues. An address on the withheld list does not
// become free.
func (a *Allocator[K]) move(e *entry[K], to state) {
	if to == free && e.isWithheld() {
		to = withheld
	}
	a.unplace(e)
	e.state = to
	a.place(e)
}

// unplace removes e from its queue and its unit's counts.
func (a *Allocator[K]) unplace(e *entry[K]) {
	if e.state == cooling {
		a.cooling.set(e, false)
	}
	u := e.unit
	if u == nil {
		return
	}
	u.free.set(e, false)
	u.count[e.state]--
	u.group.count[e.state]--
	a.fix(u)
}

// place adds e to the queue of its state, and to its unit's counts.
func (a *Allocator[K]) place(e *entry[K]) {
	if e.state == cooling {
		a.cooling.set(e, true)
	}
	u := e.unit
	if u == nil {
		return
	}
	if e.state == free {
		u.free.set(e, true)
	}
	u.count[e.state]++
	u.group.count[e.state]++
	a.fix(u)
}

// fix restores the order of units and groups after u's counts changed.
func (a *Allocator[K]) fix(u *unit[K]) {
	g := u.group
	g.units.set(u, u.assignable() > 0)
	a.ready.set(g, g.ready && !g.withdrawn && g.units.Len() > 0)
}

// forgetIfUnlisted drops the entry of a free address that the cloud does not list.
func (a *Allocator[K]) forgetIfUnlisted(e *entry[K]) {
	if e.state == free && e.unit == nil {
		a.unplace(e)
		delete(a.entries, e.addr)
	}
}

// tick returns the next number in the order of free addresses.
func (a *Allocator[K]) tick() uint64 {
	a.seq++
	return a.seq
}

func lessGroup[K comparable](x, y *group[K]) bool {
	return cmp.Or(cmp.Compare(y.count[used], x.count[used]), cmp.Compare(x.index, y.index),
		cmp.Compare(x.longestFree(), y.longestFree()), cmp.Compare(x.id, y.id)) < 0
}

func lessUnit[K comparable](x, y *unit[K]) bool {
	if x.prefix.IsValid() != y.prefix.IsValid() {
		return x.prefix.IsValid()
	}
	return cmp.Or(cmp.Compare(y.count[used], x.count[used]), x.prefix.Addr().Compare(y.prefix.Addr())) < 0
}

func lessFree[K comparable](x, y *entry[K]) bool {
	return cmp.Or(cmp.Compare(x.freed, y.freed), x.addr.Compare(y.addr)) < 0
}
