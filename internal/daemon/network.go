package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/berthnet/berth/internal/datapath"
	"github.com/berthnet/berth/internal/eni"
)

// Network is a data path that remembers which ENIs or blocks were set up, so
// that a repair knows all that is wanted. The address source sets them up
// through it.
type Network struct {
	*datapath.Node

	// mu is held over a repair and a change of ENIs or blocks, which the data path
	// does one after the other anyhow, so that no repair works from a list of
	// before the change. Nothing of a pod's ADD or DEL takes it.
	mu     sync.Mutex
	config datapath.Config         // guarded by mu
	enis   map[string]datapath.ENI // guarded by mu; by ID
	blocks *[]datapath.Block       // guarded by mu; nil while the source has not told which there are
}

// NewNetwork wraps an open data path. Call Setup before anything else.
func NewNetwork(node *datapath.Node) *Network {
	return &Network{Node: node, enis: map[string]datapath.ENI{}}
}

// Setup is datapath.Node.Setup, remembered. Where addresses are of blocks the
// IPv6 data path is on too if the kernel has a block or a pod of IPv6 already:
// pods of before a restart go on.
func (n *Network) Setup(ctx context.Context, config datapath.Config) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if config.ExportTable != 0 && !config.EnableIPv6 {
		inv, err := n.Inventory(ctx)
		if err != nil {
			return err
		}
		config.EnableIPv6 = slices.ContainsFunc(inv.Blocks, func(b datapath.BlockInfo) bool { return b.Prefix.Addr().Is6() }) ||
			slices.ContainsFunc(inv.Routes, func(r datapath.RouteInfo) bool { return r.Addr.Is6() })
	}
	if err := n.Node.Setup(ctx, config); err != nil {
		return err
	}
	n.config = config
	return nil
}

// SetLocalCIDRs changes the VPC's CIDRs, and the data path if they are others.
func (n *Network) SetLocalCIDRs(ctx context.Context, cidrs []netip.Prefix) (changed bool, err error) {
	n.mu.Lock()
	next := n.config
	n.mu.Unlock()
	if len(cidrs) == 0 || slices.Equal(next.LocalCIDRs, cidrs) {
		return false, nil
	}
	next.LocalCIDRs = cidrs
	return true, n.Setup(ctx, next)
}

// SetENI makes an ENI fit for pods (datapath.Node.SetENI). It implements the
// ENI source's Datapath.
func (n *Network) SetENI(ctx context.Context, e eni.ENI) error {
	want := datapath.ENI{
		ID: e.ID, MAC: net.HardwareAddr(e.MAC), DeviceIndex: e.DeviceIndex, Primary: e.Primary,
		PrimaryIPv4: e.PrimaryIPv4, Subnet: e.Subnet,
		Addresses: slices.Concat(e.Addresses, e.IPv6), Prefixes: slices.Concat(e.Prefixes, e.IPv6Prefixes),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.Node.SetENI(ctx, want); err != nil {
		return err
	}
	n.enis[e.ID] = want
	return nil
}

// RemoveENI removes what SetENI made. It implements the ENI source's Datapath.
func (n *Network) RemoveENI(ctx context.Context, id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	e, ok := n.enis[id]
	if !ok {
		return nil
	}
	if !e.Primary {
		if err := n.Node.RemoveENI(ctx, e.DeviceIndex); err != nil {
			return err
		}
	}
	delete(n.enis, id)
	return nil
}

// SetBlocks makes the node's blocks these (datapath.Node.SetBlocks), or has the
// next repair do it when that fails. The IPv6 data path is turned on with the
// first block that has IPv6. It implements the pool source's Datapath.
func (n *Network) SetBlocks(ctx context.Context, blocks []datapath.Block) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	has6 := func(b datapath.Block) bool {
		return slices.ContainsFunc(b.Prefixes, func(p netip.Prefix) bool { return p.Addr().Is6() })
	}
	var no6 error // why blocks with IPv6, and no others, cannot be routed
	if !n.config.EnableIPv6 && slices.ContainsFunc(blocks, has6) {
		next := n.config
		next.EnableIPv6 = true
		if no6 = n.Node.Setup(ctx, next); no6 == nil {
			n.config = next
		}
	}
	wanted := slices.Clone(blocks)
	n.blocks = &wanted
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

// WithdrawBlocks is datapath.Node.WithdrawBlocks. No repair announces the blocks
// again before SetBlocks does.
func (n *Network) WithdrawBlocks(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.blocks = nil
	return n.Node.WithdrawBlocks(ctx)
}

// Repair implements Upkeep.
func (n *Network) Repair(ctx context.Context, pods []datapath.Pod, spare []string, mayNeed func(deviceIndex int) bool) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	want := datapath.Wanted{Config: n.config, Pods: pods, Spare: spare}
	if n.config.ExportTable != 0 {
		if n.blocks == nil {
			return nil, ErrSupplyUnknown
		}
		want.Blocks = *n.blocks
		return n.Node.Repair(ctx, want)
	}
	known := map[int]bool{}
	for _, e := range n.enis {
		want.ENIs = append(want.ENIs, e)
		known[e.DeviceIndex] = !e.Primary
	}
	inv, err := n.Inventory(ctx)
	if err != nil {
		return nil, err
	}
	for _, e := range inv.ENIs {
		if !known[e.DeviceIndex] && mayNeed(e.DeviceIndex) {
			return nil, fmt.Errorf("device index %d: %w", e.DeviceIndex, ErrSupplyUnknown)
		}
	}
	return n.Node.Repair(ctx, want)
}

// ErrSupplyUnknown: the kernel has, or may have, state of an ENI or a block that
// the address source has not set up yet, but may.
var ErrSupplyUnknown = errors.New("the address source has not set up yet what is its here")
