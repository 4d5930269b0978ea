package eni

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni/plan"
)

// present tells whether a listing has the instance at all. A listing may trail
// a new instance, so one without it says nothing; after two the instance is
// asked for.
func (r *Reconciler) present(ctx context.Context, l Listing) error {
	if !r.passive {
		return nil
	}
	if slices.ContainsFunc(l.ENIs, primary) {
		if !r.absentAt.IsZero() {
			r.absentAt, r.askAt = time.Time{}, time.Time{}
		}
		if r.missing > 0 || r.vanished {
			r.missing, r.vanished = 0, false
			r.heal(gateInstance)
		}
		return nil
	}
	if r.missing++; r.vanished {
		return nil
	}
	if r.missing == 1 {
		r.missedAt = l.At
	}
	r.goAstray(r.cfg.Clock.Now())
	if r.missing < 2 || l.At.Sub(r.missedAt) < r.cfg.Lag {
		return &cloud.Error{Class: cloud.Gone, Op: "DescribeNetworkInterfaces", Message: fmt.Sprintf("instance %s has no ENI yet", r.cfg.InstanceID)}
	}
	if !r.askAt.After(r.cfg.Clock.Now()) {
		r.ask(ctx)
	}
	if b := r.gates[gateInstance]; b != nil {
		return b.err
	}
	if !r.absentAt.IsZero() {
		return &cloud.Error{Class: cloud.Gone, Op: "DescribeInstances", Message: fmt.Sprintf("instance %s has no ENI, and EC2 did not know it when asked: it is asked once more", r.cfg.InstanceID)}
	}
	return &cloud.Error{Class: cloud.Gone, Op: "DescribeNetworkInterfaces", Message: fmt.Sprintf("instance %s exists and has no ENI", r.cfg.InstanceID)}
}

// askDue tells whether the instance is to be asked for now: somebody doubts that
// it runs, or the last answer may have trailed what happened.
func (r *Reconciler) askDue(now time.Time) bool {
	if !r.askAt.IsZero() {
		return !r.askAt.After(now)
	}
	return (r.uncertain || r.stopped) && !r.closed(gateInstance, now)
}

// ask finds out whether the instance is there and runs. Nothing is changed
// while it does not. An answer without it may be of a part of EC2 that trails
// the others, so nothing follows from one: it is asked for again after Lag. So
// may one that tells of no change right after somebody said that there was one.
func (r *Reconciler) ask(ctx context.Context) {
	start := r.cfg.Clock.Now()
	r.askAt = time.Time{}
	call, cancel := context.WithTimeout(ctx, r.cfg.CallTimeout)
	in, err := r.lister.Instance(call, r.cfg.InstanceID)
	cancel()
	absent := cloud.ClassOf(err) == cloud.Gone
	gone := absent || err == nil && (in.State == "terminated" || in.State == "shutting-down")
	halted := err == nil && (in.State == "stopped" || in.State == "stopping")
	if gone {
		r.told(plan.Action{Kind: plan.FindInstance}, nil, start)
	} else {
		r.told(plan.Action{Kind: plan.FindInstance}, err, start)
	}
	if absent && !r.absentStill(start) {
		r.uncertain = true
		return
	}
	if !absent && err == nil {
		r.absentAt = time.Time{}
	}
	switch {
	case gone:
		r.vanished = true
		r.fail(gateInstance, plan.FindInstance, &cloud.Error{Class: cloud.Gone, Op: "DescribeInstances",
			Message: fmt.Sprintf("instance %s does not exist, or is terminated", r.cfg.InstanceID)}, start, 0)
	case err != nil:
		r.fail(gateInstance, plan.FindInstance, fmt.Errorf("describe instance %s: %w", r.cfg.InstanceID, err), start, r.waitAfter(gateInstance, cloud.ClassOf(err)))
		r.uncertain = true // what was asked is not answered
		return
	case halted:
		r.fail(gateInstance, plan.FindInstance, &cloud.Error{Class: cloud.Conflict, Op: "DescribeInstances",
			Message: fmt.Sprintf("instance %s is stopped: nothing is changed until it runs", r.cfg.InstanceID)}, start, r.haltedRetry(start))
	default:
		r.heal(gateInstance)
	}
	if err == nil && in.Type != "" {
		r.itype, r.typed = in.Type, true // a stopped instance may have been given another
	}
	// An answer that nothing has changed, so soon after somebody said that
	// something has, may trail what happened.
	if visible := r.suspectedAt.Add(r.cfg.Lag); halted == r.stopped && !gone && start.Before(visible) {
		r.askAt = visible
	}
	r.uncertain, r.stopped = false, halted
}

// absentStill notes that the cloud did not know the instance at now, and tells
// whether that is so for long enough to believe it.
func (r *Reconciler) absentStill(now time.Time) bool {
	if r.absentAt.IsZero() {
		r.absentAt = now
	}
	r.askAt = r.absentAt.Add(r.cfg.Lag)
	return !r.askAt.After(now)
}

// haltedRetry is when a stopped instance is asked for again, should nobody say
// that it runs: nodes of one process do so in the same moment, by shared calls.
func (r *Reconciler) haltedRetry(now time.Time) time.Duration {
	if !r.passive {
		return r.cfg.jitter(r.cfg.SlowRetry)
	}
	return now.Truncate(r.cfg.SlowRetry).Add(r.cfg.SlowRetry).Sub(now)
}

// limitsKnown tells whether what the instance type allows is known.
func (r *Reconciler) limitsKnown() bool {
	return r.cfg.Limits != cloud.Limits{} || r.limitsOf != "" && r.limitsOf == r.itype
}

func (r *Reconciler) limitsDue(now time.Time) bool {
	return !r.limitsKnown() && !r.closed(gateLimits, now)
}

// learn asks what the instance type allows, and first for the type, unless the
// cloud has told that: who asks for ENIs does not decide how many there may be.
func (r *Reconciler) learn(ctx context.Context) bool {
	start := r.cfg.Clock.Now()
	call, cancel := context.WithTimeout(cloud.WithPriority(ctx, cloud.Begun), r.cfg.CallTimeout)
	defer cancel()
	itype := r.itype
	var err error
	if !r.typed || itype == "" {
		var in cloud.Instance
		if in, err = r.lister.Instance(call, r.cfg.InstanceID); err != nil {
			err = fmt.Errorf("instance type of %s: %w", r.cfg.InstanceID, err)
		} else {
			r.itype, r.typed = in.Type, in.Type != ""
		}
		itype = in.Type
	}
	var l cloud.Limits
	if err == nil {
		if l, err = r.cfg.Cloud.Limits(call, itype); err != nil {
			err = fmt.Errorf("limits of instance type %q: %w", itype, err)
		}
	}
	now := r.cfg.Clock.Now()
	r.told(plan.Action{Kind: plan.FindLimits}, err, start)
	if err != nil {
		r.fail(gateLimits, plan.FindLimits, err, now, r.waitAfter(gateLimits, cloud.ClassOf(err)))
		return true
	}
	r.itype, r.typed, r.limitsOf, r.limits = itype, true, itype, l
	r.heal(gateLimits)
	return true
}
