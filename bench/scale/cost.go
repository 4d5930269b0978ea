package scale

import (
	"runtime/metrics"
	"time"

	"github.com/berthnet/berth/bench/bubble"
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

// processSpent is the process's CPU time and what it allocated.
func processSpent() spent {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return spent{bubble.CPU(), sample[0].Value.Uint64()}
}
