package daemon

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
)

// errDeleted ends the wait of an ADD for whose attachment a DEL has come.
var errDeleted = errors.New("a DEL of the attachment came while its ADD waited")

// waits lets a DEL end the wait, for an address, NICs or egress, of the ADD that it
// follows, which has the container's lock and would keep the DEL for as long as it waits.
type waits struct {
	clock clock.Clock

	mu   sync.Mutex                    // guards both, memory only
	adds map[attachment.Key]waitingADD // one a key, as the lock sees to
	dels map[attachment.Key]int        // DELs that want the container's lock
}

// waitingADD is an ADD that asks for an address, NICs or egress.
type waitingADD struct {
	pod   attachment.Pod
	since time.Time
	end   context.CancelCauseFunc
}

func newWaits(clk clock.Clock) *waits {
	return &waits{clock: clk, adds: map[attachment.Key]waitingADD{}, dels: map[attachment.Key]int{}}
}

// of are the ADDs of a pod that wait, oldest first, with what why says of each.
func (w *waits) of(namespace, name string, why func(attachment.Key) (_ *source.Exhausted, address bool)) []introspect.Waiting {
	out, keys := []introspect.Waiting{}, []attachment.Key{}
	w.mu.Lock()
	for key, a := range w.adds {
		if a.pod.Namespace == namespace && a.pod.Name == name {
			out, keys = append(out, introspect.Waiting{ContainerID: key.ContainerID, Interface: key.IfName, Since: a.since}), append(keys, key)
		}
	}
	w.mu.Unlock()
	for i, key := range keys {
		if ex, _ := why(key); ex != nil {
			out[i].Reason, out[i].Message = ex.Reason, ex.Message
		}
	}
	slices.SortFunc(out, func(a, b introspect.Waiting) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ContainerID+a.Interface, b.ContainerID+b.Interface))
	})
	return out
}

// add returns a context for the wait of an ADD, which a DEL ends with
// errDeleted: one that comes, or came while this ADD itself wanted the lock.
// end must be called once.
func (w *waits) add(ctx context.Context, req source.Request) (_ context.Context, end func()) {
	key := req.Key
	ctx, cancel := context.WithCancelCause(ctx)
	since := w.clock.Now().UTC()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.adds[key] = waitingADD{req.Pod, since, cancel}
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
	if a, ok := w.adds[key]; ok {
		a.end(errDeleted)
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.dels[key]--; w.dels[key] == 0 {
			delete(w.dels, key)
		}
	}
}
