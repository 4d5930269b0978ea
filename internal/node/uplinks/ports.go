package uplinks

import (
	"context"

	"github.com/berthnet/berth/internal/kernel/datapath"
)

// Ports is the data path of a node whose pods have ports of VPCs only.
type Ports struct{ node }

// NewPorts wraps an open data path. Call Setup before anything else.
func NewPorts(data Node) *Ports { return &Ports{node{Node: data}} }

// Setup is datapath.Node.Setup, remembered.
func (n *Ports) Setup(ctx context.Context, config datapath.Config) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.setup(ctx, config, datapath.Ports{})
}

// Repair implements the daemon's Upkeep.
func (n *Ports) Repair(ctx context.Context, pods []datapath.Pod, spare []string, _ func(uplink int) bool) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.Node.Repair(ctx, datapath.Wanted{Config: n.config, Pods: pods, Spare: spare})
}
