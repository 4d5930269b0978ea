package cloud

import (
	"context"
	"errors"
	"time"
)

// The context of a call carries options for the rate limiter.

// Priority orders calls that wait for the same rate limit: higher priorities first, equal ones in order of
// arrival. The default is 0.
//
// The operator uses Begun for calls that complete the work on a node, and the number of addresses that the node
// lacks for calls that start such work: it completes a node before starting another, and starts with the one
// that lacks most.
type Priority int

const (
	// Begun is higher than the number of addresses that a node can lack.
	Begun Priority = 1 << 20
	// Ahead is the lowest priority, for work ahead of demand.
	Ahead Priority = -1
)

type priorityKey struct{}

// WithPriority sets the priority of calls with the returned context.
func WithPriority(ctx context.Context, p Priority) context.Context {
	return context.WithValue(ctx, priorityKey{}, p)
}

// PriorityOf is the priority of calls with ctx.
func PriorityOf(ctx context.Context) Priority {
	p, _ := ctx.Value(priorityKey{}).(Priority)
	return p
}

// ErrRecalled is in the error chain of a recalled call.
var ErrRecalled = errors.New("recalled in favour of a more urgent call")

type recallKey struct{}

// WithRecall cancels calls with the returned context that still wait for the rate limit when recalled
// is closed. Their error wraps ErrRecalled; it is of class Throttled if no attempt had an effect. Calls
// in flight are not interrupted.
func WithRecall(ctx context.Context, recalled <-chan struct{}) context.Context {
	return context.WithValue(ctx, recallKey{}, recalled)
}

// Recalled returns the channel of WithRecall, for a limiter; nil if not set.
func Recalled(ctx context.Context) <-chan struct{} {
	recalled, _ := ctx.Value(recallKey{}).(<-chan struct{})
	return recalled
}

type spareKey struct{}

// WithSpare marks calls with the returned context as not urgent until the channel that needed returns is closed: a
// limiter lets calls of other processes that share the rate go first. needed is called for each call.
func WithSpare(ctx context.Context, needed func() <-chan struct{}) context.Context {
	return context.WithValue(ctx, spareKey{}, needed)
}

// Spare returns the channel of WithSpare, for a limiter; nil for an urgent call.
func Spare(ctx context.Context) (needed <-chan struct{}) {
	if of, ok := ctx.Value(spareKey{}).(func() <-chan struct{}); ok {
		needed = of()
	}
	select {
	case <-needed: // never ready when nil
		return nil
	default:
		return needed
	}
}

type heldKey struct{}

type held struct {
	at   time.Time
	tell func(op string)
}

// WithHeld sets a callback for calls with the returned context that still wait for the rate limit at a given
// time. It is called at most once, on the goroutine of the call, with the cloud's name of the action.
func WithHeld(ctx context.Context, at time.Time, tell func(op string)) context.Context {
	return context.WithValue(ctx, heldKey{}, &held{at, tell})
}

// Held returns the arguments of WithHeld, for a limiter; false if not set.
func Held(ctx context.Context) (at time.Time, tell func(op string), ok bool) {
	h, ok := ctx.Value(heldKey{}).(*held)
	if !ok {
		return time.Time{}, nil, false
	}
	return h.at, func(op string) {
		if tell := h.tell; tell != nil {
			h.tell = nil
			tell(op)
		}
	}, true
}
