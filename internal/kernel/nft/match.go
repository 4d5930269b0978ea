package nft

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Is matches if the loaded value equals data, or begins with it if data is shorter.
func Is(data ...byte) Exprs {
	return Exprs{&expr.Cmp{Op: expr.CmpOpEq, Register: Register, Data: data}}
}

// IsNot is the opposite of Is.
func IsNot(data ...byte) Exprs {
	return Exprs{&expr.Cmp{Op: expr.CmpOpNeq, Register: Register, Data: data}}
}

// ComesBy is iifname "PREFIX*".
func ComesBy(prefix string) Exprs { return Join(Meta(expr.MetaKeyIIFNAME), Is([]byte(prefix)...)) }

// ComesByOther is iifname != "PREFIX*".
func ComesByOther(prefix string) Exprs {
	return Join(Meta(expr.MetaKeyIIFNAME), IsNot([]byte(prefix)...))
}

// LeavesByOther is oifname != "PREFIX*".
func LeavesByOther(prefix string) Exprs {
	return Join(Meta(expr.MetaKeyOIFNAME), IsNot([]byte(prefix)...))
}

// LinkName encodes a link's whole name for Is and IsNot, with expr.MetaKeyIIFNAME and expr.MetaKeyOIFNAME. The bytes
// alone would match all names with that prefix.
func LinkName(name string) []byte {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return data
}

// Family is meta nfproto.
func Family(family int) Exprs {
	return Join(Meta(expr.MetaKeyNFPROTO), Is(byte(protoOf(family))))
}

