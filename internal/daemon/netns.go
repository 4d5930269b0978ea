package daemon

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/attachment"
)

var (
	errNetnsGone = errors.New("does not exist")
	errNotNetns  = errors.New("is not a network namespace")
)

// inspectNetns looks at a network namespace and returns what identifies it. The
// error is errNetnsGone or errNotNetns, or of the system call. Nothing else is
// opened than a namespace: a FIFO would hold this process, a device may act.
func inspectNetns(path string) (attachment.Netns, error) {
	place, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return attachment.Netns{}, fmt.Errorf("%s %w", path, errNetnsGone)
	}
	if err != nil {
		return attachment.Netns{}, fmt.Errorf("%s: %w", path, err)
	}
	defer unix.Close(place)
	var system unix.Statfs_t
	if err := unix.Fstatfs(place, &system); err != nil {
		return attachment.Netns{}, fmt.Errorf("looking at %s: %w", path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(place, &st); err != nil {
		return attachment.Netns{}, fmt.Errorf("reading the identity of %s: %w", path, err)
	}
	if system.Type != unix.NSFS_MAGIC {
		return attachment.Netns{}, fmt.Errorf("%s, %s, %w", path, kindOfFile(st.Mode), errNotNetns)
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", place), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return attachment.Netns{}, fmt.Errorf("%s: %w", path, err)
	}
	defer unix.Close(fd)
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		return attachment.Netns{}, fmt.Errorf("%s, another namespace, %w", path, errNotNetns)
	}
	return attachment.Netns{Path: path, Dev: st.Dev, Inode: st.Ino}, nil
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

// netnsAlive tells whether a recorded path still leads to the namespace that
// was recorded. An error other than that it does not is returned.
func netnsAlive(inspect func(string) (attachment.Netns, error), ns attachment.Netns) (bool, error) {
	now, err := inspect(ns.Path)
	switch {
	case errors.Is(err, errNetnsGone) || errors.Is(err, errNotNetns):
		return false, nil
	case err != nil:
		return false, err
	}
	return now.Same(ns), nil
}
