// Package uplinks keeps the complete desired state of a node's data path for repairs: its configuration, and
// the origin of pods' addresses, which is the ENIs of a VPC or the blocks of a routed node. The address source
// sets these up through this package.
//
//	uplinks.go   common parts; nodes without ENIs and blocks
//	vpc.go       ENIs
//	routed.go    blocks
package uplinks

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/berthnet/berth/internal/kernel/datapath"
)

// Node is the data path of a node. datapath.Node implements it for a kernel, and documents the methods.
type Node interface {
	Setup(ctx context.Context, c datapath.Config) error
	SetUplink(ctx context.Context, uplink datapath.Uplink) error
	RemoveUplink(ctx context.Context, number int) error
	UplinkLinks(ctx context.Context) (map[string]datapath.UplinkLink, error)
	SetBlocks(ctx context.Context, blocks []datapath.Block) error
	WithdrawBlocks(ctx context.Context) error
	Repair(ctx context.Context, want datapath.Desired) (repaired []string, err error)
	Watch(ctx context.Context) (<-chan datapath.Event, error)
	ForwardPolicy(ctx context.Context) ([]datapath.Finding, error)
	ARPFiltered() bool
	NodeAddresses(ctx context.Context) ([]datapath.NodeAddress, error)
	ForeignRoutes(ctx context.Context) ([]datapath.ForeignRoute, error)
	RemoveNodeAddress(ctx context.Context, addr netip.Addr) error

	AddPod(ctx context.Context, pod datapath.Pod) (datapath.PodLinks, error)
	CheckPod(ctx context.Context, pod datapath.Pod) error
	PodRules(ctx context.Context, uplink int, addrs []netip.Addr) ([]string, error)
	DetachPod(ctx context.Context, hostLink string, addrs []netip.Addr) error
	ReapLinks(ctx context.Context, hostLinks []string) error
	Inventory(ctx context.Context) (datapath.Inventory, error)
	Close() error
}

// node is a data path and its configuration.
type node struct {
	Node

	// mu is held during a repair and a change of ENIs or blocks, so that no repair works from a list that is older than
	// the change. ADD and DEL of a pod do not take it.
	mu     sync.Mutex
	config datapath.Config // guarded by mu
}

// setup is datapath.Node.Setup with these uplinks. Repairs use its configuration from then on. n.mu is held.
func (n *node) setup(ctx context.Context, config datapath.Config, uplinks datapath.Uplinks) error {
	config.Uplinks = uplinks
	if err := n.Node.Setup(ctx, config); err != nil {
		return err
	}
	n.config = config
	return nil
}

// Ports is the data path of a node whose pods have only ports of VPCs.
type Ports struct{ node }

// NewPorts wraps an open data path. Call Setup before anything else.
func NewPorts(data Node) *Ports { return &Ports{node{Node: data}} }

// Setup is datapath.Node.Setup. Repairs use its configuration from then on.
func (n *Ports) Setup(ctx context.Context, config datapath.Config) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.setup(ctx, config, datapath.Ports{})
}

// Repair implements the daemon's Upkeep.
func (n *Ports) Repair(ctx context.Context, pods []datapath.Pod, spare []string, _ func(uplink int) bool) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.Node.Repair(ctx, datapath.Desired{Config: n.config, Pods: pods, Spare: spare})
}

// None is the data path of a node whose pods get their interfaces from another network plugin. It changes nothing.
type None struct{}

// errNone is the error for a pod that got its address while the node had other settings.
var errNone = errors.New("this berthd has no addresses, and no data path for them (--ipam=none)")

// AddPod implements the daemon's Kernel. There is no pod to add.
func (None) AddPod(context.Context, datapath.Pod) (datapath.PodLinks, error) {
	return datapath.PodLinks{}, errNone
}

// CheckPod implements the daemon's Kernel.
func (None) CheckPod(context.Context, datapath.Pod) error { return errNone }

// PodRules implements the daemon's Kernel.
func (None) PodRules(context.Context, int, []netip.Addr) ([]string, error) { return nil, nil }

// DetachPod implements the daemon's Kernel. The link of an older pod is removed with its namespace.
func (None) DetachPod(context.Context, string, []netip.Addr) error { return nil }

// ReapLinks implements the daemon's Kernel.
func (None) ReapLinks(context.Context, []string) error { return nil }

// Inventory implements the daemon's Kernel.
func (None) Inventory(context.Context) (datapath.Inventory, error) {
	return datapath.Inventory{}, nil
}
