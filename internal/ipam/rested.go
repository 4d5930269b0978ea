package ipam

import (
	"net/netip"
	"slices"
	"time"
)

// Stored records may contain addresses that had cooled before this allocator was created. Such an address is free, and
// comes after the free ones without a record, which have been free for longer or were never used. Otherwise each restart
// would assign the lowest address again, however recently a pod used it.

// rest records that addr was released at since and has cooled. It must be called in the order of since. If the cloud does
// not list the address yet, the record is kept until it does.
func (a *Allocator[K]) rest(addr netip.Addr, since time.Time) {
	e, known := a.entries[addr]
	switch {
	case known && (e.state == used || e.state == cooling):
	case known || a.prefixUnit(addr) != nil:
		a.behind(a.entry(addr))
	case !since.Before(a.rested[addr]):
		a.rested[addr] = since
	}
}

// behind makes an address the last free one.
func (a *Allocator[K]) behind(e *entry[K]) {
	a.unplace(e)
	e.freed = a.tick()
	a.place(e)
}

// recall moves the addresses of a group that have a record behind its other ones.
func (a *Allocator[K]) recall(g *group[K]) {
	var listed []netip.Addr
	for addr := range a.rested {
		if _, ok := g.singles.members[addr]; ok || a.inPrefix(g, addr) {
			listed = append(listed, addr)
		}
	}
	slices.SortFunc(listed, func(x, y netip.Addr) int {
		if d := a.rested[x].Compare(a.rested[y]); d != 0 {
			return d
		}
		return x.Compare(y)
	})
	for _, addr := range listed {
		delete(a.rested, addr)
		a.behind(a.entry(addr))
	}
}

func (a *Allocator[K]) inPrefix(g *group[K], addr netip.Addr) bool {
	for p := range g.prefixes {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}
