package daemon

import (
	"errors"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/node/attachment"
)

// netnsOf identifies the sandbox's namespace, or says what is wrong with it.
func (d *Daemon) netnsOf(path string) (attachment.Netns, error) {
	id, err := d.InspectNetns(path)
	switch {
	case errors.Is(err, datapath.ErrNoNetns):
		return attachment.Netns{}, failf(types.ErrInvalidNetNS, "netns-missing", "network namespace %s does not exist; is the directory of namespaces mounted into berthd with HostToContainer propagation?", path)
	case errors.Is(err, datapath.ErrNotNetns):
		return attachment.Netns{}, failf(types.ErrInvalidNetNS, "netns-invalid", "%s: it was unmounted, or its mount does not reach berthd (HostToContainer propagation is needed)", err)
	case err != nil:
		return attachment.Netns{}, failf(types.ErrInvalidNetNS, "netns-invalid", "opening the network namespace: %s", err)
	}
	return attachment.Netns{Path: path, Dev: id.Dev, Inode: id.Inode}, nil
}

// netnsAlive tells whether a recorded path still leads to the namespace that
// was recorded. An error other than that it does not is returned.
func (d *Daemon) netnsAlive(ns attachment.Netns) (bool, error) {
	now, err := d.InspectNetns(ns.Path)
	if errors.Is(err, datapath.ErrNoNetns) || errors.Is(err, datapath.ErrNotNetns) {
		return false, nil
	}
	return err == nil && now == netnsID(ns), err
}

func netnsID(ns attachment.Netns) datapath.NetnsID {
	return datapath.NetnsID{Dev: ns.Dev, Inode: ns.Inode}
}
