package main

import (
	"context"

	"github.com/berthnet/berth/bench/branches"
	"github.com/berthnet/berth/bench/scale"
)

const (
	// branchPods come to one node at once,
	branchPods = 50
	// so many times: what the limiter learns hangs on the moments of refusals.
	branchRuns = 9
)

// branchBursts measures pods of one node whose branches are all to be made.
func branchBursts(ctx context.Context, b *bench) ([]Result, error) {
	var results []Result
	for _, each := range []struct {
		name   string
		limits scale.Limits
	}{{"branch-burst", tight}, {"branch-burst-published", published}} {
		var last, half, forced []float64
		for range branchRuns {
			o := branches.Order{Pods: branchPods, Limits: each.limits}
			out, err := branches.Job.Run(ctx, o, b.profiles.next(each.name))
			if err != nil {
				return nil, err
			}
			say("  %s: bound after %v, half of them after %v; calls %v, %d refused", each.name, out.Bound, out.Median, out.Calls, out.Throttled)
			last, half, forced = append(last, out.Bound.Seconds()), append(half, out.Median.Seconds()), append(forced, out.Forced.Seconds())
		}
		results = append(results, ratio(each.name, "s", last, forced), measured(each.name+"-median", "s", half...))
	}
	return results, nil
}
