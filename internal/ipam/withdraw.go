package ipam

import (
	"fmt"
	"net/netip"
	"slices"
)

// Withdrawing is the first half of releasing addresses: a withdrawn address is no longer assignable, so
// the cloud can be asked to release it. Then either the group is set without it (SetGroup), or Restore
// makes it assignable again. Used, cooling and withheld addresses are never withdrawn.

// Withdraw takes up to n free single addresses of a group out of use, the longest free ones first, and
// returns them.
func (a *Allocator[K]) Withdraw(id string, n int) []netip.Addr {
	g, ok := a.groups[id]
	if !ok {
		return nil
	}
	var out []netip.Addr
	for len(out) < n && g.singles.free.Len() > 0 {
		e := g.singles.free.top()
		a.move(e, withdrawn)
		out = append(out, e.addr)
	}
	return out
}

// WithdrawPrefixes takes up to n prefixes of a group out of use that have no used, cooling or withheld
// address, the highest first, and returns them.
func (a *Allocator[K]) WithdrawPrefixes(id string, n int) []netip.Prefix {
	g, ok := a.groups[id]
	if !ok {
		return nil
	}
	var out []netip.Prefix
	for _, p := range slices.Backward(g.sortedPrefixes()) {
		if len(out) < n && a.withdrawPrefix(g.prefixes[p]) {
			out = append(out, p)
		}
	}
	return out
}

func (a *Allocator[K]) withdrawPrefix(u *unit[K]) bool {
	if u.withdrawn || u.stays() {
		return false
	}
	u.withdrawn = true
	a.fix(u)
	return true
}

// WithdrawGroup takes a whole group out of use, unless it has used, cooling or withheld addresses.
func (a *Allocator[K]) WithdrawGroup(id string) error {
	g, ok := a.groups[id]
	if !ok {
		return fmt.Errorf("withdraw group %s: no such group", id)
	}
	if g.count[used]+g.count[cooling]+g.count[withheld] > 0 {
		return fmt.Errorf("withdraw group %s: %d addresses used, %d cooling, %d withheld", id, g.count[used], g.count[cooling], g.count[withheld])
	}
	g.withdrawn = true
	a.fix(g.singles)
	return nil
}

// Restore makes withdrawn addresses (as prefixes of full length) and prefixes assignable again, in
// their former places among the free ones.
func (a *Allocator[K]) Restore(things []netip.Prefix) {
	for _, p := range things {
		if p.IsSingleIP() {
			if e, ok := a.entries[p.Addr()]; ok && e.state == withdrawn {
				a.move(e, free)
			}
			continue
		}
		for _, g := range a.groups {
			if u, ok := g.prefixes[p.Masked()]; ok {
				u.withdrawn = false
				a.fix(u)
			}
		}
	}
}

func (g *group[K]) sortedPrefixes() []netip.Prefix {
	out := make([]netip.Prefix, 0, len(g.prefixes))
	for p := range g.prefixes {
		out = append(out, p)
	}
	slices.SortFunc(out, comparePrefix)
	return out
}

// WithdrawThese takes exactly these addresses (as prefixes of full length) and prefixes out of use, as
// far as they are free. It is for those that the cloud may have been asked to release before a restart.
func (a *Allocator[K]) WithdrawThese(things []netip.Prefix) {
	for _, t := range things {
		if t.IsSingleIP() {
			e, ok := a.entries[t.Addr()]
			if ok && e.state == free && e.unit != nil && !e.unit.prefix.IsValid() {
				a.move(e, withdrawn)
			}
			continue
		}
		for _, g := range a.groups {
			if u, ok := g.prefixes[t.Masked()]; ok {
				a.withdrawPrefix(u)
			}
		}
	}
}
