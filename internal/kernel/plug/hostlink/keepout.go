package hostlink

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/kernel/plug"
)

// NftTable is the name of the nftables table (family inet) of KeepFromNode. It stays when the
// last port goes.
const NftTable = datapath.PortNftTable

// KeepFromNode keeps what pods send to links of ports from the node's own network stack, which
// would take frames for the links' own MAC addresses: a pod would reach the node's sockets, and by
// the node other networks, past the VPC's security groups. That is so for a Linux bridge of a
// port, and for links that a switch in user space reads beside the stack. (Filters of tc would
// not last: Open vSwitch removes those of its ports.)
//
// The rules are for all ports, by link group and the beginning of the name. Netfilter may see
// frames that a bridge passes on too (br_netfilter): they come in and leave by the bridge.
func (n *Node) KeepFromNode() error {
	table, conn, err := n.keepTable()
	if err != nil {
		return err
	}
	if table.InKernel(conn) {
		return nil // a change of rules has the kernel wait for packets under way: half of a Plug's time
	}
	if err := table.Replace(conn); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("keep what pods send to links of ports from the node: %w", err)
	}
	return nil
}

// CheckKept notes when the rules of KeepFromNode are not as it makes them.
func (n *Node) CheckKept(found *plug.Differences) error {
	table, conn, err := n.keepTable()
	if err != nil {
		return err
	}
	if !table.InKernel(conn) {
		found.Add("nftables table inet %s does not keep what the pod sends from the node", NftTable)
	}
	return nil
}

// keepTable is the table of KeepFromNode, with a connection to nftables on the node.
func (n *Node) keepTable() (table nft.Table, conn *nftables.Conn, err error) {
	drop := func(comment string, matches ...nft.Exprs) nft.Rule {
		return nft.NewRule(comment, append(matches, nft.Drop())...)
	}
	filter, raw := nftables.ChainTypeFilter, nftables.ChainPriorityRaw
	table = nft.Table{Family: nftables.TableFamilyINet, Name: NftTable, Chains: []nft.Chain{
		nft.Base("from_switch", filter, nftables.ChainHookPrerouting, raw, drop("links of a switch in user space", comesBy("tap")), drop("links of a switch", comesBy("qvo"))),
		nft.Base("from_bridge", filter, nftables.ChainHookInput, raw, drop("bridges of ports", comesBy("qbr"))),
		nft.Base("by_bridge", filter, nftables.ChainHookForward, raw,
			drop("leaves by no port", comesBy("qbr"), nft.Meta(expr.MetaKeyOIFGROUP), nft.IsNot(nft.Word(plug.LinkGroup)...))),
	}}
	if table.Tag, err = table.Fingerprint(); err != nil {
		return table, nil, err
	}
	if conn, err = nftables.New(nftables.WithNetNSFd(int(n.NS))); err != nil {
		return table, nil, fmt.Errorf("open nftables: %w", err)
	}
	return table, conn, nil
}

// comesBy matches what comes in by links of ports whose names begin so.
func comesBy(prefix string) nft.Exprs {
	return nft.Join(nft.Meta(expr.MetaKeyIIFGROUP), nft.Is(nft.Word(plug.LinkGroup)...), nft.Meta(expr.MetaKeyIIFNAME), nft.Is([]byte(prefix)...))
}
