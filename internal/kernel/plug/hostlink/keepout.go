package hostlink

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/kernel/plug"
)

// NftTable is the nftables table (family inet) of KeepFromNode. It stays when the last port is
// unplugged.
const NftTable = datapath.PortNftTable

// KeepFromNode drops frames from pods before they reach the node's own network stack through the links of ports. The
// stack would accept frames for the MAC addresses of these links, so a pod could reach the node's sockets, and other
// networks through the node, bypassing the VPC's security groups. This concerns the Linux bridge of a port, and links
// that a user space switch reads beside the stack. tc filters would not last, because Open vSwitch removes them from
// its ports.
//
// The rules cover all ports, by link group and name prefix. Frames that a bridge forwards stay
// allowed if netfilter sees them (br_netfilter): both their incoming and their outgoing link is the
// bridge.
func (n *Node) KeepFromNode() error {
	table, conn, err := n.keepTable()
	if err != nil {
		return err
	}
	if table.InKernel(conn) {
		return nil // a change of rules waits for packets in flight, which would be half of the time of a Plug
	}
	if err := table.Replace(conn); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("drop frames from pods to the node: %w", err)
	}
	return nil
}

// CheckKept adds missing or changed rules of KeepFromNode to the differences.
func (n *Node) CheckKept(found *plug.Differences) error {
	table, conn, err := n.keepTable()
	if err != nil {
		return err
	}
	if !table.InKernel(conn) {
		found.Add("nftables table inet %s lacks a rule that drops frames from the pod to the node", NftTable)
	}
	return nil
}

// keepTable is the table of KeepFromNode, with an nftables connection in the node's namespace.
func (n *Node) keepTable() (table nft.Table, conn *nftables.Conn, err error) {
	drop := func(comment string, matches ...nft.Exprs) nft.Rule {
		return nft.NewRule(comment, append(matches, nft.Drop())...)
	}
	filter, raw := nftables.ChainTypeFilter, nftables.ChainPriorityRaw
	table = nft.Table{Family: nftables.TableFamilyINet, Name: NftTable, Chains: []nft.Chain{
		nft.Base("from_switch", filter, nftables.ChainHookPrerouting, raw, drop("from a link of a user-space switch", comesBy("tap")), drop("from a link of a switch", comesBy("qvo"))),
		nft.Base("from_bridge", filter, nftables.ChainHookInput, raw, drop("from a port's bridge", comesBy("qbr"))),
		nft.Base("by_bridge", filter, nftables.ChainHookForward, raw,
			drop("from a port's bridge, but not to a port", comesBy("qbr"), nft.Meta(expr.MetaKeyOIFGROUP), nft.IsNot(nft.Word(plug.LinkGroup)...))),
	}}
	if table.Tag, err = table.Fingerprint(); err != nil {
		return table, nil, err
	}
	if conn, err = nftables.New(nftables.WithNetNSFd(int(n.NS))); err != nil {
		return table, nil, fmt.Errorf("open nftables: %w", err)
	}
	return table, conn, nil
}

// comesBy matches packets that come in by links of ports with a name prefix.
func comesBy(prefix string) nft.Exprs {
	return nft.Join(nft.Meta(expr.MetaKeyIIFGROUP), nft.Is(nft.Word(plug.LinkGroup)...), nft.ComesBy(prefix))
}
