package nft

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Meta loads a packet's metadata: meta KEY.
func Meta(key expr.MetaKey) Exprs { return Exprs{&expr.Meta{Key: key, Register: Register}} }

// Ct loads ct KEY. For an untracked packet only the state can be loaded; with other keys the rule does not match.
func Ct(key expr.CtKey) Exprs { return ctInto(key, Register) }

func ctInto(key expr.CtKey, register uint32) Exprs {
	return Exprs{&expr.Ct{Key: key, Register: register}}
}

// Network loads length bytes at an offset of the IP header.
func Network(offset, length uint32) Exprs {
	return payload(expr.PayloadBaseNetworkHeader, offset, length, Register)
}

// Transport loads length bytes at an offset after the IP header.
func Transport(offset, length uint32) Exprs {
	return payload(expr.PayloadBaseTransportHeader, offset, length, Register)
}

// TransportBeside is like Transport, but loads into the register after an address of a family.
func TransportBeside(family int, offset, length uint32) Exprs {
	return payload(expr.PayloadBaseTransportHeader, offset, length, beside(family))
}

func payload(base expr.PayloadBase, offset, length, into uint32) Exprs {
	return Exprs{&expr.Payload{DestRegister: into, Base: base, Offset: offset, Len: length}}
}

// beside is the register after an address in Register, where the second part of a concatenation is
// (linux/netfilter/nf_tables.h): NFT_REG32_01 or NFT_REG_2.
func beside(family int) uint32 {
	if family == unix.AF_INET6 {
		return 2
	}
	return 9
}

// words32 is the register of the nth 32-bit word of a value of several parts (linux/netfilter/nf_tables.h,
// NFT_REG32_00 …). Each part begins a word.
func words32(n uint32) uint32 { return 8 + n }

// SourceAndDestination loads ip saddr . ip daddr.
func SourceAndDestination(family int) Exprs {
	offset, length := SourceAt(family)
	return Join(payload(expr.PayloadBaseNetworkHeader, offset, length, words32(0)), payload(expr.PayloadBaseNetworkHeader, offset+length, length, words32(length/4)))
}

// DestinationAndPort loads ip daddr . meta l4proto . th dport.
func DestinationAndPort(family int) Exprs {
	offset, length := SourceAt(family)
	return Join(
		payload(expr.PayloadBaseNetworkHeader, offset+length, length, words32(0)),
		Exprs{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: words32(length / 4)}},
		payload(expr.PayloadBaseTransportHeader, 2, 2, words32(length/4+1)))
}

// ProtocolAndPort loads meta l4proto . th dport.
func ProtocolAndPort() Exprs {
	return Join(Exprs{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: words32(0)}}, payload(expr.PayloadBaseTransportHeader, 2, 2, words32(1)))
}

// Endpoints loads ip saddr . ip daddr . meta l4proto . th sport . th dport.
func Endpoints(family int) Exprs {
	_, length := SourceAt(family)
	return Join(SourceAndDestination(family),
		Exprs{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: words32(length / 2)}},
		payload(expr.PayloadBaseTransportHeader, 0, 2, words32(length/2+1)),
		payload(expr.PayloadBaseTransportHeader, 2, 2, words32(length/2+2)))
}

// TunnelTo loads ip saddr . ct original ip daddr . udp dport: of a tunnel's packet the sender, the address that it sent
// to before translation, and the port.
func TunnelTo(family int) Exprs {
	offset, length := SourceAt(family)
	return Join(
		payload(expr.PayloadBaseNetworkHeader, offset, length, words32(0)),
		Exprs{&expr.Ct{Key: expr.CtKeyDST, Register: words32(length / 4)}},
		payload(expr.PayloadBaseTransportHeader, 2, 2, words32(length/2)))
}

// TunnelOut is TunnelTo where nothing translates it.
func TunnelOut(family int) Exprs {
	offset, length := SourceAt(family)
	return Join(
		payload(expr.PayloadBaseNetworkHeader, offset, length, words32(0)),
		payload(expr.PayloadBaseNetworkHeader, offset+length, length, words32(length/4)),
		payload(expr.PayloadBaseTransportHeader, 2, 2, words32(length/2)))
}

