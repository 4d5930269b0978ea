// Package retry has loops that repeat work until it succeeds, and their parts: waits that
// double with each failure, random spread, and signals that wake a loop.
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

// Delay is how long to wait after a failure that so many failures in a row precede: first, then
// twice as long each time, up to most.
func Delay(first, most time.Duration, failures int) time.Duration {
	return min(most, first<<min(failures, 10))
}

// Jitter varies d between half of it and one and a half, so that nodes that
// started together do not act together.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }

// Seeded is Jitter with a source of random numbers, which is not used concurrently.
func Seeded(r *rand.Rand, d time.Duration) time.Duration {
	return d/2 + time.Duration(r.Int64N(int64(d)+1))
}

// Backoff is the wait after failed attempts. The zero value allows an attempt at once.
type Backoff struct {
	failures int
	// Until is when the next attempt may be made.
	Until time.Time
}

// Fail counts a failure at now: the next attempt is after the Delay of all
// failures so far, with Jitter.
func (b *Backoff) Fail(now time.Time, first, most time.Duration) {
	b.Until = now.Add(Jitter(Delay(first, most, b.failures)))
	b.failures++
}

// Earliest is the first of some moments that is after now; zero: none is.
func Earliest(now time.Time, moments ...time.Time) (first time.Time) {
	for _, t := range moments {
		if t.After(now) && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}

// Signal wakes its one receiver. Several signals before it receives are one.
type Signal chan struct{}

// NewSignal returns one that is not set.
func NewSignal() Signal { return make(Signal, 1) }

// Set never blocks.
func (s Signal) Set() {
	select {
	case s <- struct{}{}:
	default:
	}
}