func protoOf(family int) uint32 {
	if family == unix.AF_INET6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// Protocol is meta l4proto.
func Protocol(p byte) Exprs { return Join(Meta(expr.MetaKeyL4PROTO), Is(p)) }

// UDPTo is udp dport.
func UDPTo(port uint16) Exprs {
	return Join(Protocol(unix.IPPROTO_UDP), Transport(2, 2), Is(binaryutil.BigEndian.PutUint16(port)...))
}

// SourceIs is ip saddr, ip6 saddr.
func SourceIs(a netip.Addr) Exprs {
	return Join(Family(rtnl.FamilyOf(a)), Source(rtnl.FamilyOf(a)), Is(a.AsSlice()...))
}

// SourceIn is SourceIs for a network.
func SourceIn(p netip.Prefix) Exprs {
	return Join(Family(rtnl.FamilyOf(p.Addr())), Source(rtnl.FamilyOf(p.Addr())), Inside(p))
}

// DestinationIs is ip daddr, ip6 daddr.
func DestinationIs(a netip.Addr) Exprs {
	return Join(Family(rtnl.FamilyOf(a)), Destination(rtnl.FamilyOf(a)), Is(a.AsSlice()...))
}

// DestinationIn is DestinationIs for a network.
func DestinationIn(p netip.Prefix) Exprs {
	return Join(Family(rtnl.FamilyOf(p.Addr())), Destination(rtnl.FamilyOf(p.Addr())), Inside(p))
}

// Inside matches if the loaded address is in a network, which must have no host bits.
func Inside(p netip.Prefix) Exprs {
	return Join(MaskBits(rtnl.FamilyOf(p.Addr()), p.Bits()), Is(p.Addr().AsSlice()...))
}

// ICMPv6Type matches ICMPv6 and loads icmpv6 type.
func ICMPv6Type() Exprs { return Join(Protocol(unix.IPPROTO_ICMPV6), Transport(0, 1)) }

// ICMPv6Between is icmpv6 type FIRST-LAST.
func ICMPv6Between(first, last byte) Exprs {
	between := Exprs{&expr.Range{Op: expr.CmpOpEq, Register: Register, FromData: []byte{first}, ToData: []byte{last}}}
	return Join(Family(unix.AF_INET6), ICMPv6Type(), between)
}

// ICMPType matches ICMP and loads icmp type.
func ICMPType() Exprs { return Join(Protocol(unix.IPPROTO_ICMP), Transport(0, 1)) }

// Directions of a connection, for CtDirection.
const (
	Original byte = 0 // IP_CT_DIR_ORIGINAL
	Reply    byte = 1 // IP_CT_DIR_REPLY
)

// CtDirection is ct direction. It does not match untracked packets.
func CtDirection(d byte) Exprs { return Join(Ct(expr.CtKeyDIRECTION), Is(d)) }

// CtState is ct state: it matches any of the states whose bits are set (expr.CtStateBitNEW …).
func CtState(states uint32) Exprs {
	return Join(Ct(expr.CtKeySTATE), Mask(Word(states)...), IsNot(Word(0)...))
}

// CtStatus is ct status: it matches any of the set bits (CtConfirmed …), and no untracked packet.
func CtStatus(bits uint32) Exprs {
	return Join(Ct(expr.CtKeySTATUS), Mask(Word(bits)...), IsNot(Word(0)...))
}

// Bits of CtStatus (linux/netfilter/nf_conntrack_common.h).
const (
	CtSeenReply uint32 = 1 << 1
	CtConfirmed uint32 = 1 << 3 // the first packet has passed
	CtSNAT      uint32 = 1 << 4
	CtDNAT      uint32 = 1 << 5
)

// SourceIsLocal is fib saddr type local: the node has the source address.
func SourceIsLocal() Exprs {
	return Join(Exprs{&expr.Fib{Register: Register, FlagSADDR: true, ResultADDRTYPE: true}}, Is(Word(unix.RTN_LOCAL)...))
}

// PortsTo is th dport FIRST-LAST of a protocol.
func PortsTo(protocol byte, first, last uint16) Exprs {
	return Join(PortOf(protocol), portBetween(first, last))
}

// PortOf matches a protocol and loads th dport.
func PortOf(protocol byte) Exprs { return Join(Protocol(protocol), Transport(2, 2)) }

func portBetween(first, last uint16) Exprs {
	from, to := binaryutil.BigEndian.PutUint16(first), binaryutil.BigEndian.PutUint16(last)
	if first == last {
		return Is(from...)
	}
	return Exprs{&expr.Range{Op: expr.CmpOpEq, Register: Register, FromData: from, ToData: to}}
}

// InnerPortsTo is PortsTo of a packet that is carried in UDP (InnerPort).
func InnerPortsTo(family int, protocol byte, first, last uint16) Exprs {
	return Join(InnerPortOf(family, protocol), portBetween(first, last))
}

// InnerPortOf is PortOf of a packet that is carried in UDP (InnerPort).
func InnerPortOf(family int, protocol byte) Exprs {
	return Join(InnerProtocol(family), Is(protocol), InnerPort(family))
}

// OneOf is numgen random mod n 0. It matches one packet in n at random.
func OneOf(n uint32) Exprs {
	return Join(Exprs{&expr.Numgen{Register: Register, Modulus: n, Type: unix.NFT_NG_RANDOM}}, Is(Word(0)...))
}

// Within is limit rate N/second burst M packets.
func Within(rate uint64, burst uint32) Exprs {
	return Exprs{&expr.Limit{Type: expr.LimitTypePkts, Rate: rate, Unit: expr.LimitTimeSecond, Burst: burst}}
}

// Over is limit rate over N/second burst M packets.
func Over(rate uint64, burst uint32) Exprs {
	return Exprs{&expr.Limit{Type: expr.LimitTypePkts, Rate: rate, Over: true, Unit: expr.LimitTimeSecond, Burst: burst}}
}

// In is @set, for the loaded value. The set needs a name, and an ID if it was added with one in the same transaction.
func In(s *nftables.Set) Exprs {
	return Exprs{&expr.Lookup{SourceRegister: Register, SetName: s.Name, SetID: s.ID}}
}

// NotIn is != @set, for the loaded value.
func NotIn(s *nftables.Set) Exprs {
	return Exprs{&expr.Lookup{SourceRegister: Register, SetName: s.Name, SetID: s.ID, Invert: true}}
}

// MapTo loads map @map, for the loaded value.
func MapTo(s *nftables.Set) Exprs {
	return Exprs{&expr.Lookup{SourceRegister: Register, DestRegister: Register, SetName: s.Name, SetID: s.ID, IsDestRegSet: true}}
}

// VerdictOf is vmap @map, for the loaded value.
func VerdictOf(s *nftables.Set) Exprs {
	return Exprs{&expr.Lookup{SourceRegister: Register, SetName: s.Name, SetID: s.ID, IsDestRegSet: true}}
}

// ElementChunk is the maximum number of set elements in one message. They share an attribute of at most 64 KiB
// (linux/netlink.h, nla_len), and the kernel silently ignores elements that do not fit.
const ElementChunk = 256

// AddressType is the type of a family's addresses as keys of a set.
func AddressType(family int) nftables.SetDatatype {
	if family == unix.AF_INET6 {
		return nftables.TypeIP6Addr
	}
	return nftables.TypeIPAddr
}

// Intervals encodes networks, which must not overlap, as elements of an interval set: the first address of each, and
// the first address after it, if any.
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

// Disjoint returns the networks of a family, masked and sorted, without those within another, as Intervals needs them.
func Disjoint(networks []netip.Prefix, family int) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range networks {
		if rtnl.FamilyOf(p.Addr()) == family {
			list = append(list, p.Masked())
		}
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	kept := list[:0]
	for _, p := range list { // a network sorts before those within it
		if n := len(kept); n == 0 || !kept[n-1].Overlaps(p) {
			kept = append(kept, p)
		}
	}
	return kept
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
