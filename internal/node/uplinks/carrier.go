// Package uplinks is the node's data path as its source of addresses sets it up: what
// carries the addresses of pods there, the ENIs of a VPC or the blocks of a routed node,
// is remembered, so that a repair knows all that is wanted.
//
//	carrier.go   what all have
//	vpc.go       ENIs
//	routed.go    blocks
//	ports.go     nothing, where pods have ports of VPCs only
//	none.go      nothing, where pods' interfaces are another network's
package uplinks

import (
	"context"
	"net/netip"
	"sync"

	"github.com/berthnet/berth/internal/kernel/datapath"
)

// Node is a data path; datapath.Node is the one of a kernel, and documents the methods.
type Node interface {
	Setup(ctx context.Context, c datapath.Config) error
	SetUplink(ctx context.Context, uplink datapath.Uplink) error
	RemoveUplink(ctx context.Context, number int) error
	UplinkLinks(ctx context.Context) (map[string]datapath.UplinkLink, error)
	SetBlocks(ctx context.Context, blocks []datapath.Block) error
	WithdrawBlocks(ctx context.Context) error
	Repair(ctx context.Context, want datapath.Wanted) (repaired []string, err error)
	Watch(ctx context.Context) (<-chan datapath.Event, error)
	ForwardPolicy(ctx context.Context) ([]datapath.Finding, error)
	ARPFiltered() bool
	NodeAddresses(ctx context.Context) ([]datapath.NodeAddress, error)
	RemoveNodeAddress(ctx context.Context, addr netip.Addr) error

	AddPod(ctx context.Context, pod datapath.Pod) (datapath.PodLinks, error)
	CheckPod(ctx context.Context, pod datapath.Pod) error
	PodRules(ctx context.Context, uplink int, addrs []netip.Addr) ([]string, error)
	DetachPod(ctx context.Context, hostLink string, addrs []netip.Addr) error
	ReapLinks(ctx context.Context, hostLinks []string) error
	Inventory(ctx context.Context) (datapath.Inventory, error)
	Close() error
}

// node is a data path that remembers its configuration.
type node struct {
	Node

	// mu is held over a repair and a change of ENIs or blocks, which the data path
	// does one after the other anyhow, so that no repair works from a list of
	// before the change. Nothing of a pod's ADD or DEL takes it.
	mu     sync.Mutex
	config datapath.Config // guarded by mu
}

// setup is datapath.Node.Setup with these uplinks, remembered. n.mu is held.
func (n *node) setup(ctx context.Context, config datapath.Config, uplinks datapath.Uplinks) error {
	config.Uplinks = uplinks
	if err := n.Node.Setup(ctx, config); err != nil {
		return err
	}
	n.config = config
	return nil
}
