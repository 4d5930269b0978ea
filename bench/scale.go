package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/bench/scale"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
)

// Sizes of clusters, in nodes. Cilium's allocator was measured with up to 1,600.
const (
	small, medium, compared, large, huge = 100, 400, 1600, 2000, 10000
)

var clusterSizes = []int{small, medium, compared, large, huge}

// turns is how often the two sides of a ratio of CPU times are run.
const turns = 5

// scaleRun does one run, and keeps its outcome for the table beside Cilium's.
func (b *bench) scaleRun(ctx context.Context, o scale.Order) (scale.Outcome, error) {
	start := time.Now()
	out, err := scale.Job.Run(ctx, o, b.profiles.next(fmt.Sprintf("%s-%d", o.Workload, o.Nodes)))
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

// scaleTurns does runs in turn, and returns their outcomes by order.
func (b *bench) scaleTurns(ctx context.Context, orders ...scale.Order) ([][]scale.Outcome, error) {
	outcomes := make([][]scale.Outcome, len(orders))
	for turn := range turns {
		for i, o := range orders {
			o.Limits.Seed = uint64(turn)
			out, err := b.scaleRun(ctx, o)
			if err != nil {
				return nil, err
			}
			outcomes[i] = append(outcomes[i], out)
		}
	}
	return outcomes, nil
}

// valuesOf are the values of outcomes.
func valuesOf(outcomes []scale.Outcome, value func(scale.Outcome) float64) (values []float64) {
	for _, o := range outcomes {
		values = append(values, value(o))
	}
	return values
}

// bySize does a workload with clusters of all sizes, two of them in turn. It
// returns all values of those two, and the last outcome by size.
func (b *bench) bySize(ctx context.Context, w scale.Workload, many, few int, value func(scale.Outcome) float64) (values [2][]float64, last map[int]scale.Outcome, err error) {
	last = map[int]scale.Outcome{}
	outcomes, err := b.scaleTurns(ctx, scale.Order{Workload: w, Nodes: many}, scale.Order{Workload: w, Nodes: few})
	if err != nil {
		return values, nil, err
	}
	for i, n := range []int{many, few} {
		values[i], last[n] = valuesOf(outcomes[i], value), outcomes[i][turns-1]
	}
	for _, n := range clusterSizes {
		if n == many || n == few {
			continue
		}
		if last[n], err = b.scaleRun(ctx, scale.Order{Workload: w, Nodes: n}); err != nil {
			return values, nil, err
		}
	}
	return values, last, nil
}

// perEvent is the CPU time of an event in ms.
func perEvent(o scale.Outcome) float64 { return millis(o.CPU) / float64(o.Events) }

// joins measures what it costs until N nodes have their first addresses.
func joins(ctx context.Context, b *bench) ([]Result, error) {
	values, outcomes, err := b.bySize(ctx, scale.Join, huge, medium, perEvent)
	if err != nil {
		return nil, err
	}
	results := []Result{ratio("join-growth", "ms/node", values[0], values[1])}
	for _, n := range clusterSizes {
		out := outcomes[n]
		results = append(results,
			single(fmt.Sprintf("join-%d-cpu", n), "s", out.CPU.Seconds(), 0),
			single(fmt.Sprintf("join-%d-allocated", n), "MiB", float64(out.Bytes)/mebi, 0))
	}
	return results, nil
}

// singleEvents measures what it costs when one node of N needs one address.
func singleEvents(ctx context.Context, b *bench) ([]Result, error) {
	values, outcomes, err := b.bySize(ctx, scale.Event, large, small, perEvent)
	if err != nil {
		return nil, err
	}
	results := []Result{ratio("operator-event", "ms", values[0], values[1]), measured("operator-event-cpu", "ms", values[0]...)}
	for _, n := range clusterSizes {
		out := outcomes[n]
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
	tight     = scale.Limits{Delay: 100 * time.Millisecond, Shared: &cloudfake.Bucket{Rate: 4, Size: 20}}
	published = scale.Limits{Delay: 100 * time.Millisecond, Published: true}
)

// fills measures how long it takes until all nodes have addresses, against what
// EC2's limits alone force.
func fills(ctx context.Context, b *bench) ([]Result, error) {
	type fill struct {
		name   string
		order  scale.Order
		extras func(scale.Outcome) []Result // further figures of the run
	}
	all := []fill{
		{"fill-nodes", scale.Order{Workload: scale.Fill, Nodes: small, Limits: tight}, func(o scale.Outcome) []Result {
			return []Result{
				single("fill-median", "s", o.Median.Seconds(), o.Bound.Seconds()),
				single("fill-calls", "calls/node", float64(o.TotalCalls())/small, 0),
				single("fill-exposed", "s", o.Exposed.Seconds(), 0),
			}
		}},
		{"fill-nodes-spread", scale.Order{Workload: scale.Fill, Nodes: small, Limits: tight, Join: 100 * time.Millisecond}, nil},
		{"fill-subnets", scale.Order{Workload: scale.Subnets, Nodes: small, Limits: tight}, func(o scale.Outcome) []Result {
			return []Result{single("fill-subnets-failed-creates", "calls", float64(o.FailedCreates), 0)}
		}},
	}
	for _, n := range clusterSizes[1:] {
		all = append(all, fill{fmt.Sprintf("fill-%d-published", n), scale.Order{Workload: scale.Fill, Nodes: n, Limits: published}, nil})
	}
	var results []Result
	for _, f := range all {
		out, err := b.scaleRun(ctx, f.order)
		if err != nil {
			return nil, err
		}
		results = append(results, single(f.name, "s", out.Last.Seconds(), out.Bound.Seconds()))
		if f.extras != nil {
			results = append(results, f.extras(out)...)
		}
	}
	return results, nil
}

// throttles measures what one throttled call delays.
func throttles(ctx context.Context, b *bench) (results []Result, err error) {
	with := func(w scale.Workload, nodes int) (hit, calm scale.Outcome, err error) {
		o := scale.Order{Workload: w, Nodes: nodes, Limits: scale.Limits{Delay: tight.Delay}}
		if hit, err = b.scaleRun(ctx, o); err == nil {
			o.Calm = true
			calm, err = b.scaleRun(ctx, o)
		}
		return hit, calm, err
	}
	for _, f := range []struct {
		name     string
		workload scale.Workload
	}{{"throttled-create", scale.ThrottledCreate}, {"throttled-assign", scale.ThrottledAssign}} {
		hit, calm, err := with(f.workload, 1)
		if err != nil {
			return nil, err
		}
		own := (hit.Waited + tight.Delay).Seconds() // the refused call took its time too
		results = append(results, single(f.name, "s", (hit.Last-calm.Last).Seconds(), own))
		if f.workload == scale.ThrottledAssign {
			results = append(results, single("throttled-assign-enis", "ENIs", float64(hit.ENIs), 0))
		}
	}
	many, calm, err := with(scale.ThrottledCreate, small)
	return append(results,
		single("throttled-once-median", "s", many.Median.Seconds(), calm.Median.Seconds()),
		single("throttled-once-last", "s", many.Last.Seconds(), calm.Last.Seconds())), err
}

// lasts, medians and bounds are those times of runs in seconds.
func lasts(o []scale.Outcome) []float64 {
	return valuesOf(o, func(o scale.Outcome) float64 { return o.Last.Seconds() })
}

func medians(o []scale.Outcome) []float64 {
	return valuesOf(o, func(o scale.Outcome) float64 { return o.Median.Seconds() })
}

func bounds(o []scale.Outcome) []float64 {
	return valuesOf(o, func(o scale.Outcome) float64 { return o.Bound.Seconds() })
}

// refusals measures how fast ENIs are created while some calls are refused at
// random, against the share that is not refused of how fast they are without that.
func refusals(ctx context.Context, b *bench) ([]Result, error) {
	rate := func(o scale.Outcome) float64 { return float64(o.ENIs) / o.Last.Seconds() }
	order := scale.Order{Workload: scale.Fill, Nodes: medium, Limits: scale.Limits{Delay: tight.Delay}}
	calm, err := b.scaleRun(ctx, order)
	if err != nil {
		return nil, err
	}
	return byRefused(ctx, b, []int{1, 2, 5, 10}, order, func(percent int, out []scale.Outcome) Result {
		return ratio(fmt.Sprintf("refused-%d", percent), "creates/s", valuesOf(out, rate), []float64{(1 - share(percent)) * rate(calm)})
	})
}

func share(percent int) float64 { return float64(percent) / 100 }

// byRefused does runs while such shares of calls are refused at random.
func byRefused(ctx context.Context, b *bench, percents []int, o scale.Order, result func(percent int, out []scale.Outcome) Result) (results []Result, err error) {
	for _, percent := range percents {
		o.Limits.Refused = share(percent)
		out, err := b.scaleTurns(ctx, o)
		if err != nil {
			return nil, err
		}
		results = append(results, result(percent, out[0]))
	}
	return results, nil
}

// besideForeign measures how long runs take beside another client of the account
// that never backs off, against what a share in proportion takes.
func besideForeign(ctx context.Context, b *bench, figure string, o scale.Order) (results []Result, err error) {
	o.Limits = scale.Limits{Delay: tight.Delay, Shared: &cloudfake.Bucket{Rate: 5, Size: 20}}
	for _, n := range []struct {
		name string
		rate float64
	}{{"4", 4}, {"5-5", 5.5}, {"8", 8}} {
		o.Limits.Foreign = n.rate
		out, err := b.scaleTurns(ctx, o)
		if err != nil {
			return nil, err
		}
		results = append(results, ratio(figure+n.name, "s", lasts(out[0]), bounds(out[0])))
	}
	return results, nil
}

// besideOthers measures how long nodes take beside such a client.
func besideOthers(ctx context.Context, b *bench) ([]Result, error) {
	return besideForeign(ctx, b, "foreign-client-", scale.Order{Workload: scale.Fill, Nodes: small})
}

// peers is how many daemons in node mode draw on the same buckets.
const peers = 4

// peersBesideOthers measures daemons in node mode, which do not know of each other:
// beside a client that never backs off, and while calls are refused at random, when
// half of all calls have passed, against the share that is not refused of how fast
// that is without. (The last call is that of the peer with the smallest share, which
// the order decides.)
func peersBesideOthers(ctx context.Context, b *bench) ([]Result, error) {
	order := scale.Order{Workload: scale.Peers, Nodes: peers}
	foreign, err := besideForeign(ctx, b, "peers-foreign-", order)
	if err != nil {
		return nil, err
	}
	order.Limits = scale.Limits{Delay: tight.Delay, Shared: &cloudfake.Bucket{Rate: 20, Size: 100}}
	calm, err := b.scaleTurns(ctx, order)
	if err != nil {
		return nil, err
	}
	half := median(medians(calm[0]))
	refused, err := byRefused(ctx, b, []int{1, 5, 10}, order, func(percent int, out []scale.Outcome) Result {
		return ratio(fmt.Sprintf("peers-refused-%d", percent), "s", medians(out), []float64{half / (1 - share(percent))})
	})
	return append(foreign, refused...), err
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
