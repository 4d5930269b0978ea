package ns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// PIDs lists the processes that run in the namespaces at paths, this process
// not among them. Paths that do not exist are passed over.
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
			continue // it ended, or is elsewhere
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(p))))
		if err != nil || pid == os.Getpid() {
			continue
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// Kill ends the processes that run in the namespaces at paths with SIGKILL,
// waits until none is left, and returns how many there were.
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
		<-time.After(5 * time.Millisecond) // the kernel does not notify of the end of a foreign process
	}
}
