package datapath

import (
	"github.com/vishvananda/netns"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// NetnsID tells network namespaces apart, as long as both exist.
type NetnsID = rtnl.NetnsID

// InspectNetns identifies the network namespace at a path. Errors: ErrNoNetns,
// ErrNotNetns.
func InspectNetns(path string) (NetnsID, error) { return rtnl.InspectNetns(path) }

// openPodNetns opens a pod's namespace, which must be the one that the pod was
// given, if that is known, and not the node's own.
func (k *kernel) openPodNetns(pod Pod) (netns.NsHandle, error) {
	return rtnl.OpenPodNetns(pod.Netns, pod.NetnsID, k.nsID)
}
