package eni

import (
	"context"
	"sync"

	"github.com/berthnet/berth/internal/cloud"
)

// supplied tells whether the node has an address to give, and one for each pod
// that waits until its data path is ready: what it still wants can wait for
// nodes that have none.
func (r *Reconciler) supplied() bool {
	u := r.cfg.Node.Usage()
	free := 0
	for _, e := range u.ENIs {
		free += e.Free.Addresses + e.Free.Prefixes
	}
	return free >= max(1, u.Waiting)
}

// sparing is a context for the calls of one step: of a supplied node that has a
// process of its own they yield to those of others, until a pod comes to wait.
// The step must be ended with done.
func (r *Reconciler) sparing(ctx context.Context) (call context.Context, done func()) {
	if r.passive || !r.supplied() {
		return ctx, func() {}
	}
	called, over := make(chan struct{}), make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for r.supplied() {
			select {
			case <-over:
				return
			case <-r.needed:
			}
		}
		close(called)
	})
	return cloud.WithSpare(ctx, called), func() {
		close(over)
		watch.Wait() // else it might take the news that the next step's watch is for
	}
}
