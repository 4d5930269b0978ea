package kubectl

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/view"
)

// Pools is the output of `kubectl berth pools -o json`.
type Pools struct {
	Pools  []Pool   `json:"pools"` // by name
	Unread []string `json:"unread"`
}

// Pool is one AddressPool.
type Pool struct {
	Name            string              `json:"name"`
	Subnets         []string            `json:"subnets"`         // CIDRs of both families, in the pool's order
	AcceptedSubnets int                 `json:"acceptedSubnets"` // number of subnets in use
	BlockSize       int                 `json:"blockSize"`       // addresses per block
	Blocks          v1alpha1.PoolCounts `json:"blocks"`
	Addresses       v1alpha1.PoolCounts `json:"addresses"`
	Requests        int                 `json:"requests"` // unanswered
	Ready           string              `json:"ready"`    // True, False or Unknown
	Reason          string              `json:"reason,omitempty"`
	Nodes           []PoolNode          `json:"nodes"`   // with blocks or requests, by number of blocks and name
	Trouble         []string            `json:"trouble"` // problems, one sentence each
}

// PoolNode counts a node's blocks and requests of a pool.
type PoolNode struct {
	Name     string `json:"name"`
	Blocks   int    `json:"blocks"`
	Draining int    `json:"draining"` // of those, being released
	Requests int    `json:"requests"` // unanswered
}

func (row Pool) unwell() bool { return len(row.Trouble) > 0 }

// poolsOf returns all pools, by name.
func poolsOf(o objects) []Pool {
	out := []Pool{}
	for _, p := range o.pools {
		out = append(out, poolOf(p, o))
	}
	slices.SortFunc(out, func(a, b Pool) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func poolOf(p v1alpha1.AddressPool, o objects) Pool {
	row := Pool{
		Name: p.Name, Subnets: []string{}, AcceptedSubnets: int(p.Status.AcceptedSubnets), BlockSize: 1 << v1alpha1.DefaultBlockSizeBits,
		Blocks: p.Status.Blocks, Addresses: p.Status.Addresses, Ready: string(metav1.ConditionUnknown), Nodes: []PoolNode{}, Trouble: []string{},
	}
	if b := p.Spec.BlockSizeBits; b != nil {
		row.BlockSize = 1 << min(max(*b, 0), 16)
	}
	for _, s := range p.Spec.Subnets {
		for _, cidr := range []string{s.IPv4, s.IPv6} {
			if cidr != "" {
				row.Subnets = append(row.Subnets, cidr)
			}
		}
	}
	nodes := map[string]*PoolNode{}
	at := func(name string) *PoolNode {
		if nodes[name] == nil {
			nodes[name] = &PoolNode{Name: name}
		}
		return nodes[name]
	}
	for _, b := range o.blocks {
		if b.PoolName == p.Name {
			n := at(b.NodeName)
			n.Blocks++
			if b.DeletionTimestamp != nil {
				n.Draining++
			}
		}
	}
	for _, r := range o.requests {
		if r.Spec.PoolName == p.Name && r.Status.AddressBlockName == "" {
			at(r.Spec.NodeName).Requests++
			row.Requests++
		}
	}
	for _, n := range nodes {
		row.Nodes = append(row.Nodes, *n)
	}
	slices.SortFunc(row.Nodes, func(a, b PoolNode) int { return cmp.Or(b.Blocks-a.Blocks, cmp.Compare(a.Name, b.Name)) })
	row.conditions(p)
	return row
}

func (row *Pool) conditions(p v1alpha1.AddressPool) {
	ready := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady)
	exhausted := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionExhausted)
	if ready != nil {
		row.Ready, row.Reason = string(ready.Status), ready.Reason
	}
	switch {
	case p.DeletionTimestamp != nil:
		row.Trouble = append(row.Trouble, "it is being deleted and gives no more blocks")
	case ready == nil:
		row.Trouble = append(row.Trouble, "berth-operator has not reported on it")
	case ready.Status != metav1.ConditionTrue:
		row.Trouble = append(row.Trouble, fmt.Sprintf("it is not ready (%s): %s", ready.Reason, ready.Message))
	}
	if exhausted != nil && exhausted.Status == metav1.ConditionTrue && (ready == nil || ready.Reason != exhausted.Reason) {
		row.Reason = exhausted.Reason
		row.Trouble = append(row.Trouble, fmt.Sprintf("no block is free (%s): %s", exhausted.Reason, exhausted.Message))
	}
	if n := len(p.Spec.Subnets); row.AcceptedSubnets < n && row.AcceptedSubnets > 0 {
		row.Trouble = append(row.Trouble, fmt.Sprintf("%d of its %d subnets are used: the others overlap those of another pool", row.AcceptedSubnets, n))
	}
}

