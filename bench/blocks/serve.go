package blocks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/bench/usage"
)

// startUp has an operator accept the pool while nobody asks for a block, ends
// it, and returns what CPU time that took.
func (r *run) startUp(ctx context.Context) (time.Duration, error) {
	if err := r.operator.Start(); err != nil {
		return 0, err
	}
	if err := r.operator.WaitReady(ctx); err != nil {
		return 0, err
	}
	cpu, err := usage.Settled(ctx, r.operator.PID())
	return cpu, errors.Join(err, r.operator.Kill())
}

// serve starts the operator, waits until all requests are complete, and ends it.
func (r *run) serve(ctx context.Context, out *Outcome) error {
	before, err := r.counted(ctx, r.Nodes) // the requests
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := r.operator.Start(); err != nil {
		return err
	}
	watched, stop := context.WithCancel(ctx)
	defer stop()
	peak := make(chan int64, 1)
	go func() { peak <- usage.Peak(watched, r.operator.PID()) }()
	if err := r.waitUntilComplete(ctx); err != nil {
		return err
	}
	out.Served = time.Since(begin)
	if out.CPU, err = usage.Settled(ctx, r.operator.PID()); err != nil {
		return err
	}
	stop()
	out.Memory = <-peak
	after, err := r.counted(ctx, before.Others()+2*r.Nodes)
	if err != nil {
		return err
	}
	out.Writes = after.since(before)
	return r.operator.Kill()
}

// waitUntilComplete returns once all requests are.
func (r *run) waitUntilComplete(ctx context.Context) error {
	done := map[string]bool{}
	err := objects.Until(ctx, r.lab.Kube.Client, &v1alpha1.BlockRequestList{}, r.operator.Exited(), func(q *v1alpha1.BlockRequest) bool {
		if meta.IsStatusConditionTrue(q.Status.Conditions, v1alpha1.ConditionComplete) {
			done[q.Name] = true
		}
		return len(done) == r.Nodes
	})
	if err != nil {
		return fmt.Errorf("%d of %d requests are complete: %w", len(done), r.Nodes, err)
	}
	return nil
}

// check holds that every request has a block of its own, and no block is over.
func (r *run) check(ctx context.Context) error {
	requests, blocks := &v1alpha1.BlockRequestList{}, &v1alpha1.AddressBlockList{}
	if err := errors.Join(r.lab.Kube.Client.List(ctx, requests), r.lab.Kube.Client.List(ctx, blocks)); err != nil {
		return fmt.Errorf("list what was made: %w", err)
	}
	given := map[string]*v1alpha1.BlockRequest{}
	for i := range requests.Items {
		given[requests.Items[i].Status.AddressBlockName] = &requests.Items[i]
	}
	for _, b := range blocks.Items {
		if q := given[b.Name]; q == nil || q.UID != b.RequestUID || q.Spec.NodeName != b.NodeName {
			return fmt.Errorf("block %s of %s is no request's, or another's", b.Name, b.NodeName)
		}
	}
	if len(given) != r.Nodes || len(blocks.Items) != r.Nodes {
		return fmt.Errorf("%d requests were given %d of %d blocks, expected one each", r.Nodes, len(given), len(blocks.Items))
	}
	return nil
}
