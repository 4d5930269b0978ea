package egressclient

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/berthnet/berth/internal/kernel/nft"
)

// in: @name, for what was loaded.
func in(name string) nft.Exprs { return nft.In(&nftables.Set{Name: name}) }

// leadTo: vmap @name, for what was loaded.
func leadTo(name string) nft.Exprs { return nft.VerdictOf(&nftables.Set{Name: name}) }

// notByTunnel: oifname != "berth-egress*".
func notByTunnel() nft.Exprs {
	return nft.Join(nft.Meta(expr.MetaKeyOIFNAME), nft.IsNot([]byte(linkPrefix)...))
}

// fromTunnel: iifname "berth-egress*".
func fromTunnel() nft.Exprs {
	return nft.Join(nft.Meta(expr.MetaKeyIIFNAME), nft.Is([]byte(linkPrefix)...))
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
