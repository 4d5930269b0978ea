package egressgateway

import (
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// The tunnel's device of a family: iifname, oifname.
func fromTunnel(family int) nft.Exprs    { return byTunnel(expr.MetaKeyIIFNAME, nft.Is, family) }
func notFromTunnel(family int) nft.Exprs { return byTunnel(expr.MetaKeyIIFNAME, nft.IsNot, family) }
func toTunnel(family int) nft.Exprs      { return byTunnel(expr.MetaKeyOIFNAME, nft.Is, family) }
func notToTunnel(family int) nft.Exprs   { return byTunnel(expr.MetaKeyOIFNAME, nft.IsNot, family) }

func byTunnel(direction expr.MetaKey, compare func(...byte) nft.Exprs, family int) nft.Exprs {
	return nft.Join(nft.Meta(direction), compare(nft.LinkName(tunnel.LinkOf(family))...))
}

// notFrom: ip saddr !=, ip6 saddr !=.
func notFrom(a netip.Addr) nft.Exprs {
	return nft.Join(nft.Source(rtnl.FamilyOf(a)), nft.IsNot(a.AsSlice()...))
}

// udpHeader is how long it is in bytes (RFC 768).
const udpHeader = 8

// outerAndInner loads the sources of a tunnel's packet, outside and inside: the inner packet follows
// the UDP header.
func outerAndInner(family int) nft.Exprs {
	offset, length := nft.SourceAt(family)
	return nft.Join(nft.Source(family), nft.TransportBeside(family, udpHeader+offset, length))
}

// plainHeaders: the first byte of both headers tells of the family's version and, of IPv4, of no
// options (RFC 791: version 4, 5 words).
func plainHeaders(family int) nft.Exprs {
	if family == unix.AF_INET6 {
		return nft.Join(nft.Transport(udpHeader, 1), nft.Mask(0xf0), nft.Is(0x60))
	}
	return nft.Join(nft.Network(0, 1), nft.Is(0x45), nft.Transport(udpHeader, 1), nft.Is(0x45))
}

const answered = expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED

// notBeginning: tcp flags & (fin | syn | rst | ack) != syn (RFC 9293, section 3.1).
func notBeginning() nft.Exprs {
	const flags, fin, syn, rst, ack = 13, 0x01, 0x02, 0x04, 0x10
	return nft.Join(nft.Transport(flags, 1), nft.Mask(fin|syn|rst|ack), nft.IsNot(syn))
}

// icmpErrors are the types of messages that quote the packet that they are about, by family (RFC 792:
// destination unreachable, time exceeded, parameter problem; RFC 4443: these, and packet too big).
var icmpErrors = map[int][]byte{unix.AF_INET: {3, 11, 12}, unix.AF_INET6: {1, 2, 3, 4}}

// icmp: icmp type, icmpv6 type.
func icmp(family int, kind byte) nft.Exprs {
	if family == unix.AF_INET6 {
		return nft.Join(nft.ICMPv6Type(), nft.Is(kind))
	}
	return nft.Join(nft.ICMPType(), nft.Is(kind))
}

// aboutDestination loads the destination of the packet that an ICMP error quotes, behind 8 bytes.
func aboutDestination(family int) nft.Exprs {
	offset, length := nft.SourceAt(family)
	return nft.Transport(8+offset+length, length)
}
