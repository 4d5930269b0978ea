package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/berthnet/berth/test/bench/branches"
	"github.com/berthnet/berth/test/bench/scale"
)

// branchPods come to one node at once.
const branchPods = 50

// branchBursts measures pods of one node whose branches are all to be made.
func branchBursts(ctx context.Context, b *bench) ([]Result, error) {
	var results []Result
	for _, each := range []struct {
		name   string
		limits scale.Limits
	}{{"branch-burst", tight}, {"branch-burst-published", published}} {
		o := branches.Order{Pods: branchPods, Limits: each.limits}
		if b.profiles != "" {
			b.profiled++
			o.Profile = filepath.Join(b.profiles, fmt.Sprintf("%02d-%s.pprof", b.profiled, each.name))
		}
		out, err := branches.Run(ctx, o)
		if err != nil {
			return nil, err
		}
		say("  %s: bound after %v, half of them after %v; calls %v, %d refused", each.name, out.Bound, out.Median, out.Calls, out.Throttled)
		results = append(results, single(each.name, "s", out.Bound.Seconds(), out.Forced.Seconds()))
		if each.name == "branch-burst" {
			results = append(results, single("branch-burst-median", "s", out.Median.Seconds(), out.Forced.Seconds()/2))
		}
	}
	return results, nil
}
