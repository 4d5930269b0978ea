package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/bench/scale"
	"github.com/berthnet/berth/bench/whole"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/lab/cloud/spec"
)

// Cluster sizes in nodes. Cilium's allocator was measured with up to 1,600.
const (
	small, medium, compared, large, huge = 100, 400, 1600, 2000, 10000
)

var clusterSizes = []int{small, medium, compared, large, huge}

// turns is the number of runs of each side of a ratio of CPU times.
const turns = 5

// scaleRun executes one run.
func (b *bench) scaleRun(ctx context.Context, o scale.Order) scale.Outcome {
	start := time.Now()
	out := must.Get(scale.Job.Run(ctx, o, b.profile(fmt.Sprintf("%s-%d", o.Workload, o.Nodes))))
	say("  %s, %d nodes: %s (%v)", o.Workload, o.Nodes, summary(out), time.Since(start).Round(100*time.Millisecond))
	return out
}

// summary returns a run's outcome as one line.
func summary(o scale.Outcome) string {
	var parts []string
	if o.CPU > 0 {
		parts = append(parts, fmt.Sprintf("%v of CPU, %.1f MiB allocated", o.CPU.Round(10*time.Microsecond), float64(o.Bytes)/mebi))
	}
	if o.Repair > 0 {
		parts = append(parts, fmt.Sprintf("%v of CPU a minute for repair", o.Repair.Round(10*time.Microsecond)))
	}
	if o.Last > 0 {
		parts = append(parts, fmt.Sprintf("last node after %.2fs, median %.2fs, lower bound %.2fs, %d calls throttled", o.Last.Seconds(), o.Median.Seconds(), o.Bound.Seconds(), o.Throttled))
	}
	if o.Heap > 0 {
		parts = append(parts, fmt.Sprintf("%.1f MiB of heap", float64(o.Heap)/mebi))
	}
	for _, action := range slices.Sorted(maps.Keys(o.Calls)) {
		parts = append(parts, fmt.Sprintf("%d %s", o.Calls[action], action))
	}
	return strings.Join(parts, ", ")
}

// outcomes are the outcomes of several runs.
type outcomes []scale.Outcome

// values returns one value per outcome.
func (all outcomes) values(value func(scale.Outcome) float64) (values []float64) {
	for _, o := range all {
		values = append(values, value(o))
	}
	return values
}

func last(o scale.Outcome) float64   { return o.Last.Seconds() }
func middle(o scale.Outcome) float64 { return o.Median.Seconds() }
func bound(o scale.Outcome) float64  { return o.Bound.Seconds() }

// perEvent returns the CPU time per event in ms.
func perEvent(o scale.Outcome) float64 { return millis(o.CPU) / float64(o.Events) }

// scaleTurns executes runs in turn, and returns their outcomes by order.
func (b *bench) scaleTurns(ctx context.Context, orders ...scale.Order) []outcomes {
	all := make([]outcomes, len(orders))
	for turn := range turns {
		for i, o := range orders {
			o.Limits.Seed = uint64(turn)
			all[i] = append(all[i], b.scaleRun(ctx, o))
		}
	}
	return all
}

// bySize runs a workload with clusters of all sizes, two of them in turn. It returns the CPU time per
// event for those two, and the last outcome by size.
func (b *bench) bySize(ctx context.Context, w scale.Workload, many, few int) (ofMany, ofFew []float64, last map[int]scale.Outcome) {
	both := b.scaleTurns(ctx, scale.Order{Workload: w, Nodes: many}, scale.Order{Workload: w, Nodes: few})
	last = map[int]scale.Outcome{many: both[0][turns-1], few: both[1][turns-1]}
	for _, n := range clusterSizes {
		if n != many && n != few {
			last[n] = b.scaleRun(ctx, scale.Order{Workload: w, Nodes: n})
		}
	}
	return both[0].values(perEvent), both[1].values(perEvent), last
}

// joins measures the cost of assigning the first addresses to N nodes.
func joins(ctx context.Context, b *bench) []Result {
	many, few, last := b.bySize(ctx, scale.Join, huge, medium)
	results := []Result{ratio("join-growth", "ms/node", many, few)}
	for _, n := range clusterSizes {
		results = append(results,
			single(fmt.Sprintf("join-%d-cpu", n), "s", last[n].CPU.Seconds(), 0),
			single(fmt.Sprintf("join-%d-allocated", n), "MiB", float64(last[n].Bytes)/mebi, 0))
	}
	return results
}

