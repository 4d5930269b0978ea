package datapath

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// A pod needs no ARP requests: its gateway is a permanent neighbour, and so is the pod on the node. The node would
// add the claimed sender address of a request to a neighbour table that all namespaces of the kernel share. Replies
// pass: the kernel ignores those that it did not request.

// ARPFiltered reports whether the last Setup or Repair could set the table of family arp, which needs a kernel with
// CONFIG_NF_TABLES_ARP.
func (n *Node) ARPFiltered() bool { return !n.arp.unsupported.Load() }

// arpTable is the nftables table of family arp.
type arpTable struct {
	unsupported atomic.Bool // the last set found no support for the family in the kernel
}

// set creates or replaces the table. It succeeds on a kernel without the family.
func (t *arpTable) set(open func() (*nftables.Conn, error)) (changed []string, err error) {
	conn, err := open()
	if err != nil {
		return nil, err
	}
	rs, err := arpRuleset()
	if err != nil || rs.InKernel(conn) {
		t.unsupported.Store(false)
		return nil, err
	}
	if err := rs.Replace(conn); err != nil {
		return nil, err
	}
	err = conn.Flush()
	t.unsupported.Store(isWithoutARP(err))
	if isWithoutARP(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("replace nftables table arp %q: %w", NftTable, err)
	}
	return []string{"nftables table arp " + NftTable}, nil
}

// isWithoutARP reports whether a kernel rejected the table because it lacks the family. Newer kernels reject the table
// (EOPNOTSUPP), others its chain, as they lack the chain type (ENOENT, nf_tables_chain_type_lookup), and old ones
// return EAFNOSUPPORT. Later messages of the transaction then fail for lack of the table or chain (ENOENT). Any other
// error among them is a real failure.
func isWithoutARP(err error) bool {
	switch e := err.(type) { //nolint:errorlint // each one that is joined is looked at
	case nil:
		return false
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(one error) bool { return !isWithoutARP(one) })
	case interface{ Unwrap() error }:
		return isWithoutARP(e.Unwrap())
	}
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAFNOSUPPORT)
}

// arpRuleset is the content of Berth's table of family arp. It matches the link's group too, as a link of another
// network may have a name like those of pods.
func arpRuleset() (ruleset, error) {
	const groups = 0xffff // of the group of pod links
	rs := ruleset{Table: nft.Table{Name: NftTable, Family: nftables.TableFamilyARP,
		Chains: []nft.Chain{nft.Base("requests", nftables.ChainTypeFilter, hookARPInput, nftables.ChainPriorityFilter,
			nft.NewRule("ARP requests from pods", fromPod(), fromGroup(podGroup, ^uint32(groups)), arpRequest(), nft.Count(), nft.Drop()),
			nft.NewRule("ARP requests from pods on branches", fromPod(), fromGroup(rtnl.PortGroup, math.MaxUint32), arpRequest(), nft.Count(), nft.Drop()))},
	}}
	err := rs.seal()
	return rs, err
}

// hookARPInput is NF_ARP_IN (linux/netfilter_arp.h).
var hookARPInput = nftables.ChainHookRef(0)

// arpRequest: arp operation request (RFC 826: opcode 1, in octets 6 and 7).
func arpRequest() nft.Exprs {
	return nft.Join(nft.Network(6, 2), nft.Is(0, 1))
}
