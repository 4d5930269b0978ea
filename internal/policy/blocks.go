package policy

import (
	"net/netip"
	"slices"
)

// Without returns the disjoint, sorted networks that cover block without the networks in except. Their number is up to the number of
// exceptions times the bits of an address. If it exceeds most, the result is incomplete, but has more than most networks.
func Without(block netip.Prefix, except []netip.Prefix, most int) []netip.Prefix {
	return without(nil, block.Masked(), except, most)
}

// without appends the rest of b, until there are more than most networks.
func without(to []netip.Prefix, b netip.Prefix, except []netip.Prefix, most int) []netip.Prefix {
	if len(to) > most {
		return to
	}
	var inside []netip.Prefix
	for _, e := range except {
		switch {
		case !b.Overlaps(e):
		case e.Bits() <= b.Bits():
			return to
		default:
			inside = append(inside, e)
		}
	}
	if len(inside) == 0 {
		return append(to, b)
	}
	low, high := halves(b)
	return without(without(to, low, inside, most), high, inside, most)
}

// halves returns both halves of a network with more than one address.
func halves(b netip.Prefix) (low, high netip.Prefix) {
	low = netip.PrefixFrom(b.Addr(), b.Bits()+1)
	a := b.Addr().AsSlice()
	a[b.Bits()/8] |= 0x80 >> (b.Bits() % 8)
	upper, _ := netip.AddrFromSlice(a)
	return low, netip.PrefixFrom(upper, b.Bits()+1)
}

// Disjoint sorts networks and drops those that are inside others.
func Disjoint(blocks []netip.Prefix) []netip.Prefix {
	sorted := slices.SortedFunc(slices.Values(blocks), func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	var kept []netip.Prefix
	for _, b := range sorted {
		if n := len(kept); n == 0 || !kept[n-1].Overlaps(b) {
			kept = append(kept, b)
		}
	}
	return kept
}
