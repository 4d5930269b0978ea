package bubble

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// CPU is this process's CPU time so far, on the kernel's clock, which no bubble changes.
func CPU() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts) // always there on Linux
	return time.Duration(ts.Nano())
}

// LiveHeap is what the process needs after a full collection.
func LiveHeap() uint64 {
	runtime.GC()
	runtime.GC() // the second one collects what the first one's finalizers let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