// singleEvents measures the cost of assigning one address to one of N nodes.
func singleEvents(ctx context.Context, b *bench) []Result {
	many, few, last := b.bySize(ctx, scale.Event, large, small)
	results := []Result{ratio("operator-event", "ms", many, few), measured("operator-event-cpu", "ms", many...)}
	for _, n := range clusterSizes {
		results = append(results,
			single(fmt.Sprintf("event-%d-cpu", n), "ms", perEvent(last[n]), 0),
			single(fmt.Sprintf("event-%d-allocated", n), "KiB", float64(last[n].Bytes)/float64(last[n].Events)/1024, 0),
			single(fmt.Sprintf("repair-%d-cpu", n), "ms/min", millis(last[n].Repair), 0))
	}
	return results
}

// memories measures the allocator's memory for its nodes.
func memories(ctx context.Context, b *bench) (results []Result) {
	for _, n := range []int{large, huge} {
		out := b.scaleRun(ctx, scale.Order{Workload: scale.Memory, Nodes: n})
		results = append(results, single(fmt.Sprintf("allocator-memory-%d", n), "MiB", float64(out.Heap)/mebi, 0))
	}
	return results
}

// largest is the largest cluster for one operator, with three million pods.
const largest = 100_000

// pageDelay is the duration of each EC2 call during a takeover, among them the pages of a listing, with 1,000 ENIs each.
const pageDelay = 500 * time.Millisecond

// takeover executes a run of an operator that takes over a cluster.
func (b *bench) takeover(ctx context.Context, o scale.TakeoverOrder) scale.Takeover {
	o.Page = pageDelay
	out := must.Get(scale.TakeoverJob.Run(ctx, o, b.profile(fmt.Sprintf("takeover-%d", o.Nodes))))
	if o.Real {
		say("  %d nodes in real time: first %v, last %v, all observed %v", o.Nodes, out.First, out.Last, out.Full)
		return out
	}
	say("  %d nodes: first %v, last %v, all observed %v (CPU %v); %d MiB; listing %v, %d pages, %d MiB; writes %v, at most %d a second, settled after %v",
		o.Nodes, out.First, out.Last, out.Full, out.FullCPU, out.Heap>>20, out.Listing, out.Pages, out.ListingHeap>>20, out.Writes, out.BusiestSecond, out.Settled)
	return out
}

// takeovers measures an operator that takes over a cluster from another one, in turn with a smaller cluster, and then the
// writes for a change that concerns all nodes.
func takeovers(ctx context.Context, b *bench) []Result {
	const many, few = 3000, 600
	s := series{}
	var last scale.Takeover
	for range 3 {
		for _, n := range []int{many, few} {
			last = b.takeover(ctx, scale.TakeoverOrder{Nodes: n, Template: n == few})
			s.add(fmt.Sprint("cpu ", n), millis(last.FullCPU)/float64(n))
			s.add(fmt.Sprint("heap ", n), float64(last.Heap)/1024/float64(n))
			s.add(fmt.Sprint("writes ", n), float64(last.Writes["status of NodeNetwork"])/float64(n))
		}
	}
	return []Result{
		s.ratio("takeover-cpu", "ms/node", fmt.Sprint("cpu ", many), fmt.Sprint("cpu ", few)),
		s.ratio("takeover-memory", "KiB/node", fmt.Sprint("heap ", many), fmt.Sprint("heap ", few)),
		measured("takeover-writes", "writes/node", s[fmt.Sprint("writes ", many)]...),
		single("status-writes", "writes/s", float64(last.BusiestSecond), 0),
	}
}

// largestTakeover measures a takeover of the largest cluster, in real time and in virtual time.
func largestTakeover(ctx context.Context, b *bench) []Result {
	timed := b.takeover(ctx, scale.TakeoverOrder{Nodes: largest, Real: true})
	out := b.takeover(ctx, scale.TakeoverOrder{Nodes: largest})
	return []Result{
		single("takeover-100000-first", "s", timed.First.Seconds(), 0),
		single("takeover-100000-last", "s", timed.Last.Seconds(), 0),
		single("takeover-100000-full", "s", timed.Full.Seconds(), 0),
		single("takeover-100000-memory", "MiB", float64(out.Heap)/mebi, 0),
		single("listing-100000", "s", out.Listing.Seconds(), 0),
		single("listing-100000-calls", "calls", float64(out.Pages), 0),
		single("listing-100000-memory", "MiB", float64(out.ListingHeap)/mebi, 0),
	}
}

