package ipam

import (
	"maps"
	"math"
	"net/netip"
	"slices"
)

// Group is the complete content of an ENI or block, as listed by the cloud.
type Group struct {
	ID        string
	Index     int            // device index; the order among equally full groups
	Addresses []netip.Addr   // single addresses
	Prefixes  []netip.Prefix // every address inside is assignable
}

type group[K comparable] struct {
	id        string
	index     int
	ready     bool
	withdrawn bool                // being released as a whole
	withheld  map[netip.Addr]bool // not assignable
	count     [states]int
	singles   *unit[K]
	prefixes  map[netip.Prefix]*unit[K]
	units     indexed[*unit[K]] // units with an assignable address
	pos       int               // in the allocator's ready queue
}

// SetGroup makes a group contain exactly the addresses of g, adding it if new (not ready until SetReady). An address that
// is no longer listed is dropped or, while used or cooling, kept as unlisted. An address of another group moves.
func (a *Allocator[K]) SetGroup(g Group) {
	own, ok := a.groups[g.ID]
	if !ok {
		own = newGroup[K](g.ID)
		a.groups[g.ID] = own
	}
	own.index = g.Index
	a.fix(own.singles)
	a.dropUnlisted(own, g)
	seq := a.tick()
	for _, p := range slices.SortedFunc(slices.Values(g.Prefixes), comparePrefix) {
		a.addPrefix(own, p.Masked(), seq)
	}
	for _, addr := range g.Addresses {
		if e, ok := a.entries[addr]; ok && e.unit != nil && e.unit.group == own {
			continue // already known, or inside one of the group's own prefixes
		}
		if !slices.ContainsFunc(g.Prefixes, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			a.list(own.singles, addr, seq)
		}
	}
	a.Withhold(g.ID, slices.Collect(maps.Keys(own.withheld)))
	a.recall(own)
}

func comparePrefix(x, y netip.Prefix) int { return x.Addr().Compare(y.Addr()) }

func newGroup[K comparable](id string) *group[K] {
	g := &group[K]{id: id, pos: -1, prefixes: map[netip.Prefix]*unit[K]{}}
	g.units = indexed[*unit[K]]{less: lessUnit[K], pos: func(u *unit[K]) *int { return &u.pos }}
	g.singles = newUnit(g, netip.Prefix{}, 0)
	return g
}

// longestFree returns the time at which the address that Take would select in the group became free.
func (g *group[K]) longestFree() uint64 {
	if g.units.Len() == 0 {
		return math.MaxUint64
	}
	return g.units.top().longestFree()
}

// list puts addr into a unit. It keeps the address's state if held or cooling.
func (a *Allocator[K]) list(u *unit[K], addr netip.Addr, seq uint64) {
	e, ok := a.entries[addr]
	if !ok {
		e = &entry[K]{addr: addr, pos: -1, freed: seq}
		a.entries[addr] = e
	} else {
		a.detach(e)
		if e.state == withdrawn || e.state == withheld {
			e.state = free
		}
	}
	u.adopt(e)
	a.place(e)
}

// detach removes an entry from its queues and its unit. The caller places or drops it.
func (a *Allocator[K]) detach(e *entry[K]) {
	a.unplace(e)
	if u := e.unit; u != nil {
		delete(u.members, e.addr)
		e.unit = nil
	}
}

func (a *Allocator[K]) addPrefix(g *group[K], p netip.Prefix, seq uint64) {
	if _, ok := g.prefixes[p]; ok {
		return
	}
	u := newUnit(g, p, seq)
	g.prefixes[p] = u
	for addr, e := range a.entries { // rare: a new prefix; only addresses with entries
		if p.Contains(addr) && (e.unit == nil || e.unit.group != g || e.unit == g.singles) {
			a.list(u, addr, seq)
		}
	}
	a.fix(u)
}

func (a *Allocator[K]) dropUnlisted(own *group[K], g Group) {
	listed := make(map[netip.Addr]bool, len(g.Addresses))
	for _, addr := range g.Addresses {
		listed[addr] = true
	}
	for addr, e := range own.singles.members {
		if !listed[addr] {
			a.lose(e)
		}
	}
	for p, u := range own.prefixes {
		if !slices.ContainsFunc(g.Prefixes, func(q netip.Prefix) bool { return q.Masked() == p }) {
			a.losePrefix(u)
		}
	}
}

// lose handles an address that the cloud no longer lists.
func (a *Allocator[K]) lose(e *entry[K]) {
	a.detach(e)
	if e.state == used || e.state == cooling {
		a.place(e)
		return
	}
	delete(a.entries, e.addr)
}

func (a *Allocator[K]) losePrefix(u *unit[K]) {
	for _, e := range u.members {
		a.lose(e)
	}
	u.withdrawn = true // nothing in it is assignable
	a.fix(u)
	delete(u.group.prefixes, u.prefix)
}

// SetReady sets whether a group's data path works, which makes its addresses assignable. It ignores an unknown group.
func (a *Allocator[K]) SetReady(id string, ready bool) {
	if g, ok := a.groups[id]; ok {
		g.ready = ready
		a.fix(g.singles)
	}
}

// LoseGroup removes a group that the cloud has removed. Its used and cooling addresses are kept as unlisted.
func (a *Allocator[K]) LoseGroup(id string) {
	g, ok := a.groups[id]
	if !ok {
		return
	}
	a.dropUnlisted(g, Group{})
	a.ready.set(g, false)
	delete(a.groups, id)
}
