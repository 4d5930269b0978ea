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
	// Spread randomises each wait between half and one and a half of it (Jitter).
	Spread bool
}

// delay is the wait after a failure that follows some failures in a row.
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

// Unwrap returns the error that was passed to Stop.
func (p permanent) Unwrap() error { return p.error }

// Stop makes Until return err without another attempt.
func Stop(err error) error { return permanent{err} }

// Until calls do, with waits in between, until it returns nil. It returns the error passed
// to Stop, or the cause of ctx's end with the error of the last attempt. It does not log;
// do logs failures as needed.
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

// Repeat calls do until ctx ends, and waits each time as long as do says. failed is called for an error that differs from the last
// one, unless ctx has ended.
func Repeat(ctx context.Context, c clock.Clock, do func(context.Context) (wait time.Duration, err error), failed func(error)) {
	for last := ""; ; {
		wait, err := do(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			last = ""
		case err.Error() != last:
			last = err.Error()
			failed(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-c.After(wait):
		}
	}
}
