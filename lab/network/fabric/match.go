package fabric

import (
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Building blocks of the router's rules. Comments show the output of nft(8).

// flatten joins expressions and lists of expressions.
func flatten(parts []any) []expr.Any {
	var out []expr.Any
	for _, p := range parts {
		switch p := p.(type) {
		case []expr.Any:
			out = append(out, p...)
		case expr.Any:
			out = append(out, p)
		}
	}
	return out
}

func verdict(k expr.VerdictKind) expr.Any { return &expr.Verdict{Kind: k} }

func equal(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

// iifname "name", oifname "name"
func link(key expr.MetaKey, name string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, equal(ifname(name))}
}

// iifname vmap @set, oifname vmap @set
func vmap(key expr.MetaKey, set *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Lookup{SourceRegister: 1, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: set.Name, SetID: set.ID},
	}
}

// @set, != @set, for the value in register 1
func in(set *nftables.Set) expr.Any {
	return &expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID}
}
func notIn(set *nftables.Set) expr.Any {
	return &expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID, Invert: true}
}

// meta nfproto ipv4, ipv6
func ipv4() []expr.Any { return family(unix.NFPROTO_IPV4) }
func ipv6() []expr.Any { return family(unix.NFPROTO_IPV6) }
func family(f byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal([]byte{f})}
}

// ip saddr, ip daddr, into register 1
func saddr4() expr.Any { return header(12, 4) }
func daddr4() expr.Any { return header(16, 4) }
func header(offset, n uint32) expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: n}
}

// ip6 daddr ff00::/8
func daddr6Multicast() []expr.Any { return []expr.Any{header(24, 1), equal([]byte{0xff})} }

// prefixMatch matches an address of the network header, which is at offset.
func prefixMatch(offset uint32, p netip.Prefix) []expr.Any {
	if p.Bits() == 0 {
		return nil
	}
	n := uint32(p.Addr().BitLen() / 8)
	return []expr.Any{
		header(offset, n),
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: n,
			Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()), Xor: make([]byte, n),
		},
		equal(p.Masked().Addr().AsSlice()),
	}
}

// ct state established,related
func established() []expr.Any {
	mask := binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

// Inputs and results of a fib lookup.
var (
	fibSource      = expr.Fib{Register: 1, ResultOIF: true, FlagSADDR: true, FlagIIF: true}
	fibDestination = expr.Fib{Register: 1, ResultOIF: true, FlagDADDR: true}
)

// fib saddr . iif oif missing, fib daddr oif missing
func fibMissing(f expr.Fib) []expr.Any {
	return []expr.Any{&f, equal(make([]byte, 4))}
}

// fib daddr type local
func fibLocal() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true},
		equal(binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)),
	}
}
