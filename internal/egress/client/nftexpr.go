package client

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The matches and actions of the table, in the words of nft(8); a rule is the concatenation of
// its parts. A value is loaded into register reg; beside it is what a concatenation has second.

const reg = 1

// Second registers behind an address in reg (linux/netfilter/nf_tables.h): NFT_REG32_01, and
// NFT_REG_2.
const (
	beside4 = 9
	beside6 = 2
)

type exprs = []expr.Any

func join(parts ...exprs) exprs { return slices.Concat(parts...) }

func is(data []byte) exprs {
	return exprs{&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: data}}
}

func isNot(data []byte) exprs {
	return exprs{&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: data}}
}

func meta(key expr.MetaKey) exprs { return exprs{&expr.Meta{Key: key, Register: reg}} }

// isFamily: meta nfproto.
func isFamily(family int) exprs {
	proto := byte(unix.NFPROTO_IPV4)
	if family == unix.AF_INET6 {
		proto = unix.NFPROTO_IPV6
	}
	return join(meta(expr.MetaKeyNFPROTO), is([]byte{proto}))
}

// protocol: meta l4proto.
func protocol(p byte) exprs { return join(meta(expr.MetaKeyL4PROTO), is([]byte{p})) }

// udpTo: udp dport.
func udpTo(port uint16) exprs {
	return join(protocol(unix.IPPROTO_UDP),
		exprs{&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}},
		is(binaryutil.BigEndian.PutUint16(port)))
}

// Which address of a packet.
const (
	source = iota
	destination
)

// addressIn: ip saddr @name and its like, with the offsets of RFC 791 and RFC 8200.
func addressIn(family, which int, name string) exprs {
	p := &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}
	if family == unix.AF_INET6 {
		p.Offset, p.Len = 8, 16
	}
	if which == destination {
		p.Offset += p.Len
	}
	return join(isFamily(family), exprs{p}, in(name))
}

// in: @name, for what was loaded.
func in(name string) exprs { return exprs{&expr.Lookup{SourceRegister: reg, SetName: name}} }

// leadTo: vmap @name, for what was loaded.
func leadTo(name string) exprs {
	return exprs{&expr.Lookup{SourceRegister: reg, SetName: name, IsDestRegSet: true}}
}

// outLink and inLink: oifname, iifname "berth-egress*", or not. A comparison without the final
// zero is a prefix.
func outLink(tunnel bool) exprs { return linkIs(expr.MetaKeyOIFNAME, tunnel) }
func inLink(tunnel bool) exprs  { return linkIs(expr.MetaKeyIIFNAME, tunnel) }

func linkIs(key expr.MetaKey, tunnel bool) exprs {
	if !tunnel {
		return join(meta(key), isNot([]byte(linkPrefix)))
	}
	return join(meta(key), is([]byte(linkPrefix)))
}

// nextHop: rt ip nexthop, rt ip6 nexthop.
func nextHop(family int) exprs {
	if family == unix.AF_INET6 {
		return exprs{&expr.Rt{Register: reg, Key: expr.RtNexthop6}}
	}
	return exprs{&expr.Rt{Register: reg, Key: expr.RtNexthop4}}
}

// gatewayOfConnection: ct mark & markGateway.
func gatewayOfConnection() exprs { return gatewayIn(reg) }

// gatewayBeside is the same behind an address.
func gatewayBeside(family int) exprs {
	if family == unix.AF_INET6 {
		return gatewayIn(beside6)
	}
	return gatewayIn(beside4)
}

func gatewayIn(register uint32) exprs {
	return exprs{
		&expr.Ct{Key: expr.CtKeyMARK, Register: register},
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: word(markGateway), Xor: word(0)},
	}
}

// direction: ct direction.
func direction(d byte) exprs {
	return join(exprs{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg}}, is([]byte{d}))
}

const (
	original byte = 0 // IP_CT_DIR_ORIGINAL
	reply    byte = 1 // IP_CT_DIR_REPLY
)

// ctState: ct state, any of some.
func ctState(bits uint32) exprs {
	return join(exprs{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: word(bits), Xor: word(0)},
	}, isNot(word(0)))
}

// setMark: meta mark set (meta mark & ~mask) | m. Other bits are other people's.
func setMark(m, mask uint32) exprs {
	return join(meta(expr.MetaKeyMARK), replaceBits(m, mask), exprs{&expr.Meta{Key: expr.MetaKeyMARK, Register: reg, SourceRegister: true}})
}

// setConnectionMark: ct mark set (ct mark & ~mask) | m.
func setConnectionMark(m, mask uint32) exprs {
	return join(exprs{&expr.Ct{Key: expr.CtKeyMARK, Register: reg}}, replaceBits(m, mask),
		exprs{&expr.Ct{Key: expr.CtKeyMARK, Register: reg, SourceRegister: true}})
}

func replaceBits(m, mask uint32) exprs {
	return exprs{&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: word(^mask), Xor: word(m)}}
}

// oneOf: numgen random mod n == 0.
func oneOf(n uint32) exprs {
	return join(exprs{&expr.Numgen{Register: reg, Modulus: n, Type: unix.NFT_NG_RANDOM}}, is(word(0)))
}

func notrack() exprs          { return exprs{&expr.Notrack{}} }
func count() exprs            { return exprs{&expr.Counter{}} }
func drop() exprs             { return exprs{&expr.Verdict{Kind: expr.VerdictDrop}} }
func accept() exprs           { return exprs{&expr.Verdict{Kind: expr.VerdictAccept}} }
func goTo(chain string) exprs { return exprs{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}} }

func word(v uint32) []byte { return binaryutil.NativeEndian.PutUint32(v) }

func addressType(family int) nftables.SetDatatype {
	if family == unix.AF_INET6 {
		return nftables.TypeIP6Addr
	}
	return nftables.TypeIPAddr
}

// keys are addresses as keys of a set.
func keys(addrs ...netip.Addr) [][]byte {
	var list [][]byte
	for _, a := range addrs {
		if a.IsValid() {
			list = append(list, a.AsSlice())
		}
	}
	return list
}
