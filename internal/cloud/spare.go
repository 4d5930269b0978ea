package cloud

import "context"

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
