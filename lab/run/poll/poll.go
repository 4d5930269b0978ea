// Package poll polls state without change notifications: other processes, the kernel, objects of an API server. It polls
// often at first and less often later, because polling takes processor time from the awaited process.
package poll

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// Often is the initial interval.
	Often = 20 * time.Millisecond
	// Seldom is the maximum interval.
	Seldom = 500 * time.Millisecond
	// share divides the time waited so far to get the interval.
	share = 4
)

// Until calls is until it returns nil. When ctx ends, it returns the last error from before that, if any: an attempt that
// ctx interrupted has no useful error.
func Until(ctx context.Context, is func() error) error {
	var last error
	for began := time.Now(); ; {
		err := is()
		if err == nil || last == nil || ctx.Err() == nil {
			last = err
		}
		if last == nil || Pause(ctx, began, Often) != nil {
			return last
		}
	}
}

// Retry calls do until it returns nil, or an error for which again returns false. When ctx ends, it returns the errors of
// ctx and of the last call.
func Retry(ctx context.Context, do func() error, again func(error) bool) error {
	for began := time.Now(); ; {
		err := do()
		if err == nil || !again(err) {
			return err
		}
		if end := Pause(ctx, began, Often); end != nil {
			return fmt.Errorf("%w: %w", end, err)
		}
	}
}

// True adapts ok for Until.
func True(ok func() bool) func() error {
	return func() error {
		if !ok() {
			return errNotYet
		}
		return nil
	}
}

var errNotYet = errors.New("not yet")

// Pause waits until the next poll of a wait that started at a given time, at least for least. It returns ctx's error if ctx
// ends first.
func Pause(ctx context.Context, began time.Time, least time.Duration) error {
	timer := time.NewTimer(max(least, min(time.Since(began)/share, Seldom)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
