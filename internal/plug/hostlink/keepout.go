package hostlink

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"github.com/berthnet/berth/internal/plug"
)

// NftTable is the name of the nftables table (family inet) of KeepFromNode. It stays when the
// last port goes.
const NftTable = "berth-ports"

// KeepFromNode keeps what pods send to links of ports from the node's own network stack, which
// would take frames for the links' own MAC addresses: a pod would reach the node's sockets, and by
// the node other networks, past the VPC's security groups. That is so for a Linux bridge of a
// port, and for links that a switch in user space reads beside the stack. (Filters of tc would
// not last: Open vSwitch removes those of its ports.)
//
// The rules are for all ports, by link group and the beginning of the name. Netfilter may see
// frames that a bridge passes on too (br_netfilter): they come in and leave by the bridge.
func (n *Node) KeepFromNode() error {
	conn, err := nftables.New(nftables.WithNetNSFd(int(n.NS)))
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := conn.AddTable(&nftables.Table{Name: NftTable, Family: nftables.TableFamilyINet})
	drop := func(hook *nftables.ChainHook, name string, matches ...[]expr.Any) {
		chain := conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityRaw})
		conn.FlushChain(chain)
		for _, m := range matches {
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(m, &expr.Verdict{Kind: expr.VerdictDrop})})
		}
	}
	drop(nftables.ChainHookPrerouting, "from_switch", comesBy("tap"), comesBy("qvo"))
	drop(nftables.ChainHookInput, "from_bridge", comesBy("qbr"))
	drop(nftables.ChainHookForward, "by_bridge", append(comesBy("qbr"), group(expr.MetaKeyOIFGROUP, expr.CmpOpNeq)...))
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("keep what pods send to links of ports from the node: %w", err)
	}
	return nil
}

// comesBy matches what comes in by links of ports whose names begin so.
func comesBy(prefix string) []expr.Any {
	return append(group(expr.MetaKeyIIFGROUP, expr.CmpOpEq),
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(prefix)},
	)
}

// group matches links that are those of ports, or are not.
func group(key expr.MetaKey, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: op, Register: 1, Data: binaryutil.NativeEndian.PutUint32(plug.LinkGroup)},
	}
}
