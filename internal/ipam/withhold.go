package ipam

import (
	"maps"
	"net/netip"
	"slices"
)

// Withholding keeps addresses of a group from being assigned while something else uses them. Pods that
// already have one of them keep it; once it is released and has cooled it is withheld, not free. Withheld
// addresses count as withdrawn, and are never released: somebody has them.

// Withhold makes addrs the withheld addresses of a group, and returns those that no pod holds.
// Addresses that are no longer withheld become free, queued after all others. Addresses that the group
// does not list are withheld once it does.
func (a *Allocator[K]) Withhold(id string, addrs []netip.Addr) (kept []netip.Addr) {
	g, ok := a.groups[id]
	if !ok {
		return nil
	}
	before := g.withheld
	g.withheld = make(map[netip.Addr]bool, len(addrs))
	for _, addr := range addrs {
		g.withheld[addr] = true
	}
	for _, addr := range slices.SortedFunc(maps.Keys(before), netip.Addr.Compare) {
		if e, ok := a.entries[addr]; ok && !g.withheld[addr] && e.state == withheld && e.unit.group == g {
			e.freed = a.tick()
			a.move(e, free)
		}
	}
	for _, addr := range a.listed(id, addrs) {
		if e := a.entry(addr); e.state == free {
			a.move(e, withheld)
		}
	}
	return a.kept(id)
}

// listed returns those of addrs that a group lists.
func (a *Allocator[K]) listed(id string, addrs []netip.Addr) (out []netip.Addr) {
	g, ok := a.groups[id]
	if !ok {
		return nil
	}
	for _, addr := range addrs {
		if _, single := g.singles.members[addr]; single || a.inPrefix(g, addr) {
			out = append(out, addr)
		}
	}
	return out
}

// kept returns the withheld addresses of a group that no pod holds, in order.
func (a *Allocator[K]) kept(id string) (kept []netip.Addr) {
	g, ok := a.groups[id]
	if !ok {
		return nil
	}
	for addr := range g.withheld {
		if e, ok := a.entries[addr]; ok && e.state == withheld && e.unit.group == g {
			kept = append(kept, addr)
		}
	}
	slices.SortFunc(kept, netip.Addr.Compare)
	return kept
}

// isWithheld reports whether an entry may not become free.
func (e *entry[K]) isWithheld() bool { return e.unit != nil && e.unit.group.withheld[e.addr] }
