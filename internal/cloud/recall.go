package cloud

import (
	"context"
	"errors"
)

// ErrRecalled is in the chain of the error of a call that was recalled before it was sent.
var ErrRecalled = errors.New("recalled: something more urgent came up")

type recallKey struct{}

// WithRecall has calls made with the returned context given up once recalled is
// closed, if they still wait for the rate limit: with ErrRecalled, of class
// Throttled if no attempt had an effect. One that was sent is not cut off.
func WithRecall(ctx context.Context, recalled <-chan struct{}) context.Context {
	return context.WithValue(ctx, recallKey{}, recalled)
}

// Recalled is what a limiter needs to know of WithRecall; nil when nobody recalls.
func Recalled(ctx context.Context) <-chan struct{} {
	recalled, _ := ctx.Value(recallKey{}).(<-chan struct{})
	return recalled
}
