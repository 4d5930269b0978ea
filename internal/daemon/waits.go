package daemon

import (
	"context"
	"errors"
	"sync"

	"github.com/berthnet/berth/internal/attachment"
)

// errDeleted ends the wait of an ADD for whose attachment a DEL has come.
var errDeleted = errors.New("a DEL of the attachment came while its ADD waited for an address")

// waits lets a DEL end the wait for an address of the ADD that it follows,
// which has the container's lock and would keep the DEL for as long as it waits.
type waits struct {
	mu   sync.Mutex                                 // guards both, memory only
	adds map[attachment.Key]context.CancelCauseFunc // one a key, as the lock sees to
	dels map[attachment.Key]int                     // DELs that want the container's lock
}

func newWaits() *waits {
	return &waits{adds: map[attachment.Key]context.CancelCauseFunc{}, dels: map[attachment.Key]int{}}
}

// add returns a context for the wait of an ADD, which a DEL ends with
// errDeleted: one that comes, or came while this ADD itself wanted the lock.
// end must be called once.
func (w *waits) add(ctx context.Context, key attachment.Key) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.adds[key] = cancel
	if w.dels[key] > 0 {
		cancel(errDeleted)
	}
	return ctx, func() {
		w.mu.Lock()
		delete(w.adds, key)
		w.mu.Unlock()
		cancel(nil)
	}
}

// del ends the wait of an ADD of key, now and until end is called.
func (w *waits) del(key attachment.Key) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dels[key]++
	if cancel := w.adds[key]; cancel != nil {
		cancel(errDeleted)
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.dels[key]--; w.dels[key] == 0 {
			delete(w.dels, key)
		}
	}
}
