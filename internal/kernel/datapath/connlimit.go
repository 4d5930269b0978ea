package datapath

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/nft"
)

// All connections of a node share one table of connection tracking; a pod that
// fills it keeps every other from new connections. With Config.MaxConnections a
// pod is refused its own further ones before.

// atConnections is after connection tracking has looked at a packet and before
// NAT has.
var atConnections = nftables.ChainPriorityMangle

// addConnectionLimit drops a pod's packets that would open more than limit
// connections.
func (rs *ruleset) addConnectionLimit(limit uint32) {
	ch := nft.Base("connections", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, atConnections,
		nft.NewRule("not from a pod", notFromPod(), nft.Accept()))
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		set := connectionSet(family)
		rs.Sets = append(rs.Sets, nft.Set{Set: set})
		ch.Rules = append(ch.Rules, nft.NewRule("more connections than a pod may have",
			nft.Family(family), nft.CtState(expr.CtStateBitNEW), nft.Source(family), countedOver(set, limit), nft.Count(), nft.Drop()))
	}
	rs.Chains = append(rs.Chains, ch)
}

// connectionSet has the pods of a family that have connections. The kernel
// removes those that have none any more.
func connectionSet(family int) *nftables.Set {
	s := &nftables.Set{Table: berthTable(), ID: 7, Name: "connections4", KeyType: nftables.TypeIPAddr, Dynamic: true, Size: 65536}
	if family == unix.AF_INET6 {
		s.ID, s.Name, s.KeyType = 8, "connections6", nftables.TypeIP6Addr
	}
	return s
}

// countedOver: add @set { the loaded value ct count over N }.
func countedOver(s *nftables.Set, limit uint32) nft.Exprs {
	return nft.Exprs{&expr.Dynset{SrcRegKey: nft.Register, SetName: s.Name, SetID: s.ID, Operation: unix.NFT_DYNSET_OP_ADD,
		Exprs: []expr.Any{&expr.Connlimit{Count: limit, Flags: expr.NFT_CONNLIMIT_F_INV}}}}
}
