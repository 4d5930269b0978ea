package main

import (
	"context"
	"fmt"

	"github.com/berthnet/berth/bench/egressclients"
)

// So many pods there are, of which a tenth use one of ten Egresses, and ten of these a
// second are replaced by others; and the same with a tenth of pods, clients and Egresses, so that
// slices are as large.
const (
	egressPods, egressClients, egresses = 10000, 1000, 10
	egressChanges, egressPerSecond      = 100, 10
	egressRuns                          = 3
)

// egressRun does one run, and says what came of it.
func (b *bench) egressRun(ctx context.Context, parts int) (egressclients.Outcome, error) {
	o := egressclients.Order{
		Pods: egressPods / parts, Clients: egressClients / parts, Egresses: egresses / parts,
		Changes: egressChanges, PerSecond: egressPerSecond / parts,
	}
	out, err := egressclients.Job.Run(ctx, o, b.profiles.next(fmt.Sprintf("egress-clients-%d", o.Pods)))
	if err == nil {
		say("  %d pods, %d clients: %v a client, %v another pod, told within %v; %d objects, %.0f B/s; writes %v", o.Pods, o.Clients, out.CPU, out.Idle, out.Told, out.Objects, out.Bytes, out.Writes)
	}
	return out, err
}

// egressClientFigures measures what clients that are replaced by others cost.
func egressClientFigures(ctx context.Context, b *bench) ([]Result, error) {
	var cpu, few, idle, fewIdle, told []float64
	var out, small egressclients.Outcome
	for range egressRuns {
		var err error
		if small, err = b.egressRun(ctx, 10); err != nil {
			return nil, err
		}
		if out, err = b.egressRun(ctx, 1); err != nil {
			return nil, err
		}
		cpu, few = append(cpu, millis(out.CPU)), append(few, millis(small.CPU))
		idle, fewIdle = append(idle, millis(out.Idle)), append(fewIdle, millis(small.Idle))
		told = append(told, millis(out.Told))
	}
	return []Result{
		ratio("egress-client-cpu", "ms", cpu, few),
		ratio("egress-other-pod-cpu", "ms", idle, fewIdle),
		measured("egress-client-told", "ms", told...),
		single("egress-gateway-objects", "objects", float64(out.Objects), float64(out.PodObjects)),
		single("egress-gateway-bytes", "B/s", out.Bytes, small.Bytes),
		single("egress-clients-memory", "KiB/pod", float64(out.Heap)/1024/egressPods, 0),
	}, nil
}
