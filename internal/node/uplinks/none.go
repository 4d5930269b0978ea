package uplinks

import (
	"context"
	"errors"
	"net/netip"

	"github.com/berthnet/berth/internal/kernel/datapath"
)

// None is the data path of a node whose pods' interfaces are another network's: nothing of
// the node is touched.
type None struct{}

// errNone is of a pod that got its address when the node's settings were others.
var errNone = errors.New("this berthd has no addresses, and no data path for them (--ipam=none)")

// AddPod implements the daemon's Kernel: there is no pod to add.
func (None) AddPod(context.Context, datapath.Pod) (datapath.PodLinks, error) {
	return datapath.PodLinks{}, errNone
}

// CheckPod implements the daemon's Kernel.
func (None) CheckPod(context.Context, datapath.Pod) error { return errNone }

// PodRules implements the daemon's Kernel.
func (None) PodRules(context.Context, int, []netip.Addr) ([]string, error) { return nil, nil }

// DetachPod implements the daemon's Kernel. A pod of before goes with its namespace.
func (None) DetachPod(context.Context, string, []netip.Addr) error { return nil }

// ReapLinks implements the daemon's Kernel.
func (None) ReapLinks(context.Context, []string) error { return nil }

// Inventory implements the daemon's Kernel.
func (None) Inventory(context.Context) (datapath.Inventory, error) {
	return datapath.Inventory{}, nil
}
