package ns

import (
	"errors"
	"fmt"
	"os"
	"runtime"

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

// removeHidden removes a file on which something is mounted out of sight: ip-netns(8)
// mounts Dir on itself when it first makes a namespace, above those that are there. The
// kernel refuses that in the mount namespace of the mount only, and takes the mount
// away when the file is removed in another one. So Dir, and what others have in it,
// stays mounted.
func removeHidden(path string) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("make a mount namespace: %w", err)
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return fmt.Errorf("separate mounts: %w", err)
			}
			err := error(unix.EBUSY)
			for errors.Is(err, unix.EBUSY) && unix.Unmount(Dir, unix.MNT_DETACH) == nil {
				if err = unix.Unmount(path, unix.MNT_DETACH); err == nil || errors.Is(err, unix.EINVAL) {
					err = os.Remove(path)
				}
			}
			return err
		}()
	}()
	return <-done
}
