package rtnl

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// NetnsID identifies a network namespace while it exists, by the device and inode of its file in nsfs
// (namespaces(7)).
type NetnsID struct {
	Dev, Inode uint64
}

// InspectNetns identifies the network namespace at a path. Errors: ErrNoNetns,
// ErrNotNetns.
func InspectNetns(path string) (NetnsID, error) {
	ns, err := OpenNetns(path)
	if err != nil {
		return NetnsID{}, err
	}
	defer func() { _ = ns.Close() }()
	return Identify(ns)
}

// Identify returns the ID of an open namespace.
func Identify(ns netns.NsHandle) (NetnsID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(ns), &st); err != nil {
		return NetnsID{}, fmt.Errorf("stat network namespace: %w", err)
	}
	return NetnsID{st.Dev, st.Ino}, nil
}

// OpenNetns opens the namespace at a path. Errors: ErrNoNetns if the path does not exist; ErrNotNetns if it is
// something else, such as the file that remains when a namespace is unmounted. It opens namespaces only, as opening a
// FIFO would block, and a device may have side effects.
func OpenNetns(path string) (netns.NsHandle, error) {
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
		return netns.None(), fmt.Errorf("stat %s: %w", path, err)
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

// OpenNodeNetns opens the namespace at a path; empty: the calling thread's.
func OpenNodeNetns(path string) (ns netns.NsHandle, err error) {
	if path == "" {
		ns, err = netns.Get()
	} else {
		ns, err = OpenNetns(path)
	}
	if err != nil {
		return ns, fmt.Errorf("open the node's network namespace: %w", err)
	}
	return ns, nil
}

// OpenPodNetns opens a pod's namespace and checks that it has the ID want, unless that is zero, and is not the node's
// own, as the file at a path may change at any time. Errors: ErrNoNetns, also for another namespace at the path;
// ErrNotNetns.
func OpenPodNetns(path string, want, node NetnsID) (netns.NsHandle, error) {
	ns, err := OpenNetns(path)
	if err != nil {
		return netns.None(), err
	}
	id, err := Identify(ns)
	switch {
	case err != nil:
	case want != NetnsID{} && id != want:
		err = fmt.Errorf("%w: %s leads to another network namespace than the pod's", ErrNoNetns, path)
	case id == node:
		err = fmt.Errorf("%s is the node's own network namespace, not a pod's", path)
	}
	if err != nil {
		_ = ns.Close()
		return netns.None(), err
	}
	return ns, nil
}

// kindOfFile describes a file by its mode (inode(7)).
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

// Handle opens a NETLINK_ROUTE socket in a namespace.
func Handle(ns netns.NsHandle) (*netlink.Handle, error) {
	return netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
}

// InNetns runs f on a separate thread in a namespace. Sysctls and sockets belong to the namespace of the thread that
// opens them.
func InNetns(ns netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			done <- err
			return
		}
		defer func() { _ = home.Close() }()
		if err := netns.Set(ns); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		err = f()
		if back := netns.Set(home); back == nil {
			runtime.UnlockOSThread() // otherwise the thread ends with the goroutine
		}
		done <- err
	}()
	return <-done
}
