package main

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/berthnet/berth/bench/kwokcluster"
	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/lab/cloud/spec"
)

// kwokClusters measures a cluster of 2,000 nodes with 30 pods each, of which ten are machines with berthd. EC2's limits are
// twice the published ones, as in operators.
func kwokClusters(ctx context.Context, b *bench) []Result {
	return b.kwokCluster(ctx, kwokcluster.Order{Nodes: large, Machines: 10, Pods: 30, Period: 2 * time.Minute})
}

func (b *bench) kwokCluster(ctx context.Context, o kwokcluster.Order) []Result {
	o.Limit, o.Delay = spec.RateLimit{Bucket: 100, Refill: 10}, callDelay
	o.BinDir, o.Assets, o.Kwok, o.Say = must.Get(filepath.Abs(b.options.binDir)), b.options.assets, must.Get(filepath.Abs(b.options.kwokDir)), say
	out := must.Get(kwokcluster.Run(ctx, o))
	bound := out.EC2.Bound.Seconds()
	results := []Result{
		single("kwok-served", "s", out.Served.Seconds(), bound),
		single("kwok-served-median", "s", out.Median.Seconds(), bound),
		single("kwok-filled", "s", out.Filled.Seconds(), 0),
		single("kwok-operator-fill-cpu", "ms/node", millis(out.FillCPU)/float64(o.Nodes), 0),
		single("kwok-operator-memory", "MiB", float64(out.Memory)/mebi, 0),
		single("kwok-api-memory", "MiB", float64(out.APIMemory)/mebi, 0),
	}
	for _, l := range []struct {
		name string
		kwokcluster.Load
	}{{"kwok-rest", out.Rest}, {"kwok-churn", out.Churn}} {
		var status []float64
		for _, d := range l.Status {
			status = append(status, d.Seconds())
		}
		results = append(results,
			measured(l.name+"-status", "s", status...),
			measured(l.name+"-traffic", "B/min", l.Traffic...),
			single(l.name+"-traffic-worst", "B/min", slices.Max(l.Traffic), 0),
			single(l.name+"-operator-cpu", "processors", l.CPU, 0),
			single(l.name+"-requests", "requests/s", l.Requests, 0),
			single(l.name+"-berth-requests", "requests/s", l.Berth, 0))
	}
	return results
}
