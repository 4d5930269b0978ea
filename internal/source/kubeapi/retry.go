package kubeapi

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Backoff spaces attempts that fail. The zero value lets the first one go at
// once.
type Backoff struct {
	failures int
	// Until is before when there is to be no attempt.
	Until time.Time
}

// Fail notes a failure at now: the next attempt is first, then twice as long
// and so on up to most from now, spread over half to one and a half of it.
func (b *Backoff) Fail(now time.Time, first, most time.Duration) {
	d := most
	if b.failures < 10 {
		d = min(most, first<<b.failures)
	}
	b.failures++
	b.Until = now.Add(Jitter(d))
}

// Jitter spreads d over half to one and a half of it, so that nodes do not act
// together.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }

// Ended tells whether a request failed because its context was over: the daemon
// ends.
func Ended(err error) bool { return errors.Is(err, context.Canceled) }
