package cloud

import (
	"context"
	"time"
)

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