func newPools(p *program) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "pools [POOL...]",
		Short: "Show address pools, and which nodes have their blocks",
		Long: `Show all address pools, or those named: their free blocks and addresses and their
problems. For named pools, or with -o wide, also the nodes that have their blocks. Exits
with 2 on a problem.`,
		ValidArgsFunction: completion{p}.others(poolsPath),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			a, err := p.reach(ctx)
			if err != nil {
				return err
			}
			o := objects{pools: a.pools(ctx), blocks: a.blocks(ctx, ""), requests: a.requests(ctx, "")}
			rows, err := choose(a, "AddressPool", "AddressPools", poolsOf(o), args, func(p Pool) string { return p.Name })
			if err != nil {
				return err
			}
			list := Pools{Pools: rows, Unread: a.unread.texts()}
			return out.finish(cmd, list, len(a.unread) > 0 || slices.ContainsFunc(rows, Pool.unwell), func(pr *view.Printer, wide bool) {
				writePools(pr, list, wide, wide || len(args) > 0)
			})
		},
	}
	out.register(cmd)
	return cmd
}

func writePools(p *view.Printer, list Pools, wide, nodes bool) {
	p.Table(poolGrid(list.Pools, wide), "No AddressPool exists.")
	for _, pool := range list.Pools {
		for _, t := range pool.Trouble {
			problem(p, pool.Name, t)
		}
	}
	for _, pool := range list.Pools {
		if !nodes {
			break
		}
		p.Section("Nodes with blocks of "+pool.Name, view.GridOf(pool.Nodes, func(n PoolNode) []any {
			return []any{n.Name, n.Blocks, n.Draining, n.Requests}
		}, "NODE", "BLOCKS", "DRAINING", "REQUESTS"), "No node has a block of this pool.")
	}
	notRead(p, list.Unread)
}

func poolGrid(pools []Pool, wide bool) *view.Grid {
	head := []string{"POOL", "BLOCKS", "FREE", "USE", "REQUESTS", "NODES", "READY"}
	if wide {
		head = append(head, "BLOCK SIZE", "ADDRESSES", "SUBNETS")
	}
	g := view.NewGrid(head...)
	for _, p := range pools {
		with := 0
		for _, n := range p.Nodes {
			if n.Blocks > 0 {
				with++
			}
		}
		state := yesNo(p.Ready)
		if p.Reason != "" && p.unwell() { // an exhausted pool is ready, and has a reason
			state += " (" + p.Reason + ")"
		}
		row := []any{p.Name, p.Blocks.Total, p.Blocks.Free, percent(p.Blocks.Allocated, p.Blocks.Total), p.Requests, with, state}
		if wide {
			row = append(row, p.BlockSize, p.Addresses.Total, strings.Join(p.Subnets, " "))
		}
		g.Add(row...)
		if p.unwell() {
			g.Tint(6, view.Bad)
		}
	}
	return g
}

// percent returns a part of a whole as text, or "" if the whole is not positive.
func percent[T int | int64](part, whole T) string {
	if whole <= 0 {
		return ""
	}
	return strconv.FormatInt(int64(part)*100/int64(whole), 10) + "%"
}
