package demo

import (
	"context"
	"fmt"

	"github.com/berthnet/berth/lab/run/poll"
)

// failure is a panic value that ends a proof from any call depth, as Fatal ends a test.
type failure struct{ err error }

// fail ends the proof with an error, formatted as by fmt.Errorf.
func fail(format string, args ...any) { check(fmt.Errorf(format, args...)) }

// check ends the proof if err is not nil.
func check(err error) {
	if err != nil {
		panic(failure{err}) //nolint:forbidigo // recovered by attempt
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
			panic(r) //nolint:forbidigo // not a failure
		}
	}()
	do()
	return nil
}

// await calls is until it succeeds or ctx ends.
func await(ctx context.Context, what string, is func()) {
	if err := poll.Until(ctx, func() error { return attempt(is) }); err != nil {
		fail("%s: %w: %w", what, context.Cause(ctx), err)
	}
}

// start calls do in a goroutine, which ends before the proof does. Wait returns once do has returned, and fails if do
// failed.
func (s *stage) start(do func()) (wait func()) {
	done := make(chan error, 1)
	s.beside.Go(func() { done <- attempt(do) })
	return func() { check(<-done) }
}
