package eni

import (
	"context"
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/placement"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// observer lists the node's ENIs, describes the instance if a listing lacks it, and updates the view. It belongs to
// the reconciler's goroutine.
type observer struct {
	cfg       *Config
	view      *view
	instance  *instance
	retries   *retries
	placement *placement.Selector
	releases  *releases
	publisher *publisher
	demand    *demand
	own       *ownLister // nil unless process.lists
}

// observe lists everything of this node: the instance's ENIs, and Berth's detached ones. When a process for one node
// starts, the detached ENIs are listed separately and later, because only new ENIs wait for them. EC2 is the
// authority; the metadata service is never asked.
func (o *observer) observe(ctx context.Context) {
	start := o.cfg.Clock.Now()
	repairs := o.repairDue(start) && !o.detachedUnknown() && !o.view.freshness.stale && !o.view.freshness.publishHeld
	call, cancel := context.WithTimeout(ctx, callTimeout)
	l, err := o.list(call, start)
	cancel()
	if repairs {
		o.repaired(start, err)
	}
	if err == nil {
		if err = o.take(ctx, l); err != nil && o.view.freshness.unconfirmed() && o.cfg.process.lists {
			o.own.kept = l
		}
	}
	o.cfg.acted(plan.Action{Kind: plan.Observe}, err, start)
	if err != nil {
		o.failed(err)
	}
	if repairs && cloud.ClassOf(err) == cloud.Throttled {
		o.retries.forget(activityObserve) // nothing waits for it
	}
}

// repaired adapts the time of the next listing for repair after one that started at start. Nothing waits for it, so one
// that EC2 throttled is not repeated before.
func (o *observer) repaired(start time.Time, err error) {
	throttled := cloud.ClassOf(err) == cloud.Throttled
	if err != nil && !throttled {
		return
	}
	o.retries.stretch.took(o.cfg.Clock.Now().Sub(start))
	if throttled {
		o.view.freshness.repairAt(o.nextRepair(Whole))
	}
}

// list makes the next listing, unless the first one, which was not used, is recent enough.
func (o *observer) list(ctx context.Context, now time.Time) (Listing, error) {
	if o.cfg.process.lists {
		l := o.own.kept
		o.own.kept = Listing{}
		if l.since(o.view.freshness.staleSince, o.view.freshness.observeNotBefore, now.Add(-o.cfg.ListingInterval)) {
			return l, nil
		}
		if o.detachedUnknown() && !o.view.freshness.stale {
			return o.own.listDetached(ctx, o.cfg.InstanceID)
		}
	}
	if !o.cfg.process.lists && !o.demand.supplied() {
		ctx = cloud.WithPriority(ctx, 1)
	}
	return o.cfg.Fleet.Lister.List(ctx, o.cfg.InstanceID, o.view.freshness.staleSince)
}

// observed processes a listing made for many nodes. It ignores one older than the known state.
func (o *observer) observed(ctx context.Context, l Listing) {
	if o.view.freshness.outdated(l.At) {
		return
	}
	start, first := o.cfg.Clock.Now(), o.view.freshness.unconfirmed()
	err := o.take(ctx, l)
	if first { // reported like an observation by the reconciler itself
		o.cfg.acted(plan.Action{Kind: plan.Observe}, err, start)
	}
	if err != nil {
		o.failed(err)
	}
}

// failed delays the next observation, and informs the node.
func (o *observer) failed(err error) {
	o.retries.backOff(plan.Observe, err, o.cfg.Clock.Now())
	o.cfg.Node.ObserveFailed(err)
}

// take processes a listing.
func (o *observer) take(ctx context.Context, l Listing) error {
	if l.Of == Detached {
		o.merge(l.ENIs, l.At, l.covers)
		o.view.freshness.repairAt(o.nextRepair(Whole))
		return nil
	}
	if err := o.present(ctx, l); err != nil || o.instance.vanished {
		return err
	}
	if o.view.freshness.publishHeld {
		o.view.trustListings()
	}
	o.view.merge(o.ofInstance(l.ENIs), l.At, l.covers)
	o.logContradictions()
	o.placement.Located(l.VPCID, l.Zone)
	if l.InstanceType != "" {
		o.instance.hasType(l.InstanceType)
	}
	if o.placement.SubnetUnknown() && !o.retries.blocked(activitySubnets, o.cfg.Clock.Now()) {
		if err := o.placement.FindSubnets(cloud.WithPriority(ctx, cloud.Begun)); err != nil {
			return err
		}
	}
	o.view.freshness.releasePublish()
	o.retries.succeed(activityObserve)
	if o.limitsDue(l.At) && o.view.freshness.unconfirmed() {
		o.findLimits(ctx)
	}
	o.view.freshness.observed(l.At, o.nextRepair(l.Of))
	for _, k := range o.view.list() {
		o.view.lookups.described(k.ID, l.At)
		o.view.conclude(k.ID, l.At, o.cfg.Lag, o.cfg.process.sharesNode)
	}
	o.releases.adoptCommitted(o.cfg.Clock.Now())
	o.publisher.changed()
	return nil
}

// merge updates the view with a listing of some of the node's ENIs.
func (o *observer) merge(list []cloud.ENI, at time.Time, scope func(*known) bool) {
	o.retries.succeed(activityObserve)
	o.view.merge(o.ofInstance(list), at, scope)
	o.logContradictions()
	o.publisher.changed()
}

// logContradictions logs new contradictions of a listing, once each.
func (o *observer) logContradictions() {
	for _, what := range o.view.unlogged(o.cfg.Clock.Now().Add(o.cfg.Lag)) {
		o.cfg.Logger.Warn("EC2's descriptions contradict each other: not used until they agree", "enis", o.view.contradictions[what], "what", what)
	}
}

// repairDue reports whether this reconciler must list the node's ENIs for repair.
func (o *observer) repairDue(now time.Time) bool {
	return o.cfg.process.lists && !o.view.freshness.observeAt.After(now)
}

// detachedUnknown reports whether the node's detached ENIs are not yet known: one of them may be attached instead
// of a new one.
func (o *observer) detachedUnknown() bool { return o.cfg.process.lists && !o.own.listedDetached }

// nextRepair returns when to list for repair after a listing of some part: immediately if it was not the last
// part.
func (o *observer) nextRepair(listed Part) time.Time {
	switch now := o.cfg.Clock.Now(); {
	case !o.cfg.process.lists:
		return time.Time{}
	case listed == Whole:
		return now.Add(o.retries.stretch.after(o.cfg.ListingInterval, o.cfg.jitter))
	default:
		return now
	}
}

// ofInstance omits ENIs that are attached to another instance, whatever their device index, or are detached and were
// created for another instance.
func (o *observer) ofInstance(list []cloud.ENI) []facts {
	out := make([]facts, 0, len(list))
	for _, e := range list {
		of := forInstance(e, o.cfg.Adopt)
		if of == o.cfg.InstanceID || of == "" && e.Attachment == nil {
			out = append(out, factsOf(e, o.cfg.Cluster, o.cfg.Adopt...))
		}
	}
	return out
}

// lookUp describes one ENI.
func (o *observer) lookUp(ctx context.Context, id string) {
	start := o.cfg.Clock.Now()
	if o.view.lookups.blocksGrowth(id) {
		ctx = cloud.WithPriority(ctx, cloud.Begun)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, at, err := o.cfg.Fleet.Lister.Look(ctx, id)
	o.cfg.acted(plan.Action{Kind: plan.Observe, ENI: id}, err, start)
	if err != nil {
		o.failed(err)
		return
	}
	o.view.lookups.done(id)
	list = without(list, func(e cloud.ENI) bool { return e.ID != id })
	o.merge(list, at, func(k *known) bool { return k.ID == id })
	o.view.conclude(id, at, o.cfg.Lag, o.cfg.process.sharesNode)
}

// contradicted updates the view from the error class of a failed step. If an attachment fails because the device
// index is in use, an ENI was attached there since the last listing.
func (o *observer) contradicted(class cloud.Class, attaches bool, now time.Time) {
	if class == cloud.LimitReached || class == cloud.Gone || class == cloud.Conflict && attaches {
		o.view.freshness.markStale(now)
	}
	if class == cloud.Conflict && !o.cfg.process.onInstance {
		o.instance.doubt()
	}
}

// present returns an error if a listing lacks the instance. After two such listings the instance itself is
// described.
func (o *observer) present(ctx context.Context, l Listing) error {
	if o.cfg.process.onInstance {
		return nil
	}
	if hasPrimary(l.ENIs) {
		if o.instance.listed() {
			o.retries.succeed(activityInstance)
		}
		return nil
	}
	ask := o.instance.unlisted(l.At)
	if o.instance.vanished {
		return nil
	}
	now := o.cfg.Clock.Now()
	o.view.freshness.markStale(now)
	if !ask {
		return gone("DescribeNetworkInterfaces", "instance %s does not have an ENI yet", o.cfg.InstanceID)
	}
	if !o.instance.askAt.After(now) {
		o.askInstance(ctx)
	}
	if b := o.retries.failed[activityInstance]; b != nil {
		return b.err
	}
	if !o.instance.unknownSince.IsZero() {
		return gone("DescribeInstances", "instance %s has no ENI, and EC2 does not know the instance: asking again", o.cfg.InstanceID)
	}
	return gone("DescribeNetworkInterfaces", "instance %s exists and has no ENI", o.cfg.InstanceID)
}

// askInstance finds out whether the instance exists and runs. Otherwise nothing is changed.
func (o *observer) askInstance(ctx context.Context) {
	start := o.cfg.Clock.Now()
	call, cancel := context.WithTimeout(ctx, callTimeout)
	in, err := o.cfg.Fleet.Lister.Instance(call, o.cfg.InstanceID)
	cancel()
	state := o.instance.answered(in, err, start)
	if state != instanceUnanswered { // a reply that it does not exist counts, too
		err = nil
	}
	o.cfg.acted(plan.Action{Kind: plan.FindInstance}, err, start)
	switch state {
	case instanceUnanswered:
		o.retries.backOff(plan.FindInstance, fmt.Errorf("describe instance %s: %w", o.cfg.InstanceID, err), start)
	case instanceUnknown:
	case instanceGone:
		o.retries.fail(plan.FindInstance, gone("DescribeInstances", "instance %s does not exist, or is terminated", o.cfg.InstanceID), start, 0)
	case instanceStopped:
		o.retries.fail(plan.FindInstance, &cloud.Error{Class: cloud.Conflict, Op: "DescribeInstances",
			Message: fmt.Sprintf("instance %s is stopped: nothing is changed until it runs", o.cfg.InstanceID)}, start, o.stoppedRetry(start))
	case instanceRuns:
		o.retries.succeed(activityInstance)
	}
}

// stoppedRetry returns the delay until a stopped instance is described again, unless it is reported to run: the nodes
// of one process ask at the same time, with shared calls.
func (o *observer) stoppedRetry(now time.Time) time.Duration {
	if o.cfg.process.onInstance {
		return o.cfg.jitter(o.cfg.SlowRetry)
	}
	return now.Truncate(o.cfg.SlowRetry).Add(o.cfg.SlowRetry).Sub(now)
}

func (o *observer) limitsDue(now time.Time) bool {
	return !o.instance.limitsKnown() && !o.retries.blocked(activityLimits, now)
}

// findLimits fetches the limits of the instance type, and first the type unless the cloud has reported it: the
// settings, which request ENIs, must not decide how many are allowed.
func (o *observer) findLimits(ctx context.Context) {
	start := o.cfg.Clock.Now()
	ctx, cancel := context.WithTimeout(cloud.WithPriority(ctx, cloud.Begun), callTimeout)
	defer cancel()
	typ, l, err := o.askLimits(ctx)
	o.cfg.acted(plan.Action{Kind: plan.FindLimits}, err, start)
	if err != nil {
		o.retries.backOff(plan.FindLimits, err, o.cfg.Clock.Now())
		return
	}
	o.instance.learned(typ, l)
	o.retries.succeed(activityLimits)
}

// askType returns the instance's type, for a first observation as of the listing.
func (o *observer) askType(ctx context.Context) (string, error) {
	if o.view.freshness.unconfirmed() {
		return o.cfg.Fleet.Lister.FirstType(ctx, o.cfg.InstanceID)
	}
	in, err := o.cfg.Fleet.Lister.Instance(ctx, o.cfg.InstanceID)
	return in.Type, err
}

func (o *observer) askLimits(ctx context.Context) (typ string, l cloud.Limits, err error) {
	if typ = o.instance.typ; !o.instance.typeKnown || typ == "" {
		if typ, err = o.askType(ctx); err != nil {
			return "", l, fmt.Errorf("instance type of %s: %w", o.cfg.InstanceID, err)
		}
		o.instance.hasType(typ)
	}
	if l, err = o.cfg.Cloud.Limits(ctx, typ); err != nil {
		return typ, l, fmt.Errorf("limits of instance type %q: %w", typ, err)
	}
	return typ, l, nil
}
