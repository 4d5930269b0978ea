// Package proc tells what other processes use.
package proc

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Memory is a process's private memory in bytes (proc_pid_status(5), RssAnon).
func Memory(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	for line := range strings.SplitSeq(string(status), "\n") {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("the status of process %d has no RssAnon", pid)
}

// tick is the unit of proc_pid_stat(5): USER_HZ, which is 100 everywhere.
const tick = time.Second / 100

// CPU is the time that a process used so far (proc_pid_stat(5), utime and stime).
func CPU(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the name may hold anything
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("read the CPU time of process %d: %q", pid, stat)
	}
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
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
