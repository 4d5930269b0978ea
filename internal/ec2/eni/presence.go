package eni

import (
	"context"
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// present tells whether a listing has the instance at all; after two without it
// the instance is asked for.
func (r *Reconciler) present(ctx context.Context, l Listing) error {
	if r.process.onInstance {
		return nil
	}
	if hasPrimary(l.ENIs) {
		if r.instance.listed() {
			r.retries.succeed(gateInstance)
		}
		return nil
	}
	ask := r.instance.unlisted(l.At)
	if r.instance.vanished {
		return nil
	}
	now := r.cfg.Clock.Now()
	r.confidence.markStale(now)
	if !ask {
		return gone("DescribeNetworkInterfaces", "instance %s has no ENI yet", r.cfg.InstanceID)
	}
	if !r.instance.askAt.After(now) {
		r.askInstance(ctx)
	}
	if b := r.retries.failed[gateInstance]; b != nil {
		return b.err
	}
	if !r.instance.unknownSince.IsZero() {
		return gone("DescribeInstances", "instance %s has no ENI, and EC2 did not know it when asked: it is asked once more", r.cfg.InstanceID)
	}
	return gone("DescribeNetworkInterfaces", "instance %s exists and has no ENI", r.cfg.InstanceID)
}

// askInstance finds out whether the instance is there and runs. Nothing is
// changed while it does not.
func (r *Reconciler) askInstance(ctx context.Context) {
	start := r.cfg.Clock.Now()
	call, cancel := context.WithTimeout(ctx, callTimeout)
	in, err := r.fleet.Lister.Instance(call, r.cfg.InstanceID)
	cancel()
	state := r.instance.answered(in, err, start)
	if state != instanceUnanswered { // also that there is none
		r.acted(plan.Action{Kind: plan.FindInstance}, nil, start)
	}
	switch state {
	case instanceUnanswered:
		r.acted(plan.Action{Kind: plan.FindInstance}, err, start)
		r.retries.backOff(plan.FindInstance, fmt.Errorf("describe instance %s: %w", r.cfg.InstanceID, err), start)
	case instanceUnknown:
	case instanceGone:
		r.retries.fail(plan.FindInstance, gone("DescribeInstances", "instance %s does not exist, or is terminated", r.cfg.InstanceID), start, 0)
	case instanceStopped:
		r.retries.fail(plan.FindInstance, &cloud.Error{Class: cloud.Conflict, Op: "DescribeInstances",
			Message: fmt.Sprintf("instance %s is stopped: nothing is changed until it runs", r.cfg.InstanceID)}, start, r.stoppedRetry(start))
	case instanceRuns:
		r.retries.succeed(gateInstance)
	}
}

// stoppedRetry is when a stopped instance is asked for again, should nobody say
// that it runs: nodes of one process do so in the same moment, by shared calls.
func (r *Reconciler) stoppedRetry(now time.Time) time.Duration {
	if r.process.onInstance {
		return r.cfg.jitter(r.cfg.SlowRetry)
	}
	return now.Truncate(r.cfg.SlowRetry).Add(r.cfg.SlowRetry).Sub(now)
}

func (r *Reconciler) limitsDue(now time.Time) bool {
	return !r.instance.limitsKnown() && !r.retries.closed(gateLimits, now)
}

// findLimits asks what the instance type allows, and first for the type, unless the
// cloud has told that: who asks for ENIs does not decide how many there may be.
func (r *Reconciler) findLimits(ctx context.Context) {
	start := r.cfg.Clock.Now()
	call, cancel := context.WithTimeout(cloud.WithPriority(ctx, cloud.Begun), callTimeout)
	defer cancel()
	typ := r.instance.typ
	var err error
	if !r.instance.typeKnown || typ == "" {
		var in cloud.Instance
		if in, err = r.fleet.Lister.Instance(call, r.cfg.InstanceID); err != nil {
			err = fmt.Errorf("instance type of %s: %w", r.cfg.InstanceID, err)
		} else {
			r.instance.typ, r.instance.typeKnown = in.Type, in.Type != ""
		}
		typ = in.Type
	}
	var l cloud.Limits
	if err == nil {
		if l, err = r.cfg.Cloud.Limits(call, typ); err != nil {
			err = fmt.Errorf("limits of instance type %q: %w", typ, err)
		}
	}
	r.acted(plan.Action{Kind: plan.FindLimits}, err, start)
	if err != nil {
		r.retries.backOff(plan.FindLimits, err, r.cfg.Clock.Now())
		return
	}
	r.instance.learned(typ, l)
	r.retries.succeed(gateLimits)
}
