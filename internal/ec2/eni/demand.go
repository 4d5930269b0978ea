package eni

import (
	"context"
	"sync"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// supplied tells whether the node has a free address, and one for each pod that
// waits, as pods do until the data path of an address is ready. What it still lacks
// is less urgent than what nodes without free addresses lack.
func (r *Reconciler) supplied() bool {
	waiting, free := r.demand()
	return free >= max(1, waiting)
}

// demand is how many pods wait for addresses, and for how many there are some.
func (r *Reconciler) demand() (waiting, free int) {
	u := r.cfg.Node.Usage()
	for _, e := range u.ENIs {
		free += e.Assignable
	}
	return u.Waiting, free
}

// sparing is a context for the calls of one step: of a supplied node that has a
// process of its own they yield to those of others, until a pod comes to wait.
// The step must be ended with done.
func (r *Reconciler) sparing(ctx context.Context) (call context.Context, done func()) {
	if !r.process.yields || !r.supplied() {
		return ctx, func() {}
	}
	needed, done := r.until(func() bool { return !r.supplied() })
	return cloud.WithSpare(ctx, needed), done
}

// recallable is a context for a call that no pod needs, of a node whose calls wait
// with those of other nodes. As nothing else is done for the node before the call
// has ended, it is given up when more pods wait than there are free addresses. It
// must be ended with done.
func (r *Reconciler) recallable(ctx context.Context) (call context.Context, done func()) {
	recalled, done := r.until(func() bool { waiting, free := r.demand(); return waiting > free })
	return cloud.WithRecall(ctx, recalled), done
}

// until closes came once a condition holds, which is looked at after each Kick. There
// is one watch at a time; it must be ended with done.
func (r *Reconciler) until(so func() bool) (came <-chan struct{}, done func()) {
	c, over := make(chan struct{}), make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for !so() {
			select {
			case <-over:
				return
			case <-r.needed:
			}
		}
		close(c)
	})
	return c, func() {
		close(over)
		watch.Wait() // else it might take the news that the next step's watch is for
	}
}
