package daemon

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/berthnet/berth/internal/datapath"
)

// Network is a data path that remembers which ENIs were set up, so that a
// repair knows all that is wanted. The address source sets ENIs up through it.
type Network struct {
	*datapath.Node
	config datapath.Config

	// mu is held over a repair and a change of an ENI, which the data path
	// does one after the other anyhow, so that no repair works from a list of
	// before the change. Nothing of a pod's ADD or DEL takes it.
	mu       sync.Mutex
	enis     map[string]datapath.ENI // guarded by mu; by ID
	complete func(known map[int]bool) bool
}

// NewNetwork wraps a data path that is set up with this configuration.
// complete tells whether the device indexes of the ENIs that were set up are
// all that the node has; see Upkeep.Repair.
func NewNetwork(node *datapath.Node, config datapath.Config, complete func(known map[int]bool) bool) *Network {
	return &Network{Node: node, config: config, enis: map[string]datapath.ENI{}, complete: complete}
}

// SetENI is datapath.Node.SetENI, remembered.
func (n *Network) SetENI(ctx context.Context, eni datapath.ENI) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.Node.SetENI(ctx, eni); err != nil {
		return err
	}
	n.enis[eni.ID] = eni
	return nil
}

// RemoveENI is datapath.Node.RemoveENI, remembered.
func (n *Network) RemoveENI(ctx context.Context, deviceIndex int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.Node.RemoveENI(ctx, deviceIndex); err != nil {
		return err
	}
	maps.DeleteFunc(n.enis, func(_ string, e datapath.ENI) bool { return !e.Primary && e.DeviceIndex == deviceIndex })
	return nil
}

// Repair implements Upkeep.
func (n *Network) Repair(ctx context.Context, pods []datapath.Pod) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	known := map[int]bool{}
	for _, e := range n.enis {
		known[e.DeviceIndex] = true
	}
	if !n.complete(known) {
		return nil, ErrENIsUnknown
	}
	return n.Node.Repair(ctx, datapath.Wanted{Config: n.config, ENIs: slices.Collect(maps.Values(n.enis)), Pods: pods})
}
