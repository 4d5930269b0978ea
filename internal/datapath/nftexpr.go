package datapath

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/datapath/rtnl"
)

// The matches and actions of the ruleset, in the words of nft(8). All use
// register 1; a rule is the concatenation of its parts.

const reg = 1

type exprs = []expr.Any

func rule(parts ...exprs) exprs { return slices.Concat(parts...) }

// compare loads a value and compares it.
func compare(load expr.Any, op expr.CmpOp, data []byte) exprs {
	return exprs{load, &expr.Cmp{Op: op, Register: reg, Data: data}}
}

func meta(key expr.MetaKey) expr.Any { return &expr.Meta{Key: key, Register: reg} }
func ct(key expr.CtKey) expr.Any     { return &expr.Ct{Key: key, Register: reg} }

// fromPod: iifname "bth*". A comparison without the final zero is a prefix.
func fromPod() exprs { return compare(meta(expr.MetaKeyIIFNAME), expr.CmpOpEq, []byte(LinkPrefix)) }

// notFromPod: iifname != "bth*".
func notFromPod() exprs { return compare(meta(expr.MetaKeyIIFNAME), expr.CmpOpNeq, []byte(LinkPrefix)) }

// notToPod: oifname != "bth*".
func notToPod() exprs { return compare(meta(expr.MetaKeyOIFNAME), expr.CmpOpNeq, []byte(LinkPrefix)) }

// fromLink: iifname NAME.
func fromLink(name string) exprs {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return compare(meta(expr.MetaKeyIIFNAME), expr.CmpOpEq, data)
}

// isFamily: meta nfproto.
func isFamily(family int) exprs {
	proto := byte(unix.NFPROTO_IPV4)
	if family == unix.AF_INET6 {
		proto = unix.NFPROTO_IPV6
	}
	return compare(meta(expr.MetaKeyNFPROTO), expr.CmpOpEq, []byte{proto})
}

// Offsets of the addresses in the IPv4 (RFC 791) and IPv6 (RFC 8200) headers.
func loadSource(family int) exprs      { return loadAddress(family, 12, 8) }
func loadDestination(family int) exprs { return loadAddress(family, 16, 24) }

func loadAddress(family int, offset4, offset6 uint32) exprs {
	p := &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset4, Len: 4}
	if family == unix.AF_INET6 {
		p.Offset, p.Len = offset6, 16
	}
	return exprs{p}
}

// masked keeps the first bits of the loaded address.
func masked(family, bits int) exprs {
	size := 4
	if family == unix.AF_INET6 {
		size = 16
	}
	mask := make([]byte, size)
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return exprs{&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(size), Mask: mask, Xor: make([]byte, size)}}
}

// destinationIs: ip daddr, ip6 daddr.
func destinationIs(a netip.Addr) exprs {
	return rule(isFamily(rtnl.FamilyOf(a)), loadDestination(rtnl.FamilyOf(a)),
		exprs{&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: a.AsSlice()}})
}

// sourceIs: ip saddr, ip6 saddr.
func sourceIs(a netip.Addr) exprs {
	return rule(isFamily(rtnl.FamilyOf(a)), loadSource(rtnl.FamilyOf(a)),
		exprs{&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: a.AsSlice()}})
}

// toLoopback: ip daddr 127.0.0.0/8. Of IPv6 the kernel itself drops what comes
// by a link for ::1.
func toLoopback() exprs {
	return rule(isFamily(unix.AF_INET), loadDestination(unix.AF_INET), masked(unix.AF_INET, 8),
		exprs{&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{127, 0, 0, 0}}})
}

// notIn: != @set, for the loaded value.
func notIn(s *nftables.Set) exprs {
	return exprs{&expr.Lookup{SourceRegister: reg, SetName: s.Name, SetID: s.ID, Invert: true}}
}

// verdictOf: vmap @map, for the loaded value.
func verdictOf(s *nftables.Set) exprs {
	return exprs{&expr.Lookup{SourceRegister: reg, SetName: s.Name, SetID: s.ID, IsDestRegSet: true}}
}

// direction: ct direction. A packet without conntrack matches neither.
func direction(d byte) exprs { return compare(ct(expr.CtKeyDIRECTION), expr.CmpOpEq, []byte{d}) }

const (
	original byte = 0 // IP_CT_DIR_ORIGINAL
	reply    byte = 1 // IP_CT_DIR_REPLY
)

// isNew: ct state new.
func isNew() exprs { return ctState(expr.CtStateBitNEW) }

// isUntranslatable: ct state invalid,untracked. NAT looks at neither. Whatever
// else there is of rules, the kernel tracks no neighbour or listener discovery
// (ICMPv6 types 130 to 133, 135, 136 and 143), wherever it is addressed to.
func isUntranslatable() exprs { return ctState(expr.CtStateBitINVALID | expr.CtStateBitUNTRACKED) }

func ctState(bit uint32) exprs {
	return exprs{
		ct(expr.CtKeySTATE),
		maskWord(bit),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: word(0)},
	}
}

