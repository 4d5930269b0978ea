// Package carrier is the node's data path as its source of addresses sets it up: what
// carries the addresses of pods there, the ENIs of a VPC or the blocks of a routed node,
// is remembered, so that a repair knows all that is wanted.
//
//	carrier.go   what all have
//	vpc.go       ENIs
//	routed.go    blocks
//	ports.go     nothing, where pods have ports of VPCs only
//	none.go      nothing, where pods' interfaces are another network's
package carrier

import (
	"context"
	"sync"

	"github.com/berthnet/berth/internal/datapath"
)

// node is a data path that remembers its configuration.
type node struct {
	*datapath.Node

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
