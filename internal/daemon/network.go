package daemon

import (
	"context"
	"errors"
	"sync"

	"github.com/berthnet/berth/internal/datapath"
)

// network is a data path that remembers its configuration, so that a repair knows
// all that is wanted. What carries pods is set up through a VPCNetwork or a
// RoutedNetwork.
type network struct {
	*datapath.Node

	// mu is held over a repair and a change of ENIs or blocks, which the data path
	// does one after the other anyhow, so that no repair works from a list of
	// before the change. Nothing of a pod's ADD or DEL takes it.
	mu     sync.Mutex
	config datapath.Config // guarded by mu
}

// setup is datapath.Node.Setup with these uplinks, remembered. n.mu is held.
func (n *network) setup(ctx context.Context, config datapath.Config, uplinks datapath.Uplinks) error {
	config.Uplinks = uplinks
	if err := n.Node.Setup(ctx, config); err != nil {
		return err
	}
	n.config = config
	return nil
}

var (
	_ Upkeep = (*VPCNetwork)(nil)
	_ Upkeep = (*RoutedNetwork)(nil)
	_ Kernel = (*datapath.Node)(nil)
)

// ErrSupplyUnknown: the kernel has, or may have, state of an ENI or a block that
// the address source has not set up yet, but may.
var ErrSupplyUnknown = errors.New("the address source has not set up yet what is its here")
