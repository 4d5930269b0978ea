package eni

import (
	"context"
	"sync"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/retry"
)

// demand compares what pods wait for with what the node has, also while a call is in flight. Its
// methods belong to the goroutine that reconciles, which has one watch at a time; news may be set by
// any.
type demand struct {
	node    Node
	process process
	news    retry.Signal // the node's usage changed; taken by the watch
}

// of returns how many pods wait for addresses, and how many more pods the node has addresses for.
func (d *demand) of() (waiting, free int) {
	u := d.node.Usage()
	for _, e := range u.ENIs {
		free += e.Assignable
	}
	return u.Waiting, free
}

// supplied reports whether the node has a free address, and one for each pod that waits, as pods do
// until the data path of an address is ready. What it still lacks is less urgent than what nodes
// without free addresses lack.
func (d *demand) supplied() bool {
	waiting, free := d.of()
	return free >= max(1, waiting)
}

// mayRecall reports whether a step about a trunk is recalled for pods that come to wait. While some
// wait already, nothing more can be done for them, and it is not.
func (d *demand) mayRecall(a plan.Action) bool {
	waiting, free := d.of()
	return (a.Kind == plan.CreateTrunk || a.Kind == plan.DetachTrunk) && waiting <= free
}

// yielding returns a context for the calls of one step: those of a supplied node that has a process of
// its own yield to those of others, until a pod comes to wait. The caller must call done after the
// step.
func (d *demand) yielding(ctx context.Context) (call context.Context, done func()) {
	if !d.process.yields || !d.supplied() {
		return ctx, func() {}
	}
	needed, done := d.until(func() bool { return !d.supplied() })
	return cloud.WithSpare(ctx, needed), done
}

// recallable returns a context for a call that no pod needs, of a node whose calls queue with those of
// other nodes. Since nothing else is done for the node before the call has ended, it is given up when
// more pods wait than there are free addresses. The caller must call done after the call.
func (d *demand) recallable(ctx context.Context) (call context.Context, done func()) {
	if !d.process.recalls {
		return ctx, func() {}
	}
	recalled, done := d.until(func() bool { waiting, free := d.of(); return waiting > free })
	return cloud.WithRecall(ctx, recalled), done
}

// until closes came once a condition holds, which is checked after each piece of news.
func (d *demand) until(so func() bool) (came <-chan struct{}, done func()) {
	c, over := make(chan struct{}), make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for !so() {
			select {
			case <-over:
				return
			case <-d.news:
			}
		}
		close(c)
	})
	return c, func() {
		close(over)
		watch.Wait() // else it might take the news that the next step's watch is for
	}
}
