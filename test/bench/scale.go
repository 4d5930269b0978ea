package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/cloud/cloudsim"
	"github.com/berthnet/berth/test/bench/scale"
)

// sizes of clusters, in nodes.
const (
	small, medium, peer, large, huge = 100, 400, 1600, 2000, 10000
)

var clusterSizes = []int{small, medium, peer, large, huge}

// turns is how often the two sides of a ratio of CPU times are run.
const turns = 5

// scaleRun does one run, and keeps its outcome for the table beside Cilium's.
func (b *bench) scaleRun(ctx context.Context, o scale.Order) (scale.Outcome, error) {
	if b.profiles != "" {
		b.profiled++
		o.Profile = filepath.Join(b.profiles, fmt.Sprintf("%02d-%s-%d.pprof", b.profiled, o.Workload, o.Nodes))
	}
	start := time.Now()
	out, err := scale.Run(ctx, o)
	if err == nil {
		say("  %s, %d nodes: %s (%v)", o.Workload, o.Nodes, summary(out), time.Since(start).Round(100*time.Millisecond))
	}
	return out, err
}

// summary is a run's outcome in a line.
func summary(o scale.Outcome) string {
	var parts []string
	if o.CPU > 0 {
		parts = append(parts, fmt.Sprintf("%v of CPU, %.1f MiB allocated", o.CPU.Round(10*time.Microsecond), float64(o.Bytes)/mebi))
	}
	if o.Repair > 0 {
		parts = append(parts, fmt.Sprintf("%v of CPU a minute for repair", o.Repair.Round(10*time.Microsecond)))
	}
	if o.Last > 0 {
		parts = append(parts, fmt.Sprintf("last node after %.2fs, median %.2fs, bound %.2fs, %d calls refused", o.Last.Seconds(), o.Median.Seconds(), o.Bound.Seconds(), o.Throttled))
	}
	if o.Heap > 0 {
		parts = append(parts, fmt.Sprintf("%.1f MiB of heap", float64(o.Heap)/mebi))
	}
	for _, action := range slices.Sorted(maps.Keys(o.Calls)) {
		parts = append(parts, fmt.Sprintf("%d %s", o.Calls[action], action))
	}
	return strings.Join(parts, ", ")
}

// alternate runs orders in turn, and returns what value makes of the outcomes.
func (b *bench) alternate(ctx context.Context, value func(scale.Outcome) float64, orders ...scale.Order) ([][]float64, []scale.Outcome, error) {
	values, last := make([][]float64, len(orders)), make([]scale.Outcome, len(orders))
	for range turns {
		for i, o := range orders {
			out, err := b.scaleRun(ctx, o)
			if err != nil {
				return nil, nil, err
			}
			values[i], last[i] = append(values[i], value(out)), out
		}
	}
	return values, last, nil
}

// joins measures what it costs until N nodes have their first addresses.
func joins(ctx context.Context, b *bench) (results []Result, err error) {
	perNode := func(o scale.Outcome) float64 { return millis(o.CPU) / float64(o.Events) }
	values, last, err := b.alternate(ctx, perNode, scale.Order{Workload: scale.Join, Nodes: huge}, scale.Order{Workload: scale.Join, Nodes: medium})
	if err != nil {
		return nil, err
	}
	results = append(results, ratio("join-growth", "ms/node", values[0], values[1]))
	outcomes := map[int]scale.Outcome{huge: last[0], medium: last[1]}
	for _, n := range clusterSizes {
		out, ok := outcomes[n]
		if !ok {
			if out, err = b.scaleRun(ctx, scale.Order{Workload: scale.Join, Nodes: n}); err != nil {
				return nil, err
			}
		}
		results = append(results,
			single(fmt.Sprintf("join-%d-cpu", n), "s", out.CPU.Seconds(), 0),
			single(fmt.Sprintf("join-%d-allocated", n), "MiB", float64(out.Bytes)/mebi, 0))
	}
	return results, nil
}

