package waiting

import (
	"context"
	"sync"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
)

// Desk is what Acquire asks of a source.
type Desk struct {
	Lock sync.Locker // the source's, which is held when the functions below are called
	// Held is the lease that a key has already.
	Held func(attachment.Key) (source.Lease, bool)
	// Admit queues a request, and serves it at once if it is its turn.
	Admit func(source.Request) *Waiter
	// Why tells why a waiter has got nothing.
	Why func(*Waiter) *source.Exhausted
	// Changed says that one more waits, or one fewer.
	Changed func()
}

// Acquire implements source.Source.
func (d Desk) Acquire(ctx context.Context, req source.Request) (source.Lease, error) {
	d.Lock.Lock()
	if l, ok := d.Held(req.Key); ok {
		d.Lock.Unlock()
		return l, nil
	}
	w := d.Admit(req)
	d.Changed()
	d.Lock.Unlock()
	if a, ok := w.await(ctx); ok {
		return a.Lease, a.Err
	}
	return d.giveUp(ctx, w)
}

// giveUp ends a wait whose context ended. An address that came at the same
// moment is not lost: it is the answer.
func (d Desk) giveUp(ctx context.Context, w *Waiter) (source.Lease, error) {
	d.Lock.Lock()
	defer d.Lock.Unlock()
	why := d.Why(w)
	if !w.Leave() {
		a := <-w.Answered()
		return a.Lease, a.Err
	}
	d.Changed()
	if why.Err == nil {
		why.Err = ctx.Err()
	}
	return source.Lease{}, why
}
