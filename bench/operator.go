package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/berthnet/berth/bench/whole"
	"github.com/berthnet/berth/lab/cloud/spec"
)

// wholeOperator is an order for so many nodes, with as many pods each, of an EC2
// that refuses nothing.
func (b *bench) wholeOperator(nodes, pods int) whole.Order {
	return whole.Order{
		Nodes: nodes, Used: pods, Free: 8, Operator: filepath.Join(b.options.binDir, "berth-operator"),
		Assets: b.options.assets, CRDs: filepath.Join("deploy", "chart", "files", "crds"), Say: say,
	}
}

// operators measures the operator's process: how fast it fills 500 nodes within
// EC2's limits (twice the published ones, which accounts of that size have, and
// half the time of a run), and its memory with 2,000 nodes of 10 pods.
func operators(ctx context.Context, b *bench) ([]Result, error) {
	const several = 500
	o := b.wholeOperator(several, 4)
	o.Limit, o.Delay = spec.RateLimit{Bucket: 100, Refill: 10}, tight.Delay
	out, err := whole.Run(ctx, o)
	if err != nil {
		return nil, err
	}
	results := []Result{
		single("operator-500-fill", "s", out.Filled.Seconds(), out.Bound.Seconds()),
		single("operator-500-median", "s", out.Median.Seconds(), out.Bound.Seconds()),
	}
	results = append(results, costs(several, out)...)
	if out, err = whole.Run(ctx, b.wholeOperator(large, 10)); err != nil {
		return nil, err
	}
	return append(results, costs(large, out)...), nil
}

// hugeOperator measures the operator's memory with 10,000 nodes of 10 pods.
func hugeOperator(ctx context.Context, b *bench) ([]Result, error) {
	out, err := whole.Run(ctx, b.wholeOperator(huge, 10))
	if err != nil {
		return nil, err
	}
	return costs(huge, out), nil
}

// costs are what the operator used for its nodes.
func costs(nodes int, out whole.Outcome) []Result {
	perNode := func(d time.Duration) float64 { return millis(d) / float64(nodes) }
	return []Result{
		single(fmt.Sprintf("operator-%d-fill-cpu", nodes), "ms/node", perNode(out.FillCPU), 0),
		single(fmt.Sprintf("operator-%d-report-cpu", nodes), "ms/node", perNode(out.ReportCPU), 0),
		single(fmt.Sprintf("operator-memory-%d", nodes), "MiB", float64(out.Memory)/mebi, 0),
	}
}