// singleEvents measures what it costs when one node of N needs one address.
func singleEvents(ctx context.Context, b *bench) (results []Result, err error) {
	perEvent := func(o scale.Outcome) float64 { return millis(o.CPU) / float64(o.Events) }
	values, last, err := b.alternate(ctx, perEvent, scale.Order{Workload: scale.Event, Nodes: large}, scale.Order{Workload: scale.Event, Nodes: small})
	if err != nil {
		return nil, err
	}
	results = []Result{
		ratio("operator-event", "ms", values[0], values[1]),
		{Name: "operator-event-cpu", Value: median(values[0]), Unit: "ms", Runs: len(values[0])},
	}
	outcomes := map[int]scale.Outcome{large: last[0], small: last[1]}
	for _, n := range clusterSizes {
		out, ok := outcomes[n]
		if !ok {
			if out, err = b.scaleRun(ctx, scale.Order{Workload: scale.Event, Nodes: n}); err != nil {
				return nil, err
			}
		}
		results = append(results,
			single(fmt.Sprintf("event-%d-cpu", n), "ms", perEvent(out), 0),
			single(fmt.Sprintf("event-%d-allocated", n), "KiB", float64(out.Bytes)/float64(out.Events)/1024, 0),
			single(fmt.Sprintf("repair-%d-cpu", n), "ms/min", millis(out.Repair), 0))
	}
	return results, nil
}

// The EC2 side of the fills at 100 nodes: each call takes 100 ms, and all
// actions share one bucket.
var (
	tight     = scale.Limits{Delay: 100 * time.Millisecond, Shared: &cloudsim.Bucket{Rate: 4, Size: 20}}
	published = scale.Limits{Delay: 100 * time.Millisecond, Published: true}
)

