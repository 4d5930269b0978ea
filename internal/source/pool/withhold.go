package pool

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/berthnet/berth/api/v1alpha1"
)

// The operator publishes which addresses of a block Nodes and Services use and which the pool reserves. None of these are
// assigned. A pod that already holds one keeps it, and gets an Event if another object uses it.

// withheldRange is a range of addresses of a block, with its owner.
type withheldRange struct {
	netip.Prefix
	owner string
}

// readWithheld returns the valid ranges.
func readWithheld(list []v1alpha1.WithheldAddresses) (out []withheldRange) {
	for _, w := range list {
		if p, err := netip.ParsePrefix(w.CIDR); err == nil {
			out = append(out, withheldRange{p.Masked(), w.Owner})
		}
	}
	return out
}

// withheldPlaces returns the addresses of the first family whose pair includes a withheld address.
func (b blockFacts) withheldPlaces() (out []netip.Addr) {
	for _, w := range b.withheld {
		first, ok := b.place(w.Addr())
		if !ok {
			continue
		}
		bits := max(first.BitLen()-(w.Addr().BitLen()-w.Bits()), b.first.Bits())
		for p := netip.PrefixFrom(first, bits); p.Contains(first); first = first.Next() {
			out = append(out, first)
		}
	}
	return out
}

// ownerOf returns the first of addrs that another object uses, and its owner. The pool uses none of those that it reserves.
func (b blockFacts) ownerOf(addrs []netip.Addr) (addr netip.Addr, owner string) {
	for _, a := range addrs {
		for _, w := range b.withheld {
			if w.Contains(a) && !strings.HasPrefix(w.owner, v1alpha1.WithheldByPool) {
				return a, w.owner
			}
		}
	}
	return netip.Addr{}, ""
}

// among returns those of a pair's addresses that are in a list.
func (b blockFacts) among(first netip.Addr, list []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(b.addresses(first), func(a netip.Addr) bool { return !slices.Contains(list, a) })
}

// selfOwner returns the owner of addresses of this node, in the operator's format.
func (p policy) selfOwner() string { return "Node " + p.nodeName }
