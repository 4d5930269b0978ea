package cloud

import (
	"context"
	"errors"
	"time"
)

// What a limiter is told of a call that waits, by the context that it is made with.

// Priority orders calls that wait for the same rate limit: the higher goes
// first, equal ones in the order in which they came. Calls without one have 0.
//
// The operator gives what it began for a node, and is to be finished before
// another node is begun, Begun; and what begins a node that node's deficit in
// addresses, so that the worst off begins first.
type Priority int

const (
	// Begun is above every deficit.
	Begun Priority = 1 << 20
	// Ahead is below everything that somebody waits for: of what is made before it is needed.
	Ahead Priority = -1
)

type priorityKey struct{}

// WithPriority gives the calls made with the returned context a priority.
func WithPriority(ctx context.Context, p Priority) context.Context {
	return context.WithValue(ctx, priorityKey{}, p)
}

// PriorityOf is the priority of the calls made with ctx.
func PriorityOf(ctx context.Context) Priority {
	p, _ := ctx.Value(priorityKey{}).(Priority)
	return p
}

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

type spareKey struct{}

// WithSpare says that nobody waits for the calls made with the returned
// context, until needed is closed: a limiter lets those of other processes that
// draw on the same rate go first.
func WithSpare(ctx context.Context, needed <-chan struct{}) context.Context {
	return context.WithValue(ctx, spareKey{}, needed)
}

// Spare is what a limiter needs to know of WithSpare; nil when somebody waits.
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

// WithHeld has tell called, once, by a call made with the returned context that
// still waits for the rate limit of its action at a time. It is called by the
// goroutine that makes the call, with the cloud's name for the action.
func WithHeld(ctx context.Context, at time.Time, tell func(op string)) context.Context {
	return context.WithValue(ctx, heldKey{}, &held{at, tell})
}

// Held is what a limiter needs to know of WithHeld; false when nobody wants to
// be told.
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
