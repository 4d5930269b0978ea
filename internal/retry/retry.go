// Package retry has what loops need that come back to their work: a wait that
// doubles with each failure, its spread, and a signal that there is work.
package retry

import (
	"math/rand/v2"
	"time"
)

// First and Most bound the usual wait after failures of a request to the API
// server, or to the kernel: see Delay.
const (
	First = 250 * time.Millisecond
	Most  = 10 * time.Second
)

// Delay is how long to wait after some failures in a row, of which the last is
// not counted: first, then twice as long, and so on up to most.
func Delay(first, most time.Duration, failures int) time.Duration {
	return min(most, first<<min(failures, 10))
}

// Jitter spreads d over half to one and a half of it, so that nodes that
// started together do not act together.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }

// Seeded is Jitter by a source of random numbers, which one goroutine uses at a time.
func Seeded(r *rand.Rand, d time.Duration) time.Duration {
	return d/2 + time.Duration(r.Int64N(int64(d)+1))
}

// Backoff spaces attempts that fail. The zero value lets the first one go at
// once.
type Backoff struct {
	failures int
	// Until is before when there is to be no attempt.
	Until time.Time
}

// Fail notes a failure at now: the next attempt is after the Delay of all
// failures so far, with Jitter.
func (b *Backoff) Fail(now time.Time, first, most time.Duration) {
	b.Until = now.Add(Jitter(Delay(first, most, b.failures)))
	b.failures++
}

// Earliest is the first of some moments that are after now; zero: there is none.
func Earliest(now time.Time, moments ...time.Time) (first time.Time) {
	for _, t := range moments {
		if t.After(now) && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}

// Signal wakes its one receiver, who may be awake: several signals before it
// receives are one.
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
