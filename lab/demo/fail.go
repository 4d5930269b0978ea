package demo

import (
	"context"
	"fmt"

	"github.com/berthnet/berth/lab/run/poll"
)

// failure ends a proof from any depth of its calls, as Fatal ends a test.
type failure struct{ err error }

// fail ends the proof with an error, as fmt.Errorf makes it.
func fail(format string, args ...any) { check(fmt.Errorf(format, args...)) }

// check ends the proof at an error.
func check(err error) {
	if err != nil {
		panic(failure{err}) //nolint:forbidigo // recovered by attempt, and seen by nobody else
	}
}

// checkf ends the proof at an error, and says what was being done.
func checkf(err error, doing string, args ...any) {
	if err != nil {
		fail(doing+": %w", append(args, err)...)
	}
}

// must is the value of a call that may not fail.
func must[V any](v V, err error) V {
	check(err)
	return v
}

// attempt calls do and returns the error with which it failed. Each goroutine that fails needs
// one of its own.
func attempt(do func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			err = r.err
		default:
			panic(r) //nolint:forbidigo // not one of ours
		}
	}()
	do()
	return nil
}

// await calls is until it does not fail, or ctx ends: what it looks at are other processes,
// which do not announce that they are done.
func await(ctx context.Context, what string, is func()) {
	if err := poll.Until(ctx, func() error { return attempt(is) }); err != nil {
		fail("%s: %w: %w", what, context.Cause(ctx), err)
	}
}

// start calls do beside the proof, which ends after do does. wait returns once do has, and fails
// if do did.
func (s *stage) start(do func()) (wait func()) {
	done := make(chan error, 1)
	s.beside.Go(func() { done <- attempt(do) })
	return func() { check(<-done) }
}