// TunnelFrom loads ip daddr . ip saddr . udp dport.
func TunnelFrom(family int) Exprs {
	offset, length := SourceAt(family)
	return Join(
		payload(expr.PayloadBaseNetworkHeader, offset+length, length, words32(0)),
		payload(expr.PayloadBaseNetworkHeader, offset, length, words32(length/4)),
		payload(expr.PayloadBaseTransportHeader, 2, 2, words32(length/2)))
}

// Inner loads length bytes of an IP packet that is carried in UDP without a header between them (Foo over UDP), from
// an offset on.
func Inner(offset, length uint32) Exprs { return Transport(udpHeader+offset, length) }

const udpHeader = 8 // bytes (RFC 768)

// InnerProtocol loads the protocol, or the next header, of a packet that is carried in UDP.
func InnerProtocol(family int) Exprs { return Inner(protocolAt(family), 1) }

func protocolAt(family int) uint32 {
	if family == unix.AF_INET6 {
		return 6
	}
	return 9
}

// InnerDestination loads the destination of a packet that is carried in UDP.
func InnerDestination(family int) Exprs {
	offset, length := SourceAt(family)
	return Inner(offset+length, length)
}

// InnerPort loads the destination port of a packet that is carried in UDP, which must have no options or extension
// headers.
func InnerPort(family int) Exprs { return Inner(innerPortAt(family), 2) }

func innerPortAt(family int) uint32 {
	offset, length := SourceAt(family)
	return offset + 2*length + 2
}

// InnerProtocolAndPort is ProtocolAndPort of a packet that is carried in UDP.
func InnerProtocolAndPort(family int) Exprs {
	return Join(
		payload(expr.PayloadBaseTransportHeader, udpHeader+protocolAt(family), 1, words32(0)),
		payload(expr.PayloadBaseTransportHeader, udpHeader+innerPortAt(family), 2, words32(1)))
}

// InnerDestinationAndPort is DestinationAndPort of a packet that is carried in UDP.
func InnerDestinationAndPort(family int) Exprs {
	offset, length := SourceAt(family)
	in := func(offset, length, into uint32) Exprs {
		return payload(expr.PayloadBaseTransportHeader, udpHeader+offset, length, into)
	}
	return Join(in(offset+length, length, words32(0)), in(protocolAt(family), 1, words32(length/4)), in(innerPortAt(family), 2, words32(length/4+1)))
}

// SourceAt returns the offset of the source in the IP header of a family, and the length of an address, in bytes (RFC
// 791, section 3.1; RFC 8200, section 3). The destination follows.
func SourceAt(family int) (offset, length uint32) {
	if family == unix.AF_INET6 {
		return 8, 16
	}
	return 12, 4
}

// Source loads ip saddr or ip6 saddr.
func Source(family int) Exprs { return Network(SourceAt(family)) }

// Destination loads ip daddr or ip6 daddr.
func Destination(family int) Exprs {
	offset, length := SourceAt(family)
	return Network(offset+length, length)
}

// NextHop loads rt ip nexthop or rt ip6 nexthop.
func NextHop(family int) Exprs {
	if family == unix.AF_INET6 {
		return Exprs{&expr.Rt{Register: Register, Key: expr.RtNexthop6}}
	}
	return Exprs{&expr.Rt{Register: Register, Key: expr.RtNexthop4}}
}

// Mask keeps the bits of the loaded value that are set in a mask of its length.
func Mask(mask ...byte) Exprs { return bits(Register, mask, make([]byte, len(mask))) }

// MaskBits keeps the first n bits of the loaded address.
func MaskBits(family, n int) Exprs {
	_, length := SourceAt(family)
	mask := make([]byte, length)
	for i := range n {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return Mask(mask...)
}

func bits(register uint32, mask, xor []byte) Exprs {
	return Exprs{&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: uint32(len(mask)), Mask: mask, Xor: xor}}
}