// largestEvents measures the allocator's events and repair in the largest cluster.
func largestEvents(ctx context.Context, b *bench) []Result {
	few, many := b.scaleRun(ctx, scale.Order{Workload: scale.Event, Nodes: huge}), b.scaleRun(ctx, scale.Order{Workload: scale.Event, Nodes: largest})
	return []Result{
		single("event-100000", "ms", perEvent(many), perEvent(few)),
		single("repair-100000", "ms/min/node", millis(many.Repair)/largest, millis(few.Repair)/huge),
	}
}

// callDelay is the duration of each call to EC2.
const callDelay = 100 * time.Millisecond

// The EC2 limits of the fills: one bucket that all actions share, or the buckets that EC2 documents.
var (
	tight     = scale.Limits{Delay: callDelay, Shared: &cloudfake.Bucket{Rate: 4, Size: 20}}
	published = scale.Limits{Delay: callDelay, Published: true}
)

// fills measures how long it takes until all nodes have addresses, against the minimum that EC2's limits
// impose.
func fills(ctx context.Context, b *bench) (results []Result) {
	fill := func(name string, o scale.Order) scale.Outcome {
		out := b.scaleRun(ctx, o)
		results = append(results, single(name, "s", last(out), bound(out)))
		return out
	}
	atOnce := fill("fill-nodes", scale.Order{Workload: scale.Fill, Nodes: small, Limits: tight})
	results = append(results,
		single("fill-median", "s", middle(atOnce), bound(atOnce)),
		single("fill-calls", "calls/node", float64(atOnce.TotalCalls())/small, 0),
		single("fill-exposed", "s", atOnce.Exposed.Seconds(), 0))
	fill("fill-nodes-spread", scale.Order{Workload: scale.Fill, Nodes: small, Limits: tight, Join: 100 * time.Millisecond})
	subnets := fill("fill-subnets", scale.Order{Workload: scale.Subnets, Nodes: small, Limits: tight})
	results = append(results, single("fill-subnets-failed-creates", "calls", float64(subnets.FailedCreates), 0))
	for _, n := range clusterSizes[1:] {
		fill(fmt.Sprintf("fill-%d-published", n), scale.Order{Workload: scale.Fill, Nodes: n, Limits: published})
	}
	return results
}

// throttles measures the delay that one throttled call causes.
func throttles(ctx context.Context, b *bench) []Result {
	with := func(w scale.Workload, nodes int) (hit, calm scale.Outcome) {
		o := scale.Order{Workload: w, Nodes: nodes, Limits: scale.Limits{Delay: callDelay}}
		hit, o.Calm = b.scaleRun(ctx, o), true
		return hit, b.scaleRun(ctx, o)
	}
	delay := func(name string, hit, calm scale.Outcome) Result {
		return single(name, "s", (hit.Last - calm.Last).Seconds(), (hit.Waited + callDelay).Seconds()) // the throttled call itself takes callDelay
	}
	create, noCreate := with(scale.ThrottledCreate, 1)
	assign, noAssign := with(scale.ThrottledAssign, 1)
	many, calm := with(scale.ThrottledCreate, small)
	return []Result{
		delay("throttled-create", create, noCreate),
		delay("throttled-assign", assign, noAssign),
		single("throttled-assign-enis", "ENIs", float64(assign.ENIs), 0),
		single("throttled-once-median", "s", middle(many), middle(calm)),
		single("throttled-once-last", "s", last(many), last(calm)),
	}
}

// refusals measures the rate of ENI creations while some calls are refused at random, against the rate
// without refusals times the share of calls that are not refused.
func refusals(ctx context.Context, b *bench) []Result {
	rate := func(o scale.Outcome) float64 { return float64(o.ENIs) / last(o) }
	order := scale.Order{Workload: scale.Fill, Nodes: medium, Limits: scale.Limits{Delay: callDelay}}
	calm := rate(b.scaleRun(ctx, order))
	return b.byRefused(ctx, order, []int{1, 2, 5, 10}, func(percent int, refused float64, out outcomes) Result {
		return ratio(fmt.Sprintf("refused-%d", percent), "creates/s", out.values(rate), []float64{(1 - refused) * calm})
	})
}

