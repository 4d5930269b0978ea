package retry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// Policy bounds the waits between attempts. The zero value stands for First and Most.
type Policy struct {
	// First is the wait after the first failure in a row. Each further wait is twice
	// as long, up to Most.
	First, Most time.Duration
	// Spread varies each wait between half of it and one and a half (Jitter).
	Spread bool
}

// delay is the wait after some failures in a row, of which the last is not counted.
func (p Policy) delay(failures int) time.Duration {
	if p.First == 0 {
		p.First, p.Most = First, Most
	}
	d := Delay(p.First, p.Most, failures)
	if p.Spread {
		d = Jitter(d)
	}
	return d
}

// permanent is an error after which no attempt follows.
type permanent struct{ error }

// Unwrap gives the error that Stop was called with.
func (p permanent) Unwrap() error { return p.error }

// Stop has Until return err without another attempt.
func Stop(err error) error { return permanent{err} }

// Until calls do, with waits in between, until it returns nil. It returns the error given
// to Stop, or the cause of ctx's end with the error of the last attempt. Do logs what it
// wants to be known of a failure.
func Until(ctx context.Context, c clock.Clock, p Policy, do func(context.Context) error) error {
	var err error
	for failures := 0; ctx.Err() == nil; failures++ {
		if err = do(ctx); err == nil {
			return nil
		}
		if last, ok := errors.AsType[permanent](err); ok {
			return last.error
		}
		select {
		case <-ctx.Done():
		case <-c.After(p.delay(failures)):
		}
	}
	if err == nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w; the last attempt failed: %w", context.Cause(ctx), err)
}
