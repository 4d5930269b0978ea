package ipam

import (
	"maps"
	"net/netip"
	"slices"
)

// Withholding keeps addresses of a group from being handed out for as long as
// something else uses them. Pods that have one of them keep it; once it is
// released and has cooled it is withdrawn rather than free.

// Withhold makes addrs the addresses of a group's prefixes that are withheld. Those
// that were and no longer are become free, behind all others. Those of no prefix of
// the group are withheld once it has one.
func (a *Allocator[K]) Withhold(id string, addrs []netip.Addr) {
	g, ok := a.groups[id]
	if !ok {
		return
	}
	before := g.withheld
	g.withheld = make(map[netip.Addr]bool, len(addrs))
	for _, addr := range addrs {
		g.withheld[addr] = true
	}
	for _, addr := range slices.SortedFunc(maps.Keys(before), netip.Addr.Compare) {
		if e, ok := a.entries[addr]; ok && !g.withheld[addr] && e.state == withdrawn && e.inPrefixOf(g) {
			e.freed = a.tick()
			a.move(e, free)
		}
	}
	for _, addr := range addrs {
		if !a.inPrefix(g, addr) {
			continue
		}
		if e := a.entry(addr); e.state == free {
			a.move(e, withdrawn)
		}
	}
}

// isWithheld tells whether an entry may not become free.
func (e *entry[K]) isWithheld() bool {
	return e.unit != nil && e.inPrefixOf(e.unit.group) && e.unit.group.withheld[e.addr]
}

func (e *entry[K]) inPrefixOf(g *group[K]) bool {
	return e.unit != nil && e.unit.group == g && e.unit.prefix.IsValid()
}
