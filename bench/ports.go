package main

import (
	"context"
	"fmt"
	"time"

	"github.com/berthnet/berth/bench/ports"
)

// A provider that takes 400 ms for a call and eight at a time, and how many pods ask for
// ports of it at once. The default scheduler gives 50 pods a second a node (kube-scheduler's
// --kube-api-qps).
const (
	portPods, portNodes = 2000, 100
	portLatency         = 400 * time.Millisecond
	portCalls           = 8
	portScheduled       = 50
)

// portRun does one run, and says what came of it.
func (b *bench) portRun(ctx context.Context, what string, o ports.Order) (ports.Outcome, error) {
	o.Latency, o.AtOnce = portLatency, portCalls
	out, err := ports.Job.Run(ctx, o, b.profiles.next(fmt.Sprintf("ports-%d", o.Pods)))
	if err == nil {
		say("  %s: bound after %v, active after %v; calls %v, writes %v", what, out.Bound, out.Active, out.Calls, out.Writes)
	}
	return out, err
}

// portBursts measures pods that get ports of a VPC at once.
func portBursts(ctx context.Context, b *bench) ([]Result, error) {
	return b.portBursts(ctx, portPods, portNodes)
}

func (b *bench) portBursts(ctx context.Context, pods, nodes int) ([]Result, error) {
	var results []Result
	order := ports.Order{Pods: pods, Nodes: nodes}
	naive := order
	naive.Naive = true
	reference, err := b.portRun(ctx, "a call for each port", naive)
	if err != nil {
		return nil, err
	}
	each := func(o ports.Outcome) float64 { return float64(o.TotalCalls()) / float64(pods) }
	name := func(figure string) string { return fmt.Sprintf("ports-%d-%s", pods, figure) }

	out, err := b.portRun(ctx, "all have nodes at once", order)
	if err != nil {
		return nil, err
	}
	results = append(results,
		single(name("bound"), "s", out.Bound.Seconds(), out.Forced.Seconds()),
		single(name("active"), "s", out.Active.Seconds(), out.ForcedActive.Seconds()),
		single(name("each"), "s", out.Bound.Seconds(), reference.Bound.Seconds()),
		single(name("calls"), "calls/pod", each(out), each(reference)),
		single(name("writes"), "writes/PodNIC", float64(out.TotalWrites())/float64(pods), leastWrites),
		single(name("memory"), "KiB/PodNIC", float64(out.Heap)/1024/float64(pods), 0),
	)

	order.Scheduled = portScheduled
	if out, err = b.portRun(ctx, fmt.Sprintf("%d have nodes each second", portScheduled), order); err != nil {
		return nil, err
	}
	results = append(results,
		single(name("scheduled-bound"), "s", out.Bound.Seconds(), (out.Scheduled+portLatency).Seconds()),
		single(name("scheduled-calls"), "calls/pod", each(out), each(reference)),
	)

	order.Scheduled, order.Late = 0, time.Minute
	if out, err = b.portRun(ctx, "all have nodes after a minute", order); err != nil {
		return nil, err
	}
	return append(results,
		single(name("late-bound"), "s", (out.Bound-order.Late).Seconds(), out.Forced.Seconds()),
		single(name("late-calls"), "calls/pod", each(out), each(reference)),
	), nil
}

// leastWrites are those that a PodNIC needs: that it is made, its port and that this is
// bound, and that it is active.
const leastWrites = 3
