package scale

import (
	"runtime"
	"runtime/metrics"
	"time"

	"golang.org/x/sys/unix"
)

// meter measures what is spent between start and stop, without the CPU time of
// the EC2 in memory. What that allocates, replies above all, is counted: the
// runtime does not tell whose it is.
type meter struct {
	own func() time.Duration // CPU time of the EC2 in memory so far
	at  spent
}

// spent is what a process, or a part of it, used up so far.
type spent struct {
	cpu   time.Duration
	bytes uint64
}

func (m *meter) start() { m.at = m.now() }

func (m *meter) stop() spent {
	now := m.now()
	return spent{now.cpu - m.at.cpu, now.bytes - m.at.bytes}
}

func (m *meter) now() spent {
	all := processSpent()
	all.cpu -= m.own()
	return all
}

// processSpent is the process's CPU time on the kernel's clock, which no bubble
// changes, and what it allocated.
func processSpent() spent {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts) // always there on Linux
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return spent{time.Duration(ts.Nano()), sample[0].Value.Uint64()}
}

// LiveHeap is what the process needs after a full collection.
func LiveHeap() uint64 {
	runtime.GC()
	runtime.GC() // the second one collects what the first one's finalizers let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
