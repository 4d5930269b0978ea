package ipam

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"time"
)

// Counts are the numbers of a group's addresses in each state.
type Counts struct {
	Used      int // held by pods
	Cooling   int
	Free      int // assignable once the group is ready
	Withdrawn int // being released (including those in withdrawn prefixes and groups), or withheld
	Withheld  int // of these, outside of withdrawn prefixes and groups

	FreeSingles  int // single addresses that could be withdrawn
	FreePrefixes int // prefixes that could be withdrawn: nothing used, cooling or withheld in them
}

// GroupCounts are one group's counts.
type GroupCounts struct {
	ID        string
	Index     int
	Ready     bool
	Withdrawn bool // the group as a whole
	Counts
}

// Groups returns the counts of each group, by index and then ID. O(groups and prefixes).
func (a *Allocator[K]) Groups() []GroupCounts {
	var out []GroupCounts
	for _, g := range a.groups {
		out = append(out, GroupCounts{ID: g.id, Index: g.index, Ready: g.ready, Withdrawn: g.withdrawn, Counts: g.counts()})
	}
	slices.SortFunc(out, func(x, y GroupCounts) int { return cmp.Or(cmp.Compare(x.Index, y.Index), cmp.Compare(x.ID, y.ID)) })
	return out
}

// Count returns the counts of one group; zero for an unknown one. O(number of its prefixes).
func (a *Allocator[K]) Count(id string) Counts {
	if g, ok := a.groups[id]; ok {
		return g.counts()
	}
	return Counts{}
}

func (g *group[K]) counts() Counts {
	c := Counts{
		Used: g.count[used], Cooling: g.count[cooling],
		Free: g.singles.assignable(), FreeSingles: g.singles.count[free],
		Withdrawn: g.singles.count[withdrawn] + g.singles.count[withheld], Withheld: g.singles.count[withheld],
	}
	for _, u := range g.prefixes {
		c.Free += u.assignable()
		switch {
		case u.withdrawn:
			c.Withdrawn += u.size()
			continue
		case !u.stays():
			c.FreePrefixes++
		}
		c.Withdrawn += u.count[withheld]
		c.Withheld += u.count[withheld]
	}
	if g.withdrawn {
		c.Withdrawn += c.Free
		c.Free, c.FreeSingles, c.FreePrefixes = 0, 0, 0
	}
	return c
}

// AddressView is one address with its state.
type AddressView[K comparable] struct {
	Addr      netip.Addr
	Group     string // empty while the cloud does not list the address
	Prefix    netip.Prefix
	Ready     bool // the group's data path works
	Used      bool
	Cooling   bool
	Withdrawn bool
	Key       K         // when used
	Since     time.Time // when it became used or cooling
}

// Addresses yields every address in no order. For a prefix that is too large to list (more than 256
// addresses), it yields only addresses with entries.
func (a *Allocator[K]) Addresses() iter.Seq[AddressView[K]] {
	return func(yield func(AddressView[K]) bool) {
		for _, e := range a.entries {
			if !yield(e.view()) {
				return
			}
		}
		for _, g := range a.groups {
			for _, u := range g.prefixes {
				if !u.eachUntouched(yield) {
					return
				}
			}
		}
	}
}

// Busied yields the addresses that are used or cooling, listed or not, in no order.
func (a *Allocator[K]) Busied() iter.Seq[AddressView[K]] {
	return func(yield func(AddressView[K]) bool) {
		for _, e := range a.entries {
			if (e.state == used || e.state == cooling) && !yield(e.view()) {
				return
			}
		}
	}
}

func (e *entry[K]) view() AddressView[K] {
	v := AddressView[K]{
		Addr: e.addr, Key: e.key, Since: e.since,
		Used: e.state == used, Cooling: e.state == cooling, Withdrawn: e.state == withdrawn || e.state == withheld,
	}
	if u := e.unit; u != nil {
		v.Group, v.Prefix, v.Ready = u.group.id, u.prefix, u.group.ready
		v.Withdrawn = v.Withdrawn || u.withdrawn || u.group.withdrawn
	}
	return v
}

func (u *unit[K]) eachUntouched(yield func(AddressView[K]) bool) bool {
	if u.hostBits() > 8 {
		return true
	}
	for addr := u.prefix.Addr(); u.prefix.Contains(addr); addr = addr.Next() {
		if _, touched := u.members[addr]; touched {
			continue
		}
		e := entry[K]{addr: addr, unit: u}
		if !yield(e.view()) {
			return false
		}
	}
	return true
}

// Busy reports whether an address is used or cooling, listed or not.
func (a *Allocator[K]) Busy(addr netip.Addr) bool {
	e, ok := a.entries[addr]
	return ok && (e.state == used || e.state == cooling)
}
