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

// checkf is check with a description of the step.
func checkf(err error, doing string, args ...any) {
	if err != nil {
		fail(doing+": %w", append(args, err)...)
	}
}

// must returns the value of a call, or ends the proof.
func must[V any](v V, err error) V {
	check(err)
	return v
}

// attempt calls do and returns its failure. Each goroutine that may fail needs one.
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

// await calls is until it does not fail, or ctx ends.
func await(ctx context.Context, what string, is func()) {
	if err := poll.Until(ctx, func() error { return attempt(is) }); err != nil {
		fail("%s: %w: %w", what, context.Cause(ctx), err)
	}
}

// start calls do in a goroutine, which ends before the proof does. wait returns once do has, and fails if do did.
func (s *stage) start(do func()) (wait func()) {
	done := make(chan error, 1)
	s.beside.Go(func() { done <- attempt(do) })
	return func() { check(<-done) }
}
