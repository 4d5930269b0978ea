package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/bench/ready"
	"github.com/berthnet/berth/bench/vpccni"
)

const (
	// deploymentPods is the size of the Deployment on three nodes.
	deploymentPods = 30
	// burstPods is the number of pods that are created at once on one node.
	burstPods = 100
)

// podsReady measures how long a Deployment takes until its pods are Ready, in turn with the
// reference plugins in the same cluster.
func podsReady(ctx context.Context, b *bench) []Result {
	return takeTurns("pods-ready", max(1, b.options.rounds/2), func(n ready.Network) time.Duration {
		return must.Get(b.cluster.Deployment(ctx, n, deploymentPods))
	})
}

// burstReady measures the second-slowest of 100 pods that are created at once on one node. The node has
// warm addresses for as many pods as it may have.
func burstReady(ctx context.Context, b *bench) []Result {
	must.OK(b.cluster.Configure(ctx, map[string]any{"settings": map[string]any{"minimum-ip-target": ready.MaxPods, "warm-ip-target": 1}}))
	return takeTurns("burst-ready", max(1, b.options.rounds/5), func(n ready.Network) time.Duration {
		took := must.Get(b.cluster.Burst(ctx, n, burstPods))
		return took[len(took)*99/100-1]
	})
}

// takeTurns measures both networks n times, after a warm-up of each. Their order alternates, so that a
// machine that steadily becomes slower or faster affects both equally.
func takeTurns(figure string, n int, measure func(ready.Network) time.Duration) []Result {
	s := series{}
	order := []ready.Network{ready.Berth, ready.Reference}
	for i := range n + 1 {
		for _, network := range order {
			took := measure(network).Seconds()
			say("  run %d of %d: %.2f s with %s", i, n, took, network)
			if i > 0 {
				s.add(string(network), took)
			}
		}
		slices.Reverse(order)
	}
	return []Result{s.ratio(figure, "s", string(ready.Berth), string(ready.Reference))}
}

// maxConcurrent is how many workloads that mostly wait are measured concurrently.
const maxConcurrent = 3

// compareWithAmazon measures Berth against the Amazon VPC CNI.
func compareWithAmazon(ctx context.Context, b *bench) []Result {
	o := vpccni.Order{BinDir: must.Get(filepath.Abs(b.options.binDir)), CNIDir: must.Get(filepath.Abs(b.options.amazonDir)), Assets: b.options.assets}
	results := make([][]Result, len(vpccni.Workloads))
	for _, alone := range []bool{true, false} {
		g, ctx := errgroup.WithContext(ctx)
		if g.SetLimit(maxConcurrent); alone {
			g.SetLimit(1)
		}
		for i, w := range vpccni.Workloads {
			if w.Alone == alone {
				g.Go(func() (err error) {
					results[i], err = compareAt(ctx, o, w)
					return err
				})
			}
		}
		must.OK(g.Wait())
	}
	return slices.Concat(results...)
}

// compareAt measures both systems with one workload.
func compareAt(ctx context.Context, o vpccni.Order, w vpccni.Workload) (results []Result, err error) {
	s := map[vpccni.System]series{vpccni.Berth: {}, vpccni.AmazonVPCCNI: {}}
	for run := range w.Runs {
		say("%s: run %d of %d", w.Name, run+1, w.Runs)
		both, err := turn(ctx, o, w)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.Name, err)
		}
		for i, f := range w.Figures {
			say("  %s: Berth %.3g, the Amazon VPC CNI %.3g %s", f.Name, both[0][i], both[1][i], f.Unit)
			for j, system := range vpccni.Systems {
				s[system].add(f.Name, both[j][i])
			}
		}
	}
	for _, f := range w.Figures {
		r := ratio(f.Name, f.Unit, s[vpccni.Berth][f.Name], s[vpccni.AmazonVPCCNI][f.Name])
		if r.Reference == 0 { // such as failed ADDs, if there are none
			r.Ratio = 0
		}
		results = append(results, r)
	}
	return results, nil
}

// turn runs a workload once with both systems, and returns the values of each.
func turn(ctx context.Context, o vpccni.Order, w vpccni.Workload) (both [2][]float64, err error) {
	g, ctx := errgroup.WithContext(ctx)
	if w.Alone {
		g.SetLimit(1)
	}
	for i, system := range vpccni.Systems {
		g.Go(func() (err error) {
			both[i], err = w.Run(ctx, o, system)
			return err
		})
	}
	return both, g.Wait()
}
