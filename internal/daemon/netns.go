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

// inspectNetns opens a network namespace and returns what identifies it. The
// error is errNetnsGone or errNotNetns, or of the system call.
func inspectNetns(path string) (attachment.Netns, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0) // a FIFO must not hold us
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return attachment.Netns{}, fmt.Errorf("%s %w", path, errNetnsGone)
	}
	if err != nil {
		return attachment.Netns{}, fmt.Errorf("%s: %w", path, err)
	}
	defer unix.Close(fd)
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		return attachment.Netns{}, fmt.Errorf("%s %w", path, errNotNetns)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return attachment.Netns{}, fmt.Errorf("reading the identity of %s: %w", path, err)
	}
	return attachment.Netns{Path: path, Dev: st.Dev, Inode: st.Ino}, nil
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
