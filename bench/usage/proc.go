// Package usage reads the memory and CPU time of other processes.
package usage

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/procfs"
)

// Memory is a process's private memory in bytes (proc_pid_status(5), RssAnon).
func Memory(pid int) (int64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	status, err := p.NewStatus()
	return int64(status.RssAnon), err
}

// CPU is the time that a process used so far (proc_pid_stat(5), utime and stime).
func CPU(pid int) (time.Duration, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	stat, err := p.Stat()
	return time.Duration(stat.CPUTime() * float64(time.Second)), err
}

// Settled returns the CPU time of a process once it has nearly nothing to do any
// more: less than 2 % of a second.
func Settled(ctx context.Context, pid int) (time.Duration, error) {
	last, err := CPU(pid)
	for err == nil {
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for process %d to rest: %w", pid, ctx.Err())
		case <-time.After(time.Second): // another process's edge
		}
		var now time.Duration
		if now, err = CPU(pid); err == nil && now-last < time.Second/50 {
			return now, nil
		}
		last = now
	}
	return 0, err
}

// Peak is the most private memory in bytes that a process is seen to have until
// ctx ends. It is looked at every 20 ms, and is 0 if it was never there.
func Peak(ctx context.Context, pid int) (peak int64) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if now, err := Memory(pid); err == nil { // it may have ended
			peak = max(peak, now)
		}
		select {
		case <-ctx.Done():
			return peak
		case <-tick.C: // another process's edge
		}
	}
}
