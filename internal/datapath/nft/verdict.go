package nft

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/datapath/rtnl"
)

// Count: counter.
func Count() Exprs { return Exprs{&expr.Counter{}} }

// CountAs: counter name NAME.
func CountAs(name string) Exprs {
	return Exprs{&expr.Objref{Type: int(nftables.ObjTypeCounter), Name: name}}
}

// Accept: accept.
func Accept() Exprs { return Exprs{&expr.Verdict{Kind: expr.VerdictAccept}} }

// Drop: drop.
func Drop() Exprs { return Exprs{&expr.Verdict{Kind: expr.VerdictDrop}} }

// GoTo: goto CHAIN.
func GoTo(chain string) Exprs {
	return Exprs{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}

// Notrack: notrack.
func Notrack() Exprs { return Exprs{&expr.Notrack{}} }

// Reset: reject with tcp reset.
func Reset() Exprs { return Exprs{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}} }

// Reject: reject with icmpx, with a code of either family (unix.NFT_REJECT_ICMPX_NO_ROUTE …).
func Reject(code uint8) Exprs {
	return Exprs{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: code}}
}

// Masquerade: masquerade.
func Masquerade() Exprs { return Exprs{&expr.Masq{}} }

// SNATTo: snat to ADDRESS fully-random.
func SNATTo(a netip.Addr) Exprs {
	return Exprs{
		&expr.Immediate{Register: Register, Data: a.AsSlice()},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: protoOf(rtnl.FamilyOf(a)), RegAddrMin: Register, FullyRandom: true},
	}
}
