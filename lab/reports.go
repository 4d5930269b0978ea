package lab

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/berthnet/berth/lab/run/kube"
)

// reports sends requests of kubelets and a cloud controller to the API server, in order, and retries while the API
// server is down.
type reports struct {
	trouble func(error) // called with what the API server rejects

	mu      sync.Mutex // guards all below; never held across I/O
	moved   *sync.Cond // on mu; when pending or closed changed
	pending []report
	closed  bool
	cancel  context.CancelFunc
	done    chan struct{} // closed when the last report has ended
}

type report struct {
	what string // in errors, such as "report that pod a is gone"
	send func(context.Context) error
}

// reportPause is how long a kubelet waits before it retries an API server that is down.
const reportPause = 200 * time.Millisecond

func newReports(trouble func(error)) *reports {
	ctx, cancel := context.WithCancel(context.Background())
	r := &reports{trouble: trouble, cancel: cancel, done: make(chan struct{})}
	r.moved = sync.NewCond(&r.mu)
	go r.work(ctx)
	return r
}

// add queues a report and returns at once.
func (r *reports) add(what string, send func(context.Context) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending = append(r.pending, report{what, send})
	r.moved.Broadcast()
}

// wait waits until all reports so far were sent, or ctx ends.
func (r *reports) wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.moved.Broadcast()
	})
	defer stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.pending) > 0 && !r.closed {
		if ctx.Err() != nil {
			return fmt.Errorf("%d reports to the API server are not sent yet, the first is to %s: %w", len(r.pending), r.pending[0].what, ctx.Err())
		}
		r.moved.Wait()
	}
	return nil
}

// close drops unsent reports.
func (r *reports) close() {
	r.mu.Lock()
	r.closed = true
	r.moved.Broadcast()
	r.mu.Unlock()
	r.cancel()
	<-r.done
}

func (r *reports) work(ctx context.Context) {
	defer close(r.done)
	for {
		next, ok := r.next()
		if !ok {
			return
		}
		err := next.send(ctx)
		if err != nil && ctx.Err() == nil && kube.Unavailable(err) {
			select {
			case <-ctx.Done():
			case <-time.After(reportPause):
			}
			continue
		}
		if err != nil && ctx.Err() == nil {
			r.trouble(fmt.Errorf("%s: %w", next.what, err))
		}
		r.mu.Lock()
		r.pending = r.pending[1:]
		r.moved.Broadcast()
		r.mu.Unlock()
	}
}

// next returns the first pending report, which remains until it is sent; false after close.
func (r *reports) next() (report, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.pending) == 0 && !r.closed {
		r.moved.Wait()
	}
	if r.closed {
		return report{}, false
	}
	return r.pending[0], true
}
