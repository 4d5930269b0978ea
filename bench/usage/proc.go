// Package usage reads the memory and CPU time of other processes.
package usage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/procfs"
)

// Memory returns a process's private memory in bytes (proc_pid_status(5), RssAnon).
func Memory(pid int) (int64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	status, err := p.NewStatus()
	return int64(status.RssAnon), err
}

// CPU returns the CPU time of a process so far (proc_pid_stat(5), utime and stime).
func CPU(pid int) (time.Duration, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	stat, err := p.Stat()
	return time.Duration(stat.CPUTime() * float64(time.Second)), err
}

// Settled returns the CPU time of a process once the process is idle: it uses less than 2 % of a processor
// for one second.
func Settled(ctx context.Context, pid int) (time.Duration, error) {
	last, err := CPU(pid)
	for err == nil {
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("wait until process %d is idle: %w", pid, ctx.Err())
		case <-time.After(time.Second): // another process is polled
		}
		var now time.Duration
		if now, err = CPU(pid); err == nil && now-last < time.Second/50 {
			return now, nil
		}
		last = now
	}
	return 0, err
}

// OnCPU returns the CPU time of a process's threads to the nanosecond, without threads that have ended.
func OnCPU(pid int) (sum time.Duration, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		var thread int64
		data, err := os.ReadFile(f)
		if err == nil {
			_, err = fmt.Sscan(string(data), &thread) // nanoseconds are the first number
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) { // the thread has ended
			return 0, fmt.Errorf("read the CPU time of a thread of process %d: %w", pid, err)
		}
		sum += time.Duration(thread)
	}
	return sum, nil
}

// Peak returns the highest private memory in bytes of a process until ctx ends, sampled every 20 ms. It is
// 0 if the process never existed.
func Peak(ctx context.Context, pid int) (peak int64) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if now, err := Memory(pid); err == nil { // the process may have exited
			peak = max(peak, now)
		}
		select {
		case <-ctx.Done():
			return peak
		case <-tick.C: // another process is polled
		}
	}
}