// fills measures how long it takes until all nodes have addresses, against what
// EC2's limits alone force.
func fills(ctx context.Context, b *bench) ([]Result, error) {
	var results []Result
	lasts := func(name string, o scale.Order) (scale.Outcome, error) {
		out, err := b.scaleRun(ctx, o)
		if err != nil {
			return out, err
		}
		results = append(results, single(name, "s", out.Last.Seconds(), out.Bound.Seconds()))
		return out, nil
	}
	atOnce, err := lasts("fill-nodes", scale.Order{Workload: scale.Fill, Nodes: small, Limits: tight})
	if err != nil {
		return nil, err
	}
	results = append(results,
		single("fill-median", "s", atOnce.Median.Seconds(), atOnce.Bound.Seconds()),
		single("fill-calls", "calls/node", float64(atOnce.TotalCalls())/small, 0),
		single("fill-exposed", "s", atOnce.Exposed.Seconds(), 0))
	if _, err := lasts("fill-nodes-spread", scale.Order{Workload: scale.Fill, Nodes: small, Limits: tight, Join: 100 * time.Millisecond}); err != nil {
		return nil, err
	}
	full, err := lasts("fill-subnets", scale.Order{Workload: scale.Subnets, Nodes: small, Limits: tight})
	if err != nil {
		return nil, err
	}
	results = append(results, single("fill-subnets-failed-creates", "calls", float64(full.FailedCreates), 0))
	for _, n := range clusterSizes[1:] {
		if _, err := lasts(fmt.Sprintf("fill-%d-published", n), scale.Order{Workload: scale.Fill, Nodes: n, Limits: published}); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// throttles measures what one throttled call delays.
func throttles(ctx context.Context, b *bench) (results []Result, err error) {
	delay := func(w scale.Workload) (scale.Outcome, time.Duration, error) {
		o := scale.Order{Workload: w, Nodes: 1, Limits: scale.Limits{Delay: tight.Delay}}
		hit, err := b.scaleRun(ctx, o)
		if err != nil {
			return hit, 0, err
		}
		o.Calm = true
		calm, err := b.scaleRun(ctx, o)
		return hit, hit.Last - calm.Last, err
	}
	create, late, err := delay(scale.ThrottledCreate)
	if err != nil {
		return nil, err
	}
	own := (create.Waited + tight.Delay).Seconds() // the refused call took its time too
	results = append(results, single("throttled-create", "s", late.Seconds(), own))
	assign, late, err := delay(scale.ThrottledAssign)
	if err != nil {
		return nil, err
	}
	own = (assign.Waited + tight.Delay).Seconds()
	o := scale.Order{Workload: scale.ThrottledCreate, Nodes: small, Limits: scale.Limits{Delay: tight.Delay}}
	many, err := b.scaleRun(ctx, o)
	if err != nil {
		return nil, err
	}
	o.Calm = true
	calm, err := b.scaleRun(ctx, o)
	if err != nil {
		return nil, err
	}
	return append(results,
		single("throttled-assign", "s", late.Seconds(), own),
		single("throttled-assign-enis", "ENIs", float64(assign.ENIs), 0),
		single("throttled-once-median", "s", many.Median.Seconds(), calm.Median.Seconds()),
		single("throttled-once-last", "s", many.Last.Seconds(), calm.Last.Seconds())), nil
}

// refusals measures how fast ENIs are created while some calls are refused at
// random, against the share that is not refused of how fast they are without that.
func refusals(ctx context.Context, b *bench) (results []Result, err error) {
	creates := func(share float64, seed uint64) (float64, error) {
		out, err := b.scaleRun(ctx, scale.Order{
			Workload: scale.Fill, Nodes: medium, Limits: scale.Limits{Delay: tight.Delay, Refused: share, Seed: seed},
		})
		return float64(out.ENIs) / out.Last.Seconds(), err
	}
	calm, err := creates(0, 0)
	if err != nil {
		return nil, err
	}
	for _, percent := range []int{1, 2, 5, 10} {
		share := float64(percent) / 100
		var rates []float64
		for seed := range uint64(turns) {
			rate, err := creates(share, seed)
			if err != nil {
				return nil, err
			}
			rates = append(rates, rate)
		}
		results = append(results, ratio(fmt.Sprintf("refused-%d", percent), "creates/s", rates, []float64{(1 - share) * calm}))
	}
	return results, nil
}

// neighbours measures how long nodes take beside another client of the account
// that never backs off, against what a share in proportion takes.
func neighbours(ctx context.Context, b *bench) (results []Result, err error) {
	for _, n := range []struct {
		name string
		rate float64
	}{{"foreign-client-4", 4}, {"foreign-client-5-5", 5.5}, {"foreign-client-8", 8}} {
		var took, share []float64
		for seed := range uint64(turns) {
			out, err := b.scaleRun(ctx, scale.Order{Workload: scale.Fill, Nodes: small, Limits: scale.Limits{
				Delay: tight.Delay, Shared: &cloudsim.Bucket{Rate: 5, Size: 20}, Foreign: n.rate, Seed: seed,
			}})
			if err != nil {
				return nil, err
			}
			took, share = append(took, out.Last.Seconds()), append(share, out.Bound.Seconds())
		}
		results = append(results, ratio(n.name, "s", took, share))
	}
	return results, nil
}

// peers is how many daemons in node mode draw on the same buckets.
const peers = 4

// companies measures daemons in node mode, which do not know of each other:
// beside a client that never backs off, against what a share in proportion takes;
// and while calls are refused at random, when half of all calls have passed,
// against the share that is not refused of how fast that is without. (The last
// call is that of the peer with the smallest share, which the order decides.)
func companies(ctx context.Context, b *bench) (results []Result, err error) {
	run := func(l scale.Limits) (last, half, bound []float64, err error) {
		for seed := range uint64(turns) {
			l.Seed = seed
			out, err := b.scaleRun(ctx, scale.Order{Workload: scale.Peers, Nodes: peers, Limits: l})
			if err != nil {
				return nil, nil, nil, err
			}
			last, half, bound = append(last, out.Last.Seconds()), append(half, out.Median.Seconds()), append(bound, out.Bound.Seconds())
		}
		return last, half, bound, nil
	}
	for _, n := range []struct {
		name string
		rate float64
	}{{"peers-foreign-4", 4}, {"peers-foreign-5-5", 5.5}, {"peers-foreign-8", 8}} {
		took, _, share, err := run(scale.Limits{Delay: tight.Delay, Shared: &cloudsim.Bucket{Rate: 5, Size: 20}, Foreign: n.rate})
		if err != nil {
			return nil, err
		}
		results = append(results, ratio(n.name, "s", took, share))
	}
	plain := scale.Limits{Delay: tight.Delay, Shared: &cloudsim.Bucket{Rate: 20, Size: 100}}
	_, calm, _, err := run(plain)
	if err != nil {
		return nil, err
	}
	for _, percent := range []int{1, 5, 10} {
		l := plain
		l.Refused = float64(percent) / 100
		_, half, _, err := run(l)
		if err != nil {
			return nil, err
		}
		results = append(results, ratio(fmt.Sprintf("peers-refused-%d", percent), "s", half, []float64{median(calm) / (1 - l.Refused)}))
	}
	return results, nil
}

// memories measures what the allocator keeps of its nodes.
func memories(ctx context.Context, b *bench) (results []Result, err error) {
	for _, n := range []int{large, huge} {
		out, err := b.scaleRun(ctx, scale.Order{Workload: scale.Memory, Nodes: n})
		if err != nil {
			return nil, err
		}
		results = append(results, single(fmt.Sprintf("allocator-memory-%d", n), "MiB", float64(out.Heap)/mebi, 0))
	}
	return results, nil
}
