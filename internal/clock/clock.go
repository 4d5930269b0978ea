// Package clock is the time source of Berth's programs. It is injected, so that tests control time.
package clock

import (
	"sync"
	"time"
)

// Clock reads time and makes timers.
type Clock interface {
	// Now is the wall time, with Go's monotonic reading if available.
	Now() time.Time
	// Boot is the time since the machine booted, including suspend (CLOCK_BOOTTIME). It can be compared between processes.
	Boot() time.Duration
	// After returns a channel that receives once d has passed.
	After(d time.Duration) <-chan time.Time
}

// Turn makes a goroutine wait for its turn among those that the same event woke, if the clock is that of a simulation
// that orders them, by name and then number. On any other clock it returns immediately. It must not be called with a
// lock held.
func Turn(c Clock, name string, number uint64) {
	if s, ok := c.(turner); ok {
		s.Turn(name, number)
	}
}

// turner is the clock of a simulation.
type turner interface {
	Turn(name string, number uint64)
}

// Real is the machine's clock.
type Real struct{}

// Now implements Clock.
func (Real) Now() time.Time { return time.Now() }

// Boot implements Clock. It is zero if the kernel has no boot clock.
func (Real) Boot() time.Duration { return boot() }

// After implements Clock.
func (Real) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Fake is a clock that stands still until Advance is called.
type Fake struct {
	mu     sync.Mutex // guards all below
	now    time.Time
	boot   time.Duration
	timers []fakeTimer
}

type fakeTimer struct {
	at time.Time
	ch chan time.Time
}

// NewFake returns a clock that shows start, an hour after boot.
func NewFake(start time.Time) *Fake { return &Fake{now: start, boot: time.Hour} }

// Now implements Clock.
func (f *Fake) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// Boot implements Clock.
func (f *Fake) Boot() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.boot
}

// After implements Clock.
func (f *Fake) After(d time.Duration) <-chan time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	ch := make(chan time.Time, 1)
	if d <= 0 {
		ch <- f.now
		return ch
	}
	f.timers = append(f.timers, fakeTimer{f.now.Add(d), ch})
	return ch
}

// Advance moves the clock forward and fires the timers that are due.
func (f *Fake) Advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
	f.boot += d
	kept := f.timers[:0]
	for _, t := range f.timers {
		if t.at.After(f.now) {
			kept = append(kept, t)
			continue
		}
		t.ch <- f.now
	}
	f.timers = kept
}

// Waiting returns the number of pending timers.
func (f *Fake) Waiting() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.timers)
}
