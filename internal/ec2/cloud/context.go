package cloud

import (
	"context"
	"errors"
	"time"
)

// The context of a call carries options for the rate limiter.

// Priority orders calls that wait for the same rate limit: higher priorities first, equal ones in the
// order of arrival. The default is 0.
//
// The operator uses Begun for calls that finish the work on a node, and the node's deficit in addresses
// for calls that start it: so it finishes a node before it starts another, and starts the one with the
// largest deficit first.
type Priority int

const (
	// Begun is above every deficit.
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

// ErrRecalled is in the chain of the error of a recalled call.
var ErrRecalled = errors.New("recalled: something more urgent came up")

type recallKey struct{}

// WithRecall gives up calls with the returned context that still wait for the rate limit when recalled
// is closed. Their error wraps ErrRecalled; it is of class Throttled if no attempt had an effect. Calls
// in flight are not interrupted.
func WithRecall(ctx context.Context, recalled <-chan struct{}) context.Context {
	return context.WithValue(ctx, recallKey{}, recalled)
}

// Recalled is the channel of WithRecall, for a limiter; nil without one.
func Recalled(ctx context.Context) <-chan struct{} {
	recalled, _ := ctx.Value(recallKey{}).(<-chan struct{})
	return recalled
}

type spareKey struct{}

// WithSpare marks calls with the returned context as not urgent until needed is closed: a limiter lets
// calls of other processes that share the rate go first.
func WithSpare(ctx context.Context, needed <-chan struct{}) context.Context {
	return context.WithValue(ctx, spareKey{}, needed)
}

// Spare is the channel of WithSpare, for a limiter; nil if the call is urgent.
func Spare(ctx context.Context) (needed <-chan struct{}) {
	needed, _ = ctx.Value(spareKey{}).(<-chan struct{})
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

// WithHeld calls tell, once, if a call with the returned context still waits for the rate limit at a
// time. The goroutine of the call calls it, with the cloud's name for the action.
func WithHeld(ctx context.Context, at time.Time, tell func(op string)) context.Context {
	return context.WithValue(ctx, heldKey{}, &held{at, tell})
}

// Held are the arguments of WithHeld, for a limiter; false without them.
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
