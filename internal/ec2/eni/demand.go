package eni

import (
	"context"
	"sync"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/retry"
)

// demand compares the demand of pods with the supply of the node, even while a call is in flight. Its methods
// belong to the reconciler's goroutine, which has one watch at a time; any goroutine may set news.
type demand struct {
	node    Node
	process process
	news    retry.Signal // the node's usage changed; consumed by the watch
}

// of returns how many pods wait for addresses, and how many more pods the node has addresses for.
func (d *demand) of() (waiting, free int) {
	u := d.node.Usage()
	for _, e := range u.ENIs {
		free += e.Assignable
	}
	return u.Waiting, free
}

// supplied reports whether the node has a free address, and one for each waiting pod (pods wait until the data
// path of an address is ready). Any further need is less urgent than that of nodes without free addresses.
func (d *demand) supplied() bool {
	waiting, free := d.of()
	return free >= max(1, waiting)
}

// mayRecall reports whether a trunk step may be recalled for pods that start to wait. If pods are already
// waiting, a recall would not help them.
func (d *demand) mayRecall(a plan.Action) bool {
	if a.Kind != plan.CreateTrunk && a.Kind != plan.DetachTrunk {
		return false
	}
	waiting, free := d.of()
	return waiting <= free
}

// yielding returns a context for the calls of one step: in node mode, calls of a supplied node yield to those of
// other processes until a pod starts to wait. The caller must call done after the step.
func (d *demand) yielding(ctx context.Context) (call context.Context, done func()) {
	if !d.process.yields || !d.supplied() {
		return ctx, func() {}
	}
	select {
	case <-d.news: // it is taken into account
	default:
	}
	var mu sync.Mutex // guards the following, as calls may outlive the step
	var needed <-chan struct{}
	end, over := func() {}, false
	watch := func() <-chan struct{} { // from the first call on: most steps make none
		mu.Lock()
		defer mu.Unlock()
		switch {
		case needed != nil:
		case over:
			needed = make(chan struct{})
		default:
			needed, end = d.until(true, func() bool { return !d.supplied() })
		}
		return needed
	}
	return cloud.WithSpare(ctx, watch), func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		end()
	}
}

// recallable returns a context for a call that no pod needs, of a node whose calls queue with those of other
// nodes. Because the call blocks all other work for the node, it is recalled when more pods wait than there are
// free addresses. The caller must call done after the call.
func (d *demand) recallable(ctx context.Context) (call context.Context, done func()) {
	if !d.process.recalls {
		return ctx, func() {}
	}
	recalled, done := d.until(false, func() bool { waiting, free := d.of(); return waiting > free })
	return cloud.WithRecall(ctx, recalled), done
}

// until returns a channel that is closed once a condition holds. The condition is checked after each change, and
// immediately unless it was checked before.
func (d *demand) until(checked bool, so func() bool) (came <-chan struct{}, done func()) {
	c, over := make(chan struct{}), make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for checked || !so() {
			checked = false
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
		watch.Wait() // otherwise it might consume news meant for the next step's watch
	}
}
