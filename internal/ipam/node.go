package ipam

import (
	"fmt"
	"iter"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ipfamily"
)

// Node allocates one node's addresses. It has one Allocator for each family; both have the same groups. All addresses of a
// holder are from one group. A Node is not safe for concurrent use.
type Node[K comparable] struct {
	of       [ipfamily.Number]*Allocator[K]
	withheld [ipfamily.Number][]netip.Addr // the list of the last Withhold, for all groups
}

// NewNode returns a Node without addresses. Released addresses cool for period.
func NewNode[K comparable](period time.Duration) *Node[K] {
	return &Node[K]{of: [...]*Allocator[K]{New[K](period), New[K](period)}}
}

// Addresses are a holder's addresses, by family. The zero Addr means none.
type Addresses [ipfamily.Number]netip.Addr

// List returns the addresses, IPv4 first.
func (l Addresses) List() (out []netip.Addr) {
	for _, a := range l {
		if a.IsValid() {
			out = append(out, a)
		}
	}
	return out
}

// Taken is the addresses of a holder and their origin.
type Taken struct {
	Addresses
	Group string
	Index int
}

// SetGroup makes a group contain exactly the addresses of g, in both families, like Allocator.SetGroup.
func (n *Node[K]) SetGroup(g Group) {
	for f, a := range n.of {
		of := Group{ID: g.ID, Index: g.Index}
		for _, addr := range g.Addresses {
			if ipfamily.Of(addr) == ipfamily.Family(f) {
				of.Addresses = append(of.Addresses, addr)
			}
		}
		for _, p := range g.Prefixes {
			if ipfamily.Of(p.Addr()) == ipfamily.Family(f) {
				of.Prefixes = append(of.Prefixes, p)
			}
		}
		a.SetGroup(of)
		a.Withhold(g.ID, a.listed(g.ID, n.withheld[f]))
	}
}

// SetReady sets whether a group's data path works.
func (n *Node[K]) SetReady(id string, ready bool) {
	for _, a := range n.of {
		a.SetReady(id, ready)
	}
}

// LoseGroup removes a group that the cloud has removed.
func (n *Node[K]) LoseGroup(id string) {
	for _, a := range n.of {
		a.LoseGroup(id)
	}
}

// Take assigns to key one address of each family in set, all from one group. It returns false if no group has a free
// address of every requested family. Groups are ordered by their addresses of the first family, as in Allocator. A key
// that holds addresses, of any families, gets the same addresses again. O(groups), and O(log n) in the number of addresses.
func (n *Node[K]) Take(key K, set ipfamily.Set, now time.Time) (Taken, bool) {
	if t, ok := n.holds(key); ok {
		return t, true
	}
	n.Expire(now)
	families := set.Families()
	id, ok := n.choose(families)
	if !ok {
		return Taken{}, false
	}
	var out Taken
	for _, f := range families {
		a := n.of[f].takeIn(n.of[f].groups[id], key, now)
		out.Addresses[f], out.Group, out.Index = a.Addr, a.Group, a.Index
	}
	return out, true
}

// choose returns the first group, in Allocator's order, that has an assignable address of every family.
func (n *Node[K]) choose(families []ipfamily.Family) (id string, ok bool) {
	var best *group[K]
	for _, g := range n.of[families[0]].ready.items {
		has := true
		for _, f := range families[1:] {
			other := n.of[f].groups[g.id]
			has = has && other != nil && other.pos >= 0
		}
		if has && (best == nil || lessGroup(g, best)) {
			best = g
		}
	}
	if best == nil {
		return "", false
	}
	return best.id, true
}

// holds returns the addresses that key holds.
func (n *Node[K]) holds(key K) (out Taken, ok bool) {
	for f, a := range n.of {
		if e, held := a.holders[key]; held {
			at := e.assignment()
			out.Addresses[f], ok = at.Addr, true
			if at.Group != "" {
				out.Group, out.Index = at.Group, at.Index
			}
		}
	}
	return out, ok
}

// Hold records that key has held addresses since the given time, according to a stored record. After an error, as in
// Allocator.Hold, it has recorded none of them.
func (n *Node[K]) Hold(key K, addrs []netip.Addr, since time.Time) error {
	before, _ := n.holds(key)
	for _, addr := range addrs {
		f := ipfamily.Of(addr)
		if err := n.of[f].Hold(key, addr, since); err != nil {
			for f, a := range n.of {
				if !before.Addresses[f].IsValid() {
					a.Cancel(key)
				}
			}
			return err
		}
	}
	return nil
}

// Release ends key's hold; its addresses cool from now on. It returns those addresses, if any.
func (n *Node[K]) Release(key K, now time.Time) (out Addresses, ok bool) {
	return n.end(func(a *Allocator[K]) (netip.Addr, bool) { return a.Release(key, now) })
}

// Cancel ends key's hold on addresses that were never used.
func (n *Node[K]) Cancel(key K) (out Addresses, ok bool) {
	return n.end(func(a *Allocator[K]) (netip.Addr, bool) { return a.Cancel(key) })
}

func (n *Node[K]) end(hold func(*Allocator[K]) (netip.Addr, bool)) (out Addresses, ok bool) {
	for f, a := range n.of {
		if addr, held := hold(a); held {
			out[f], ok = addr, true
		}
	}
	return out, ok
}

// Cool records that an address has been cooling since the given time, according to a stored record.
func (n *Node[K]) Cool(addr netip.Addr, since, now time.Time) {
	n.of[ipfamily.Of(addr)].Cool(addr, since, now)
}

// Expire frees the addresses whose cooling has ended, and returns how many it freed.
func (n *Node[K]) Expire(now time.Time) (freed int) {
	for _, a := range n.of {
		freed += a.Expire(now)
	}
	return freed
}

