package ns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// PIDs lists the processes in the namespaces at paths, except this process. It ignores missing paths.
func PIDs(paths ...string) ([]int, error) {
	want := make(map[[2]uint64]bool, len(paths))
	for _, p := range paths {
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err == nil && mounted(p) {
			want[[2]uint64{st.Dev, st.Ino}] = true
		}
	}
	if len(want) == 0 {
		return nil, nil
	}
	procs, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, p := range procs {
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err != nil || !want[[2]uint64{st.Dev, st.Ino}] {
			continue // it ended, or is in another namespace
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(p))))
		if err != nil || pid == os.Getpid() {
			continue
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// Kill ends the processes in the namespaces at paths with SIGKILL, waits until all have ended, and returns their
// number.
func Kill(deadline time.Duration, paths ...string) (int, error) {
	end := time.Now().Add(deadline)
	killed := map[int]bool{}
	for {
		pids, err := PIDs(paths...)
		if err != nil || len(pids) == 0 {
			return len(killed), err
		}
		for _, pid := range pids {
			killed[pid] = true
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return len(killed), fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
		if time.Now().After(end) {
			return len(killed), fmt.Errorf("processes %v still run %v after SIGKILL", pids, deadline)
		}
		<-time.After(5 * time.Millisecond) // the kernel sends no notification about the end of a process that is not a child
	}
}

// EnterMounts moves the calling thread, which must be locked and end locked, to the mount namespace at path. The
// thread stops sharing working directory and root with the other threads, as setns(2) requires.
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

// removeHidden removes a file with a hidden mount: when ip-netns(8) first makes a namespace, it mounts Dir on itself,
// above existing namespaces. The kernel refuses the removal in the mount namespace of the mount only, and removes the
// mount when the file is removed in another one. So Dir, and the mounts of other software in it, stay mounted.
func removeHidden(path string) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
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
