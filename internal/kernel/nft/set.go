package nft

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// In is @set, for the loaded value. A set that is made in the same transaction has a name, and an
// ID if it was given one.
func In(s *nftables.Set) Exprs {
	return Exprs{&expr.Lookup{SourceRegister: Register, SetName: s.Name, SetID: s.ID}}
}

// NotIn is != @set, for the loaded value.
func NotIn(s *nftables.Set) Exprs {
	return Exprs{&expr.Lookup{SourceRegister: Register, SetName: s.Name, SetID: s.ID, Invert: true}}
}

// VerdictOf is vmap @map, for the loaded value.
func VerdictOf(s *nftables.Set) Exprs {
	return Exprs{&expr.Lookup{SourceRegister: Register, SetName: s.Name, SetID: s.ID, IsDestRegSet: true}}
}

// ElementChunk is how many elements of a set one message may have: they share an attribute of at most
// 64 KiB (linux/netlink.h, nla_len), and with more the kernel takes some of them without a word.
const ElementChunk = 256

// AddressType is that of a family's addresses as keys of a set.
func AddressType(family int) nftables.SetDatatype {
	if family == unix.AF_INET6 {
		return nftables.TypeIP6Addr
	}
	return nftables.TypeIPAddr
}

// Intervals are networks that do not overlap as elements of an interval set: where each begins,
// and the first address behind it unless it has the last of all.
func Intervals(networks []netip.Prefix) []nftables.SetElement {
	var list []nftables.SetElement
	for _, p := range networks {
		list = append(list, nftables.SetElement{Key: p.Addr().AsSlice()})
		if behind := lastAddr(p).Next(); behind.IsValid() {
			list = append(list, nftables.SetElement{Key: behind.AsSlice(), IntervalEnd: true})
		}
	}
	return list
}

// lastAddr is the last address of a network.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
