package policy

import (
	"net/netip"
	"slices"
)

// Without returns the networks that cover what is in block and in none of except: disjoint, in order.
func Without(block netip.Prefix, except []netip.Prefix) []netip.Prefix {
	left := []netip.Prefix{block.Masked()}
	for _, e := range except {
		var next []netip.Prefix
		for _, b := range left {
			next = append(next, split(b, e.Masked())...)
		}
		left = next
	}
	return left
}

// split returns what is in b and not in e: b itself, nothing, or one network for each bit by which e is longer.
func split(b, e netip.Prefix) []netip.Prefix {
	switch {
	case !b.Overlaps(e):
		return []netip.Prefix{b}
	case e.Bits() <= b.Bits():
		return nil
	}
	low, high := halves(b)
	return append(split(low, e), split(high, e)...)
}

// halves are both halves of a network that has more than one address.
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