// NextExpiry returns when the next address stops cooling, or false if no address is cooling.
func (n *Node[K]) NextExpiry() (at time.Time, ok bool) {
	for _, a := range n.of {
		if t, cools := a.NextExpiry(); cools && (!ok || t.Before(at)) {
			at, ok = t, true
		}
	}
	return at, ok
}

// Busy reports whether an address is used or cooling, listed or not.
func (n *Node[K]) Busy(addr netip.Addr) bool {
	return addr.IsValid() && n.of[ipfamily.Of(addr)].Busy(addr)
}

// Busied yields the addresses that are used or cooling, listed or not, in no order.
func (n *Node[K]) Busied() iter.Seq[AddressView[K]] {
	return n.both((*Allocator[K]).Busied)
}

// Addresses yields every address, like Allocator.Addresses, in no order.
func (n *Node[K]) Addresses() iter.Seq[AddressView[K]] {
	return n.both((*Allocator[K]).Addresses)
}

func (n *Node[K]) both(of func(*Allocator[K]) iter.Seq[AddressView[K]]) iter.Seq[AddressView[K]] {
	return func(yield func(AddressView[K]) bool) {
		for _, a := range n.of {
			for v := range of(a) {
				if !yield(v) {
					return
				}
			}
		}
	}
}

// NodeGroup is one group with its counts in each family.
type NodeGroup struct {
	ID    string
	Index int
	Ready bool
	Of    [ipfamily.Number]Counts
}

// Used returns the number of pods with an address of the group: the number of used addresses in the family with more used
// addresses.
func (g NodeGroup) Used() int { return max(g.Of[ipfamily.IPv4].Used, g.Of[ipfamily.IPv6].Used) }

// Withheld returns the number of withheld addresses, counted as in Used.
func (g NodeGroup) Withheld() int {
	return max(g.Of[ipfamily.IPv4].Withheld, g.Of[ipfamily.IPv6].Withheld)
}

// Cooling returns the number of cooling addresses: used and cooling addresses, counted as in Used, minus Used.
func (g NodeGroup) Cooling() int {
	busy := 0
	for _, c := range g.Of {
		busy = max(busy, c.Used+c.Cooling)
	}
	return busy - g.Used()
}

// Assignable returns the number of pods to which the group can assign one address of each family in set, once it is ready.
// Without IPv4, it is at most IPv6PrefixAddresses.
func (g NodeGroup) Assignable(set ipfamily.Set) int {
	out := math.MaxInt
	for _, f := range set.Families() {
		out = min(out, g.Of[f].Free)
	}
	if !set.Has(ipfamily.IPv4) {
		out = min(out, IPv6PrefixAddresses)
	}
	return out
}

// Groups returns the counts of each group, by index and then ID. O(groups and prefixes).
func (n *Node[K]) Groups() []NodeGroup {
	var out []NodeGroup
	for _, g := range n.of[ipfamily.IPv4].Groups() {
		of := NodeGroup{ID: g.ID, Index: g.Index, Ready: g.Ready}
		for f, a := range n.of {
			of.Of[f] = a.Count(g.ID)
		}
		out = append(out, of)
	}
	return out
}

// Withdraw takes free single addresses of one family out of use, and prefixes without used or cooling
// addresses, up to the given number of each. It returns them, addresses as prefixes of full length.
func (n *Node[K]) Withdraw(id string, f ipfamily.Family, addresses, prefixes int) (out []netip.Prefix) {
	for _, a := range n.of[f].Withdraw(id, addresses) {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return append(out, n.of[f].WithdrawPrefixes(id, prefixes)...)
}

// WithdrawGroup takes a whole group out of use, if nothing in it is used or cooling.
func (n *Node[K]) WithdrawGroup(id string) error {
	for _, a := range n.of {
		if c := a.Count(id); c.Used+c.Cooling > 0 {
			return fmt.Errorf("withdraw group %s: %d addresses used, %d cooling", id, c.Used, c.Cooling)
		}
	}
	for _, a := range n.of {
		if err := a.WithdrawGroup(id); err != nil {
			return err
		}
	}
	return nil
}

// WithdrawThese takes exactly these addresses (as prefixes of full length) and prefixes out of use, if they are free.
func (n *Node[K]) WithdrawThese(things []netip.Prefix) { n.each(things, (*Allocator[K]).WithdrawThese) }

// Withhold keeps addresses from being allocated. The list also applies to groups added later; the next call replaces it.
// Withhold returns the addresses without a holder, in order.
func (n *Node[K]) Withhold(addrs []netip.Addr) (kept []netip.Addr) {
	for f, a := range n.of {
		ofFamily := slices.DeleteFunc(slices.Clone(addrs), func(addr netip.Addr) bool { return ipfamily.Of(addr) != ipfamily.Family(f) })
		same := slices.Equal(ofFamily, n.withheld[f])
		n.withheld[f] = ofFamily
		for id := range a.groups {
			if !same {
				a.Withhold(id, a.listed(id, ofFamily))
			}
			kept = append(kept, a.kept(id)...)
		}
	}
	slices.SortFunc(kept, netip.Addr.Compare)
	return kept
}

// Restore makes withdrawn addresses (as prefixes of full length) and prefixes assignable again.
func (n *Node[K]) Restore(things []netip.Prefix) { n.each(things, (*Allocator[K]).Restore) }

// each calls do with the allocator of each family and the prefixes of that family.
func (n *Node[K]) each(things []netip.Prefix, do func(*Allocator[K], []netip.Prefix)) {
	for f, a := range n.of {
		do(a, slices.DeleteFunc(slices.Clone(things), func(p netip.Prefix) bool { return ipfamily.Of(p.Addr()) != ipfamily.Family(f) }))
	}
}
