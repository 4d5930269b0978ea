package main

import (
	"context"
	"fmt"

	"github.com/berthnet/berth/bench/scale"
)

// fleetScenarios are what happens to 2,000 daemons in node mode, in the names of figures.
var fleetScenarios = []struct {
	name     string
	workload scale.Workload
}{
	{"start", scale.NodeStart}, {"replace", scale.NodeReplace}, {"churn", scale.NodeChurn}, {"outage", scale.NodeOutage},
}

// fleetSizes are further numbers of daemons that start at once: they show up to which size few calls are refused.
var fleetSizes = []int{50, small, medium, 1000}

// fleetLimits are the limits of the account, in the names of figures: as EC2 publishes them, and a fifth of that.
var fleetLimits = []struct {
	name   string
	limits scale.Limits
}{
	{"", published},
	{"-fifth", scale.Limits{Delay: callDelay, Published: true, Part: 0.2}},
}

// besideStranger are the published limits with a client that sends as much as each bucket grants and never backs off, and
// strangerSizes the numbers of daemons that start beside it.
var (
	besideStranger = scale.Limits{Delay: callDelay, Published: true, Foreign: 1}
	strangerSizes  = []int{small, medium, large}
)

// nodeFleets measures daemons in node mode that share the account's limits without knowing of each other.
func nodeFleets(ctx context.Context, b *bench) (results []Result) {
	for _, l := range fleetLimits {
		for _, s := range fleetScenarios {
			out := b.scaleRun(ctx, scale.Order{Workload: s.workload, Nodes: large, Limits: l.limits})
			name := "node-fleet-" + s.name + l.name
			results = append(results,
				single(name, "s", last(out), bound(out)),
				single(name+"-first", "s", out.Daemons.First.Seconds(), bound(out)),
				single(name+"-worst", "s", out.Daemons.Worst.Seconds(), middle(out)),
				single(name+"-refused", "%", refusedPercent(out), 0))
		}
		rest := b.scaleRun(ctx, scale.Order{Workload: scale.NodeRest, Nodes: large, Limits: l.limits})
		results = append(results,
			single("node-fleet-rest"+l.name+"-calls", "calls/h", float64(rest.TotalCalls()), 0),
			single("node-fleet-rest"+l.name+"-refused", "%", refusedPercent(rest), 0))
	}
	for _, n := range fleetSizes {
		out := b.scaleRun(ctx, scale.Order{Workload: scale.NodeStart, Nodes: n, Limits: published})
		results = append(results,
			single(fmt.Sprintf("node-fleet-start-%d", n), "s", last(out), bound(out)),
			single(fmt.Sprintf("node-fleet-start-%d-refused", n), "%", refusedPercent(out), 0))
	}
	for _, n := range strangerSizes {
		out := b.scaleRun(ctx, scale.Order{Workload: scale.NodeStart, Nodes: n, Limits: besideStranger})
		name := fmt.Sprintf("node-fleet-start-%d-stranger", n)
		results = append(results,
			single(name, "s", last(out), bound(out)),
			single(name+"-worst", "s", out.Daemons.Worst.Seconds(), middle(out)),
			single(name+"-refused", "%", refusedPercent(out), 0))
	}
	return results
}

// refusedPercent returns the share of a run's calls that EC2's limits refused.
func refusedPercent(o scale.Outcome) float64 {
	return 100 * float64(o.Throttled) / float64(max(1, o.TotalCalls()+o.Throttled))
}
