package ns

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// EnterMounts moves the calling thread, which must be locked and must end locked, to
// the mount namespace at path: it gives up sharing its folder and root with the
// process's other threads, which setns(2) asks for.
func EnterMounts(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open mount namespace %s: %w", path, err)
	}
	defer unix.Close(fd)
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("enter mount namespace %s: unshare file system attributes: %w", path, err)
	}
	if err := unix.Setns(fd, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter mount namespace %s: %w", path, err)
	}
	return nil
}
