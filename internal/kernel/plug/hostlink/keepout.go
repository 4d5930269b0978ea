package hostlink

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"github.com/berthnet/berth/internal/kernel/datapath"
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
	conn, err := nftables.New(nftables.WithNetNSFd(int(n.NS)))
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	if kept(conn) {
		return nil // a change of rules has the kernel wait for packets under way: half of a Plug's time
	}
	table := conn.AddTable(keepTable)
	for _, c := range keepChains() {
		chain := conn.AddChain(&nftables.Chain{Name: c.name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: c.hook, Priority: nftables.ChainPriorityRaw})
		conn.FlushChain(chain)
		for _, exprs := range c.drops {
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: exprs})
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("keep what pods send to links of ports from the node: %w", err)
	}
	return nil
}

// CheckKept notes when the rules of KeepFromNode are not as it makes them.
func (n *Node) CheckKept(found *plug.Differences) error {
	conn, err := nftables.New(nftables.WithNetNSFd(int(n.NS)))
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	if !kept(conn) {
		found.Add("nftables table inet %s does not keep what the pod sends from the node", NftTable)
	}
	return nil
}

var keepTable = &nftables.Table{Name: NftTable, Family: nftables.TableFamilyINet}

// keepChain is a chain of KeepFromNode, with its rules.
type keepChain struct {
	name  string
	hook  *nftables.ChainHook
	drops [][]expr.Any
}

func keepChains() []keepChain {
	drop := func(matches ...expr.Any) []expr.Any { return append(matches, &expr.Verdict{Kind: expr.VerdictDrop}) }
	return []keepChain{
		{"from_switch", nftables.ChainHookPrerouting, [][]expr.Any{drop(comesBy("tap")...), drop(comesBy("qvo")...)}},
		{"from_bridge", nftables.ChainHookInput, [][]expr.Any{drop(comesBy("qbr")...)}},
		{"by_bridge", nftables.ChainHookForward, [][]expr.Any{drop(append(comesBy("qbr"), group(expr.MetaKeyOIFGROUP, expr.CmpOpNeq)...)...)}},
	}
}

// kept tells whether the rules of KeepFromNode are there, as it makes them and no others. What
// cannot be read is not there.
func kept(conn *nftables.Conn) bool {
	there, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return false
	}
	for _, c := range keepChains() {
		i := slices.IndexFunc(there, func(o *nftables.Chain) bool { return o.Table.Name == NftTable && o.Name == c.name })
		if i < 0 || there[i].Type != nftables.ChainTypeFilter || there[i].Hooknum == nil || *there[i].Hooknum != *c.hook ||
			there[i].Priority == nil || *there[i].Priority != *nftables.ChainPriorityRaw {
			return false
		}
		rules, err := conn.GetRules(keepTable, there[i])
		if err != nil || !slices.EqualFunc(rules, c.drops, func(r *nftables.Rule, want []expr.Any) bool { return reflect.DeepEqual(r.Exprs, want) }) {
			return false
		}
	}
	return true
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