// byRefused executes runs with the given percentages of calls refused at random.
func (b *bench) byRefused(ctx context.Context, o scale.Order, percents []int, result func(percent int, refused float64, out outcomes) Result) (results []Result) {
	for _, percent := range percents {
		o.Limits.Refused = float64(percent) / 100
		results = append(results, result(percent, o.Limits.Refused, b.scaleTurns(ctx, o)[0]))
	}
	return results
}

// besideOthers measures how long runs take beside another client of the account that never backs off,
// against the time with a proportional share of the rate.
func (b *bench) besideOthers(ctx context.Context, figure string, o scale.Order) (results []Result) {
	o.Limits = scale.Limits{Delay: callDelay, Shared: &cloudfake.Bucket{Rate: 5, Size: 20}}
	for _, foreign := range []float64{4, 5.5, 8} {
		o.Limits.Foreign = foreign
		out := b.scaleTurns(ctx, o)[0]
		name := figure + strings.ReplaceAll(fmt.Sprint(foreign), ".", "-")
		results = append(results, ratio(name, "s", out.values(last), out.values(bound)))
	}
	return results
}

// fillsBesideOthers measures how long nodes take beside such a client.
func fillsBesideOthers(ctx context.Context, b *bench) []Result {
	return b.besideOthers(ctx, "foreign-client-", scale.Order{Workload: scale.Fill, Nodes: small})
}

// peersBesideOthers measures four daemons in node mode, which share the same buckets without knowing of
// each other: beside a client that never backs off, and with calls refused at random. The latter figure is
// the time until half of all calls have passed, against the time without refusals divided by the share of
// calls that are not refused. (The last call would be that of the peer with the smallest share, which
// depends on the order.)
func peersBesideOthers(ctx context.Context, b *bench) []Result {
	order := scale.Order{Workload: scale.Peers, Nodes: 4}
	results := b.besideOthers(ctx, "peers-foreign-", order)
	order.Limits = scale.Limits{Delay: callDelay, Shared: &cloudfake.Bucket{Rate: 20, Size: 100}}
	half := median(b.scaleTurns(ctx, order)[0].values(middle))
	return append(results, b.byRefused(ctx, order, []int{1, 5, 10}, func(percent int, refused float64, out outcomes) Result {
		return ratio(fmt.Sprintf("peers-refused-%d", percent), "s", out.values(middle), []float64{half / (1 - refused)})
	})...)
}

// wholeOperator runs the operator's process with the given numbers of nodes and of pods per node.
func (b *bench) wholeOperator(ctx context.Context, nodes, pods int, limit spec.RateLimit, delay time.Duration) whole.Outcome {
	return must.Get(whole.Run(ctx, whole.Order{
		Nodes: nodes, Used: pods, Free: 8, Limit: limit, Delay: delay, Operator: filepath.Join(b.options.binDir, "berth-operator"),
		Assets: b.options.assets, CRDs: filepath.Join("deploy", "chart", "files", "crds"), Say: say,
	}))
}

// operators measures the operator's process: how fast it fills 500 nodes within EC2's limits, and its
// memory with 2,000 nodes of 10 pods. The limits are twice the published ones: accounts of that size have
// such limits, and a run takes half the time.
func operators(ctx context.Context, b *bench) []Result {
	const several = 500
	out := b.wholeOperator(ctx, several, 4, spec.RateLimit{Bucket: 100, Refill: 10}, callDelay)
	results := append([]Result{
		single("operator-500-fill", "s", out.Filled.Seconds(), out.Bound.Seconds()),
		single("operator-500-median", "s", out.Median.Seconds(), out.Bound.Seconds()),
	}, costs(several, out)...)
	return append(results, costs(large, b.wholeOperator(ctx, large, 10, spec.RateLimit{}, 0))...)
}

// hugeOperator measures the operator's memory with 10,000 nodes of 10 pods.
func hugeOperator(ctx context.Context, b *bench) []Result {
	return costs(huge, b.wholeOperator(ctx, huge, 10, spec.RateLimit{}, 0))
}

// costs returns the operator's CPU time per node and its memory.
func costs(nodes int, out whole.Outcome) []Result {
	perNode := func(d time.Duration) float64 { return millis(d) / float64(nodes) }
	return []Result{
		single(fmt.Sprintf("operator-%d-fill-cpu", nodes), "ms/node", perNode(out.FillCPU), 0),
		single(fmt.Sprintf("operator-%d-report-cpu", nodes), "ms/node", perNode(out.ReportCPU), 0),
		single(fmt.Sprintf("operator-memory-%d", nodes), "MiB", float64(out.Memory)/mebi, 0),
	}
}