// ctMarked: ct mark & m == m.
func ctMarked(m uint32) exprs {
	return exprs{
		ct(expr.CtKeyMARK),
		maskWord(m),
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: word(m)},
	}
}

// setCtMark: ct mark set ct mark | m.
func setCtMark(m uint32) exprs {
	return exprs{
		ct(expr.CtKeyMARK),
		replaceBits(m, m),
		&expr.Ct{Key: expr.CtKeyMARK, Register: reg, SourceRegister: true},
	}
}

// marked: meta mark & m == m.
func marked(m uint32) exprs {
	return exprs{
		meta(expr.MetaKeyMARK),
		maskWord(m),
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: word(m)},
	}
}

// setMark: meta mark set (meta mark & ~mask) | m. Other bits are other people's.
func setMark(m, mask uint32) exprs {
	return exprs{
		meta(expr.MetaKeyMARK),
		replaceBits(m, mask),
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg, SourceRegister: true},
	}
}

func maskWord(m uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: word(m), Xor: word(0)}
}

func replaceBits(m, mask uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: word(^mask), Xor: word(m)}
}

func word(v uint32) []byte { return binaryutil.NativeEndian.PutUint32(v) }

// sourceNotBehindLink: fib saddr . iif oif missing. It is strict reverse path
// filtering (RFC 3704), alike for both families and without a sysctl a link.
func sourceNotBehindLink() exprs {
	return compare(&expr.Fib{Register: reg, FlagSADDR: true, FlagIIF: true, ResultOIF: true}, expr.CmpOpEq, word(0))
}

// linkLocalSource: ip6 saddr fe80::/10.
func linkLocalSource() exprs {
	return rule(isFamily(unix.AF_INET6), loadSource(unix.AF_INET6), masked(unix.AF_INET6, 10),
		exprs{&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: netip.MustParseAddr("fe80::").AsSlice()}})
}

// toLinkLocal: ip6 daddr fe80::/10.
func toLinkLocal() exprs {
	return rule(isFamily(unix.AF_INET6), loadDestination(unix.AF_INET6), masked(unix.AF_INET6, 10),
		exprs{&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: netip.MustParseAddr("fe80::").AsSlice()}})
}

// notToNode: fib daddr . iif type != local.
func notToNode() exprs {
	return compare(&expr.Fib{Register: reg, FlagDADDR: true, FlagIIF: true, ResultADDRTYPE: true}, expr.CmpOpNeq, word(unix.RTN_LOCAL))
}

// icmpv6: icmpv6 type.
func icmpv6(kind byte) exprs {
	return rule(loadICMPv6Type(), exprs{&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{kind}}})
}

func loadICMPv6Type() exprs {
	return rule(isFamily(unix.AF_INET6), exprs{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{unix.IPPROTO_ICMPV6}},
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
	})
}

// solicitation: icmpv6 type 133-135: a router or a neighbour solicitation, and
// the router advertisement between them.
func solicitation() exprs { return icmpv6Between(routerSolicitation, neighbourSolicitation) }

// neighbourDiscovery: icmpv6 type 133-136.
func neighbourDiscovery() exprs { return icmpv6Between(routerSolicitation, neighbourAdvertisement) }

func icmpv6Between(first, last byte) exprs {
	return rule(loadICMPv6Type(), exprs{&expr.Range{Op: expr.CmpOpEq, Register: reg, FromData: []byte{first}, ToData: []byte{last}}})
}

// atMost: limit rate over N/second burst M packets; it matches what is beyond.
func atMost(rate uint64, burst uint32) exprs {
	return exprs{&expr.Limit{Type: expr.LimitTypePkts, Rate: rate, Over: true, Unit: expr.LimitTimeSecond, Burst: burst}}
}

// Types of neighbour discovery (RFC 4861 section 4).
const (
	routerSolicitation     byte = 133
	routerAdvertisement    byte = 134
	neighbourSolicitation  byte = 135
	neighbourAdvertisement byte = 136
	redirect               byte = 137
)

// snatTo: snat to ADDRESS fully-random, so that pods do not collide on ports.
func snatTo(a netip.Addr) exprs {
	family := uint32(unix.NFPROTO_IPV4)
	if rtnl.IsIPv6(a) {
		family = unix.NFPROTO_IPV6
	}
	return exprs{
		&expr.Immediate{Register: reg, Data: a.AsSlice()},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: family, RegAddrMin: reg, FullyRandom: true},
	}
}

func count() exprs        { return exprs{&expr.Counter{}} }
func drop() exprs         { return exprs{&expr.Verdict{Kind: expr.VerdictDrop}} }
func accept() exprs       { return exprs{&expr.Verdict{Kind: expr.VerdictAccept}} }
func goTo(c string) exprs { return exprs{&expr.Verdict{Kind: expr.VerdictGoto, Chain: c}} }

// reject answers with "administratively prohibited", which fails a connection
// at once instead of after a time-out.
func reject() exprs {
	return exprs{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}}
}
