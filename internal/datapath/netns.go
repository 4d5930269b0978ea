package datapath

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// NetnsID tells network namespaces apart, as long as both exist: it is the
// device and inode of its file in nsfs (namespaces(7)).
type NetnsID struct {
	Dev, Inode uint64
}

func identify(ns netns.NsHandle) (NetnsID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(ns), &st); err != nil {
		return NetnsID{}, fmt.Errorf("stat network namespace: %w", err)
	}
	return NetnsID{st.Dev, st.Ino}, nil
}

// openNetns opens the namespace at a path. A missing path, and whatever else is
// there, such as the plain file that is left where a namespace was unmounted, are
// ErrNoNetns. Nothing else is opened than a namespace: a FIFO would hold the
// caller for good, and a device may act.
func openNetns(path string) (netns.NsHandle, error) {
	place, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return netns.None(), fmt.Errorf("%w: %s", ErrNoNetns, path)
	}
	if err != nil {
		return netns.None(), fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { _ = unix.Close(place) }()
	var system unix.Statfs_t
	if err := unix.Fstatfs(place, &system); err != nil {
		return netns.None(), fmt.Errorf("look at %s: %w", path, err)
	}
	if system.Type != unix.NSFS_MAGIC {
		return netns.None(), fmt.Errorf("%w: %s is a plain file or of another kind", ErrNoNetns, path)
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", place), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return netns.None(), fmt.Errorf("open %s: %w", path, err)
	}
	if kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		_ = unix.Close(fd)
		return netns.None(), fmt.Errorf("%w: %s is a namespace, but not of the network", ErrNoNetns, path)
	}
	return netns.NsHandle(fd), nil
}

// openPodNetns opens a pod's namespace, which must be the one that the pod was
// given, if that is known, and not the node's own: what is at a path may change at
// any time.
func (n *Node) openPodNetns(pod Pod) (netns.NsHandle, error) {
	ns, err := openNetns(pod.Netns)
	if err != nil {
		return netns.None(), err
	}
	id, err := identify(ns)
	switch {
	case err != nil:
	case pod.NetnsID != NetnsID{} && id != pod.NetnsID:
		err = fmt.Errorf("%w: %s leads to another network namespace than the pod's", ErrNoNetns, pod.Netns)
	case id == n.nsID:
		err = fmt.Errorf("%s is the node's own network namespace, not a pod's", pod.Netns)
	}
	if err != nil {
		_ = ns.Close()
		return netns.None(), err
	}
	return ns, nil
}
