package uplinks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/source"
)

// Routed is the data path of a node whose addresses come from blocks.
type Routed struct {
	node
	blocks *[]datapath.Block // guarded by mu; nil until SetBlocks
}

// NewRouted wraps an open data path. Call Setup before anything else.
func NewRouted(data Node) *Routed {
	return &Routed{node: node{Node: data}}
}

// Setup is datapath.Node.Setup with these uplinks. Repairs use its configuration from then on. It also turns the IPv6
// data path on if the kernel has a block or a pod with IPv6, so that pods from before a restart keep working.
func (n *Routed) Setup(ctx context.Context, config datapath.Config, routed datapath.Routed) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !routed.IPv6 {
		inv, err := n.Inventory(ctx)
		if err != nil {
			return err
		}
		routed.IPv6 = slices.ContainsFunc(inv.Blocks, func(b datapath.BlockInfo) bool { return b.Prefix.Addr().Is6() }) ||
			slices.ContainsFunc(inv.Routes, func(r datapath.RouteInfo) bool { return r.Addr.Is6() })
	}
	return n.setup(ctx, config, routed)
}

// SetBlocks replaces the node's blocks (datapath.Node.SetBlocks). If that fails, the
// next repair retries it. The first block with IPv6 turns the IPv6 data path
// on. It implements the pool source's Datapath.
func (n *Routed) SetBlocks(ctx context.Context, blocks []datapath.Block) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	has6 := func(b datapath.Block) bool {
		return slices.ContainsFunc(b.Prefixes, func(p netip.Prefix) bool { return p.Addr().Is6() })
	}
	var no6 error // error that affects only blocks with IPv6
	if next, _ := n.config.Uplinks.(datapath.Routed); !next.IPv6 && slices.ContainsFunc(blocks, has6) {
		next.IPv6 = true
		no6 = n.setup(ctx, n.config, next)
	}
	desired := slices.Clone(blocks)
	n.blocks = &desired
	err := n.Node.SetBlocks(ctx, blocks)
	if e, ok := errors.AsType[*datapath.BlocksError](err); ok && no6 != nil {
		for _, b := range blocks {
			if has6(b) {
				e.Failed[b.Name] = fmt.Errorf("block %s: turn on the IPv6 data path: %w", b.Name, no6)
			}
		}
	}
	return cmp.Or(err, no6)
}

// WithdrawBlocks is datapath.Node.WithdrawBlocks. Repairs do not announce the blocks
// again until SetBlocks is called.
func (n *Routed) WithdrawBlocks(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.blocks = nil
	return n.Node.WithdrawBlocks(ctx)
}

// Repair implements the daemon's Upkeep. It fails with source.ErrSupplyUnknown before the first SetBlocks and after
// WithdrawBlocks.
func (n *Routed) Repair(ctx context.Context, pods []datapath.Pod, spare []string, _ func(uplink int) bool) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.blocks == nil {
		return nil, source.ErrSupplyUnknown
	}
	return n.Node.Repair(ctx, datapath.Desired{Config: n.config, Supply: datapath.BlockList(*n.blocks), Pods: pods, Spare: spare})
}
