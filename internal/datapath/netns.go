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

// InspectNetns identifies the network namespace at a path. Errors: ErrNoNetns,
// ErrNotNetns.
func InspectNetns(path string) (NetnsID, error) {
	ns, err := openNetns(path)
	if err != nil {
		return NetnsID{}, err
	}
	defer func() { _ = ns.Close() }()
	return identify(ns)
}

func identify(ns netns.NsHandle) (NetnsID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(ns), &st); err != nil {
		return NetnsID{}, fmt.Errorf("stat network namespace: %w", err)
	}
	return NetnsID{st.Dev, st.Ino}, nil
}

// openNetns opens the namespace at a path. A missing path is ErrNoNetns, whatever
// else is there ErrNotNetns, such as the plain file that is left where a namespace
// was unmounted. Nothing else is opened than a namespace: a FIFO would hold the
// caller for good, and a device may act.
func openNetns(path string) (netns.NsHandle, error) {
	place, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return netns.None(), fmt.Errorf("%w: %s", ErrNoNetns, path)
	}
	if err != nil {
		return netns.None(), fmt.Errorf("%s: %w", path, err)
	}
	defer func() { _ = unix.Close(place) }()
	var system unix.Statfs_t
	var file unix.Stat_t
	if err := errors.Join(unix.Fstatfs(place, &system), unix.Fstat(place, &file)); err != nil {
		return netns.None(), fmt.Errorf("looking at %s: %w", path, err)
	}
	if system.Type != unix.NSFS_MAGIC {
		return netns.None(), fmt.Errorf("%s, %s, %w", path, kindOfFile(file.Mode), ErrNotNetns)
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", place), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return netns.None(), fmt.Errorf("%s: %w", path, err)
	}
	if kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		_ = unix.Close(fd)
		return netns.None(), fmt.Errorf("%s, another namespace, %w", path, ErrNotNetns)
	}
	return netns.NsHandle(fd), nil
}

// kindOfFile says what a file is that is no namespace (inode(7)).
func kindOfFile(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFIFO:
		return "a FIFO"
	case unix.S_IFSOCK:
		return "a socket"
	case unix.S_IFDIR:
		return "a folder"
	case unix.S_IFCHR, unix.S_IFBLK:
		return "a device"
	}
	return "a file"
}

// openPodNetns opens a pod's namespace, which must be the one that the pod was
// given, if that is known, and not the node's own: what is at a path may change at
// any time.
func (k *kernel) openPodNetns(pod Pod) (netns.NsHandle, error) {
	ns, err := openNetns(pod.Netns)
	if err != nil {
		return netns.None(), err
	}
	id, err := identify(ns)
	switch {
	case err != nil:
	case pod.NetnsID != NetnsID{} && id != pod.NetnsID:
		err = fmt.Errorf("%w: %s leads to another network namespace than the pod's", ErrNoNetns, pod.Netns)
	case id == k.nsID:
		err = fmt.Errorf("%s is the node's own network namespace, not a pod's", pod.Netns)
	}
	if err != nil {
		_ = ns.Close()
		return netns.None(), err
	}
	return ns, nil
}
