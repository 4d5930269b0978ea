package uplinks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/source"
)

// VPC is the data path of a node whose addresses come from ENIs.
type VPC struct {
	node
	enis map[string]datapath.Uplink // guarded by mu; by ID
}

// NewVPC wraps an open data path. Call Setup before anything else.
func NewVPC(data Node) *VPC {
	return &VPC{node: node{Node: data}, enis: map[string]datapath.Uplink{}}
}

// Setup is datapath.Node.Setup with these uplinks. Repairs use its configuration from then on.
func (n *VPC) Setup(ctx context.Context, config datapath.Config, vpc datapath.VPC) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.setup(ctx, config, vpc)
}

// SetLocalCIDRs sets the VPC's CIDRs, and updates the data path if they have changed.
func (n *VPC) SetLocalCIDRs(ctx context.Context, cidrs []netip.Prefix) (changed bool, err error) {
	n.mu.Lock()
	config := n.config
	n.mu.Unlock()
	next, _ := config.Uplinks.(datapath.VPC)
	if len(cidrs) == 0 || slices.Equal(next.LocalCIDRs, cidrs) {
		return false, nil
	}
	next.LocalCIDRs = cidrs
	return true, n.Setup(ctx, config, next)
}

// SetENI sets up an ENI for pods (datapath.Node.SetUplink). The number of an ENI is its
// device index, so that its table and mark stay the same across restarts, as running pods
// require. It implements the ENI source's Datapath.
func (n *VPC) SetENI(ctx context.Context, e eni.ENI) error {
	want := datapath.Uplink{
		ID: e.ID, MAC: net.HardwareAddr(e.MAC), Number: e.DeviceIndex, Primary: e.Primary,
		PrimaryIPv4: e.PrimaryIPv4, Subnet: e.Subnet,
		Addresses: slices.Concat(e.Addresses, e.IPv6), Prefixes: slices.Concat(e.Prefixes, e.IPv6Prefixes),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.Node.SetUplink(ctx, want); err != nil {
		if errors.Is(err, datapath.ErrNoLink) {
			err = fmt.Errorf("%w: %w", source.ErrNoLink, err)
		}
		return err
	}
	n.enis[e.ID] = want
	return nil
}

// ChangedLinks implements the ENI source's Datapath.
func (n *VPC) ChangedLinks(ctx context.Context) (map[string]source.LinkChange, error) {
	links, err := n.UplinkLinks(ctx)
	if err != nil {
		return nil, err
	}
	changed := map[string]source.LinkChange{}
	for id, l := range links {
		switch l.Now {
		case l.Set:
		case 0:
			changed[id] = source.LinkGone
		default:
			changed[id] = source.LinkReplaced
		}
	}
	return changed, nil
}

// RemoveENI reverts SetENI. It implements the ENI source's Datapath.
func (n *VPC) RemoveENI(ctx context.Context, id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	e, ok := n.enis[id]
	if !ok {
		return nil
	}
	if !e.Primary {
		if err := n.Node.RemoveUplink(ctx, e.Number); err != nil {
			return err
		}
	}
	delete(n.enis, id)
	return nil
}

// Repair implements the daemon's Upkeep. It fails with source.ErrSupplyUnknown if the kernel has state of an ENI for
// which SetENI was not called yet and for which mayNeed returns true.
func (n *VPC) Repair(ctx context.Context, pods []datapath.Pod, spare []string, mayNeed func(uplink int) bool) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var uplinks datapath.UplinkList
	known := map[int]bool{}
	for _, e := range n.enis {
		uplinks = append(uplinks, e)
		known[e.Number] = !e.Primary
	}
	inv, err := n.Inventory(ctx)
	if err != nil {
		return nil, err
	}
	for _, e := range inv.Uplinks {
		if !known[e.Number] && mayNeed(e.Number) {
			return nil, fmt.Errorf("uplink %d: %w", e.Number, source.ErrSupplyUnknown)
		}
	}
	return n.Node.Repair(ctx, datapath.Desired{Config: n.config, Supply: uplinks, Pods: pods, Spare: spare})
}
