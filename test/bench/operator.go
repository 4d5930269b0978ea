package main

import (
	"context"
	"path/filepath"
	"time"

	"github.com/berthnet/berth/internal/vpclab/spec"
	"github.com/berthnet/berth/test/bench/whole"
)

// operators measures the operator's process: how fast it fills 500 nodes within
// EC2's limits (twice the published ones, which accounts of that size have, and
// half the time of a run), and its memory with 2,000 nodes of 10 pods.
func operators(ctx context.Context, b *bench) ([]Result, error) {
	o := whole.Order{
		Nodes: 500, Used: 4, Free: 8, Limit: spec.RateLimit{Bucket: 100, Refill: 10}, Delay: tight.Delay,
		Operator: filepath.Join(b.binDir, "berth-operator"), Assets: b.assets, CRDs: filepath.Join("deploy", "crds"), Say: say,
	}
	many, err := whole.Run(ctx, o)
	if err != nil {
		return nil, err
	}
	o.Nodes, o.Used, o.Limit, o.Delay = large, 10, spec.RateLimit{}, 0
	large, err := whole.Run(ctx, o)
	if err != nil {
		return nil, err
	}
	perNode := func(d time.Duration, n int) float64 { return millis(d) / float64(n) }
	return []Result{
		single("operator-500-fill", "s", many.Filled.Seconds(), many.Bound.Seconds()),
		single("operator-500-median", "s", many.Median.Seconds(), many.Bound.Seconds()),
		single("operator-500-fill-cpu", "ms/node", perNode(many.FillCPU, 500), 0),
		single("operator-500-report-cpu", "ms/node", perNode(many.ReportCPU, 500), 0),
		single("operator-memory-500", "MiB", float64(many.Memory)/mebi, 0),
		single("operator-2000-fill-cpu", "ms/node", perNode(large.FillCPU, 2000), 0),
		single("operator-2000-report-cpu", "ms/node", perNode(large.ReportCPU, 2000), 0),
		single("operator-memory-2000", "MiB", float64(large.Memory)/mebi, 0),
	}, nil
}
