package main

import (
	"context"
	"time"

	"github.com/berthnet/berth/bench/ready"
)

const (
	// deploymentPods are of a Deployment on three nodes.
	deploymentPods = 30
	// burstPods are for one node at once.
	burstPods = 100
)

// podsReady measures how long a Deployment takes until its pods are Ready, in turn with
// the reference plugins in the same cluster.
func podsReady(ctx context.Context, b *bench) ([]Result, error) {
	s, err := b.takeTurns(max(1, b.options.rounds/2), func(n ready.Network) (time.Duration, error) {
		return b.cluster.Deployment(ctx, n, deploymentPods)
	})
	if err != nil {
		return nil, err
	}
	return []Result{ratio("pods-ready", "s", s[string(ready.Berth)], s[string(ready.Reference)])}, nil
}

// burstReady measures how long the slowest but one of 100 pods takes that come to one
// node at once. The node's addresses are there: as many are kept as it may have pods.
func burstReady(ctx context.Context, b *bench) ([]Result, error) {
	if err := b.cluster.Configure(ctx, map[string]any{"settings": map[string]any{"minimum-ip-target": ready.MaxPods, "warm-ip-target": 1}}); err != nil {
		return nil, err
	}
	s, err := b.takeTurns(max(1, b.options.rounds/5), func(n ready.Network) (time.Duration, error) {
		took, err := b.cluster.Burst(ctx, n, burstPods)
		if err != nil {
			return 0, err
		}
		return took[len(took)*99/100-1], nil
	})
	if err != nil {
		return nil, err
	}
	return []Result{ratio("burst-ready", "s", s[string(ready.Berth)], s[string(ready.Reference)])}, nil
}

// takeTurns measures both networks so often, after a turn of each that does not
// count. Who was second is first in the next round, so that a machine that becomes
// slower or faster all the time does so to both.
func (b *bench) takeTurns(n int, measure func(ready.Network) (time.Duration, error)) (series, error) {
	all := series{}
	order := [2]ready.Network{ready.Berth, ready.Reference}
	for i := range n + 1 {
		for _, network := range order {
			took, err := measure(network)
			if err != nil {
				return nil, err
			}
			say("  run %d of %d: %.2f s by %s", i, n, took.Seconds(), network)
			if i > 0 {
				all[string(network)] = append(all[string(network)], took.Seconds())
			}
		}
		order[0], order[1] = order[1], order[0]
	}
	return all, nil
}
