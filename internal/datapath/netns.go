package datapath

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// nsID tells namespaces apart: two handles of one namespace have the same.
type nsID struct {
	dev, ino uint64
}

func identify(ns netns.NsHandle) (nsID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(ns), &st); err != nil {
		return nsID{}, fmt.Errorf("stat network namespace: %w", err)
	}
	return nsID{st.Dev, st.Ino}, nil
}

// openNetns opens the namespace at a path. A missing path, and the plain file
// that is left where a namespace was unmounted, are ErrNoNetns.
func openNetns(path string) (netns.NsHandle, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return netns.None(), fmt.Errorf("%w: %s", ErrNoNetns, path)
	}
	if err != nil {
		return netns.None(), fmt.Errorf("open %s: %w", path, err)
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil {
		_ = unix.Close(fd)
		return netns.None(), fmt.Errorf("%w: %s is a plain file", ErrNoNetns, path)
	}
	if kind != unix.CLONE_NEWNET {
		_ = unix.Close(fd)
		return netns.None(), fmt.Errorf("%s is a namespace, but not of the network", path)
	}
	return netns.NsHandle(fd), nil
}

// openPodNetns opens a pod's namespace, which must not be the node's own.
func (n *Node) openPodNetns(path string) (netns.NsHandle, error) {
	ns, err := openNetns(path)
	if err != nil {
		return netns.None(), err
	}
	id, err := identify(ns)
	if err == nil && id == n.nsID {
		err = fmt.Errorf("%s is the node's own network namespace, not a pod's", path)
	}
	if err != nil {
		_ = ns.Close()
		return netns.None(), err
	}
	return ns, nil
}
