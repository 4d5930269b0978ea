// Package retry has loops that repeat work until it succeeds, and their parts: exponential backoff,
// jitter, and signals that wake a loop.
package retry

import (
	"math/rand/v2"
	"time"
)

// First and Most are the usual bounds of the wait after a failed request to the API
// server or the kernel: see Delay.
const (
	First = 250 * time.Millisecond
	Most  = 10 * time.Second
)

// Delay returns the wait after a failure that follows a number of failures in a row: first, then twice
// as long each time, up to most.
func Delay(first, most time.Duration, failures int) time.Duration {
	return min(most, first<<min(failures, 10))
}

// Jitter randomises d between half and one and a half of it, so nodes that started
// together do not act at the same time.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }

// Seeded is Jitter with a source of random numbers that no other goroutine uses.
func Seeded(r *rand.Rand, d time.Duration) time.Duration {
	return d/2 + time.Duration(r.Int64N(int64(d)+1))
}

// Backoff is the wait after failed attempts. The zero value allows an immediate attempt.
type Backoff struct {
	failures int
	// Until is when the next attempt may be made.
	Until time.Time
}

// Fail counts a failure at now: the next attempt is after the Delay for all failures
// so far, with Jitter.
func (b *Backoff) Fail(now time.Time, first, most time.Duration) {
	b.Until = now.Add(Jitter(Delay(first, most, b.failures)))
	b.failures++
}

// Earliest returns the earliest of the given times that is after now, or zero if none is.
func Earliest(now time.Time, moments ...time.Time) (first time.Time) {
	for _, t := range moments {
		if t.After(now) && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}

// Signal wakes its one receiver. Several signals before it receives count as one.
type Signal chan struct{}

// NewSignal returns a Signal that is not set.
func NewSignal() Signal { return make(Signal, 1) }

// Set never blocks.
func (s Signal) Set() {
	select {
	case s <- struct{}{}:
	default:
	}
}
