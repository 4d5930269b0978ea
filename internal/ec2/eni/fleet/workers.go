package fleet

import (
	"context"
	"sync"
)

// maxIdle is the maximum number of workers that wait for nodes.
const maxIdle = 64

// workers are goroutines that make passes for one node after the other: a new goroutine for each would have to grow its
// stack each time.
type workers struct {
	nodes chan *member // for idle workers

	mu   sync.Mutex // guards idle
	idle int        // workers that wait
}

func newWorkers() *workers { return &workers{nodes: make(chan *member, maxIdle)} }

// hand gives a node to an idle worker. It returns false if there is none.
func (w *workers) hand(m *member) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.idle == 0 {
		return false
	}
	w.idle--
	w.nodes <- m // has room
	return true
}

// next waits for a node to work for. It returns nil, and the worker ends, if enough workers wait or ctx has ended.
func (w *workers) next(ctx context.Context) *member {
	w.mu.Lock()
	if w.idle == maxIdle {
		w.mu.Unlock()
		return nil
	}
	w.idle++
	w.mu.Unlock()
	select {
	case m := <-w.nodes:
		return m
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.idle > 0 {
		w.idle--
		return nil
	}
	return <-w.nodes // hand counted on this worker
}
