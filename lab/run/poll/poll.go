// Package poll polls what sends no notification when it changes:
// other processes, the kernel, the objects of an API server. It polls often at first
// and less often later, since each look takes time of a processor that what is
// waited for needs too.
package poll

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// Often is the time between the first looks.
	Often = 20 * time.Millisecond
	// Seldom is the longest time between two looks.
	Seldom = 500 * time.Millisecond
	// share is the part of the time waited so far that the next look may be late.
	share = 4
)

// Until calls is until it returns nil. When ctx ends, it returns what is
// returned last before that, if it returned at all: an attempt that ctx cut short says nothing.
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

// Retry calls do until it returns nil, or an error that is not to be tried again.
// When ctx ends, it returns ctx's error and what do returned last.
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

// True is ok for Until.
func True(ok func() bool) func() error {
	return func() error {
		if !ok() {
			return errNotYet
		}
		return nil
	}
}

var errNotYet = errors.New("not yet")

// Pause waits until the next look of a wait that began at a moment, for least at
// the least. It returns ctx's error when that ends before.
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
