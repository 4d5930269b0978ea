package gateway

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/egress"
)

// The matches and actions of the table, in the words of nft(8); a rule is the concatenation of
// its parts. A value is loaded into register reg, what a concatenation has second beside it.

const reg = 1

// Registers behind an address in reg (linux/netfilter/nf_tables.h): NFT_REG32_01, and NFT_REG_2.
const (
	beside4 = 9
	beside6 = 2
)

type exprs = []expr.Any

func join(parts ...exprs) exprs { return slices.Concat(parts...) }

func is(data ...byte) exprs {
	return exprs{&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: data}}
}

func isNot(data ...byte) exprs {
	return exprs{&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: data}}
}

func meta(key expr.MetaKey) exprs { return exprs{&expr.Meta{Key: key, Register: reg}} }

// isFamily: meta nfproto.
func isFamily(of int) exprs {
	if of == 6 {
		return join(meta(expr.MetaKeyNFPROTO), is(unix.NFPROTO_IPV6))
	}
	return join(meta(expr.MetaKeyNFPROTO), is(unix.NFPROTO_IPV4))
}

// protocol: meta l4proto.
func protocol(p byte) exprs { return join(meta(expr.MetaKeyL4PROTO), is(p)) }

func tunnelOf(of int) []byte {
	name := egress.Link4
	if of == 6 {
		name = egress.Link6
	}
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return data
}

// The tunnel's device of a family: iifname, oifname.
func fromTunnel(of int) exprs    { return join(meta(expr.MetaKeyIIFNAME), is(tunnelOf(of)...)) }
func notFromTunnel(of int) exprs { return join(meta(expr.MetaKeyIIFNAME), isNot(tunnelOf(of)...)) }
func toTunnel(of int) exprs      { return join(meta(expr.MetaKeyOIFNAME), is(tunnelOf(of)...)) }
func notToTunnel(of int) exprs   { return join(meta(expr.MetaKeyOIFNAME), isNot(tunnelOf(of)...)) }

// udpTo: udp dport.
func udpTo(port uint16) exprs {
	return join(protocol(unix.IPPROTO_UDP), transport(2, 2), is(binaryutil.BigEndian.PutUint16(port)...))
}

// network and transport load bytes of a header.
func network(offset, length uint32) exprs {
	return load(expr.PayloadBaseNetworkHeader, offset, length, reg)
}

func transport(offset, length uint32) exprs {
	return load(expr.PayloadBaseTransportHeader, offset, length, reg)
}

func load(base expr.PayloadBase, offset, length, into uint32) exprs {
	return exprs{&expr.Payload{DestRegister: into, Base: base, Offset: offset, Len: length}}
}

// Where the header has a packet's source, and how long it is (RFC 791, RFC 8200).
func source(of int) (offset, length uint32) {
	if of == 6 {
		return 8, 16
	}
	return 12, 4
}

// destination: ip daddr, ip6 daddr.
func destination(of int) exprs {
	offset, length := source(of)
	return network(offset+length, length)
}

// notFrom: ip saddr !=, ip6 saddr !=.
func notFrom(a netip.Addr) exprs {
	return join(network(source(family(a))), isNot(a.AsSlice()...))
}

// outerAndInner loads the sources of a tunnel's packet, outside and inside: the inner packet follows
// the UDP header, which has 8 bytes.
func outerAndInner(of int) exprs {
	offset, length := source(of)
	beside := uint32(beside4)
	if of == 6 {
		beside = beside6
	}
	return join(load(expr.PayloadBaseNetworkHeader, offset, length, reg), load(expr.PayloadBaseTransportHeader, 8+offset, length, beside))
}

// plainHeaders: the first byte of both headers tells of the family's version and, of IPv4, of no
// options (RFC 791: version 4, 5 words).
func plainHeaders(of int) exprs {
	if of == 6 {
		version := exprs{&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{0xf0}, Xor: []byte{0}}}
		return join(transport(8, 1), version, is(0x60))
	}
	return join(network(0, 1), is(0x45), transport(8, 1), is(0x45))
}

// inside: the loaded address is in a network.
func inside(p netip.Prefix) exprs {
	mask := make([]byte, p.Addr().BitLen()/8)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	n := len(mask)
	return join(exprs{&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(n), Mask: mask, Xor: make([]byte, n)}}, is(p.Addr().AsSlice()...))
}

// in: @set, for what was loaded.
func in(s *nftables.Set) exprs {
	return exprs{&expr.Lookup{SourceRegister: reg, SetName: s.Name, SetID: s.ID}}
}

// state: ct state.
func state(bits uint32) exprs {
	return exprs{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 4)},
	}
}

const answered = expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED

// counted: counter name.
func counted(name string) exprs {
	return exprs{&expr.Objref{Type: int(nftables.ObjTypeCounter), Name: name}}
}

func accept() exprs           { return exprs{&expr.Verdict{Kind: expr.VerdictAccept}} }
func drop() exprs             { return exprs{&expr.Verdict{Kind: expr.VerdictDrop}} }
func goTo(chain string) exprs { return exprs{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}} }
func notrack() exprs          { return exprs{&expr.Notrack{}} }
func masquerade() exprs       { return exprs{&expr.Masq{}} }

// reset: reject with tcp reset.
func reset() exprs { return exprs{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}} }

// notBeginning: tcp flags & (fin | syn | rst | ack) != syn (RFC 9293, section 3.1).
func notBeginning() exprs {
	const flags, fin, syn, rst, ack = 13, 0x01, 0x02, 0x04, 0x10
	few := exprs{&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{fin | syn | rst | ack}, Xor: []byte{0}}}
	return join(transport(flags, 1), few, isNot(syn))
}

// icmpErrors are the types of messages that quote the packet that they are about, by family (RFC 792:
// destination unreachable, time exceeded, parameter problem; RFC 4443: these, and packet too big).
var icmpErrors = map[int][]byte{4: {3, 11, 12}, 6: {1, 2, 3, 4}}

// icmp: icmp type, icmpv6 type.
func icmp(of int, kind byte) exprs {
	if of == 6 {
		return join(protocol(unix.IPPROTO_ICMPV6), transport(0, 1), is(kind))
	}
	return join(protocol(unix.IPPROTO_ICMP), transport(0, 1), is(kind))
}

// aboutDestination loads the destination of the packet that an ICMP error quotes, behind 8 bytes.
func aboutDestination(of int) exprs {
	offset, length := source(of)
	return transport(8+offset+length, length)
}

// mark: meta mark set.
func mark(m uint32) exprs {
	return exprs{
		&expr.Immediate{Register: reg, Data: binaryutil.NativeEndian.PutUint32(m)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg, SourceRegister: true},
	}
}
