// Package clock is time as Berth's programs see it, injected so that tests
// decide what time it is.
package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Clock tells the time and makes timers.
type Clock interface {
	// Now is the wall time, with Go's monotonic reading where there is one.
	Now() time.Time
	// Boot is the time since the machine booted, suspend included
	// (CLOCK_BOOTTIME), comparable between processes.
	Boot() time.Duration
	// After delivers once d has passed.
	After(d time.Duration) <-chan time.Time
}

// Real is the machine's clock.
type Real struct{}

// Now implements Clock.
func (Real) Now() time.Time { return time.Now() }

// Boot implements Clock. It is zero where the kernel has no boot clock.
func (Real) Boot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// After implements Clock.
func (Real) After(d time.Duration) <-chan time.Time { return time.After(d) }
