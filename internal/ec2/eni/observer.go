package eni

import (
	"context"
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/placement"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// observer asks the cloud for the node's ENIs, and for the instance where a listing lacks it, and
// brings the view up to date. It belongs to the goroutine that reconciles.
type observer struct {
	cfg       *Config
	view      *view
	instance  *instance
	retries   *retries
	placement *placement.Selector
	releases  *releases
	publisher *publisher
	own       *ownLister // used if process.lists; else nil
}

// observe lists everything of this node: the instance's ENIs, and detached ones of ours. At the start
// of a process for one node the detached ones are listed separately and later: only new ENIs wait for
// them. EC2 is the authority; the metadata service is never asked.
func (o *observer) observe(ctx context.Context) {
	start := o.cfg.Clock.Now()
	call, cancel := context.WithTimeout(ctx, callTimeout)
	l, err := o.list(call, start)
	cancel()
	if err == nil {
		if err = o.take(ctx, l); err != nil && o.view.freshness.unconfirmed() && o.cfg.process.lists {
			o.own.kept = l
		}
	}
	o.cfg.acted(plan.Action{Kind: plan.Observe}, err, start)
	if err != nil {
		o.failed(err)
	}
}

// list asks for what is to be known next, unless the first listing, which was not used, is recent
// enough.
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
	return o.cfg.Fleet.Lister.List(ctx, o.cfg.InstanceID, o.view.freshness.staleSince)
}

// observed takes a listing that was made for many nodes. One that is older than what is known is
// ignored.
func (o *observer) observed(ctx context.Context, l Listing) {
	if o.view.freshness.outdated(l.At) {
		return
	}
	if err := o.take(ctx, l); err != nil {
		o.failed(err)
	}
}

// failed delays the next observation, and tells the node.
func (o *observer) failed(err error) {
	o.retries.backOff(plan.Observe, err, o.cfg.Clock.Now())
	o.cfg.Node.ObserveFailed(err)
}

// take draws the conclusions from a listing.
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

// merge takes a listing of some of the node's ENIs into the view.
func (o *observer) merge(list []cloud.ENI, at time.Time, scope func(*known) bool) {
	o.retries.succeed(activityObserve)
	o.view.merge(o.ofInstance(list), at, scope)
	o.logContradictions()
	o.publisher.changed()
}

// logContradictions logs, once, what a listing says that cannot be true.
func (o *observer) logContradictions() {
	for _, what := range o.view.unlogged(o.cfg.Clock.Now().Add(o.cfg.Lag)) {
		o.cfg.Logger.Warn("EC2 describes what cannot be true: not used until its descriptions agree", "enis", o.view.contradictions[what], "what", what)
	}
}

// repairDue reports whether the node's ENIs are to be listed for repair by this reconciler.
func (o *observer) repairDue(now time.Time) bool {
	return o.cfg.process.lists && !o.view.freshness.observeAt.After(now)
}

// detachedUnknown reports that it is not known yet which ENIs of the node are detached: one of them may
// be attached in place of a new one.
func (o *observer) detachedUnknown() bool { return o.cfg.process.lists && !o.own.listedDetached }

// nextRepair returns when to list for repair after a listing of some part: at once if it was not the
// last part.
func (o *observer) nextRepair(listed Part) time.Time {
	switch now := o.cfg.Clock.Now(); {
	case !o.cfg.process.lists:
		return time.Time{}
	case listed == Whole:
		return now.Add(o.cfg.jitter(o.cfg.ListingInterval))
	default:
		return now
	}
}

// ofInstance leaves out what is on another instance, whatever its device index, or is detached and was
// created for another.
func (o *observer) ofInstance(list []cloud.ENI) (out []facts) {
	for _, e := range list {
		of := e.Tags[TagInstanceID]
		if e.Attachment != nil {
			of = e.Attachment.InstanceID
		}
		if of == o.cfg.InstanceID || of == "" && e.Attachment == nil {
			out = append(out, factsOf(e, o.cfg.Cluster))
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

// contradicted takes what the class of a step's error says of the view. An index that is taken, by
// which an attachment conflicts, is that of an ENI that came since the last listing.
func (o *observer) contradicted(class cloud.Class, attaches bool, now time.Time) {
	if class == cloud.LimitReached || class == cloud.Gone || class == cloud.Conflict && attaches {
		o.view.freshness.markStale(now)
	}
	if class == cloud.Conflict && !o.cfg.process.onInstance {
		o.instance.doubt()
	}
}

// present reports by its error whether a listing lacks the instance. After two listings without it the
// instance itself is asked for.
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
		return gone("DescribeNetworkInterfaces", "instance %s has no ENI yet", o.cfg.InstanceID)
	}
	if !o.instance.askAt.After(now) {
		o.askInstance(ctx)
	}
	if b := o.retries.failed[activityInstance]; b != nil {
		return b.err
	}
	if !o.instance.unknownSince.IsZero() {
		return gone("DescribeInstances", "instance %s has no ENI, and EC2 did not know it when asked: asking again", o.cfg.InstanceID)
	}
	return gone("DescribeNetworkInterfaces", "instance %s exists and has no ENI", o.cfg.InstanceID)
}

// askInstance finds out whether the instance exists and runs. Nothing is changed while it does not.
func (o *observer) askInstance(ctx context.Context) {
	start := o.cfg.Clock.Now()
	call, cancel := context.WithTimeout(ctx, callTimeout)
	in, err := o.cfg.Fleet.Lister.Instance(call, o.cfg.InstanceID)
	cancel()
	state := o.instance.answered(in, err, start)
	if state != instanceUnanswered { // that it does not exist is an answer too
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

// stoppedRetry returns when a stopped instance is asked for again, unless someone says that it runs:
// nodes of one process ask at the same moment, by shared calls.
func (o *observer) stoppedRetry(now time.Time) time.Duration {
	if o.cfg.process.onInstance {
		return o.cfg.jitter(o.cfg.SlowRetry)
	}
	return now.Truncate(o.cfg.SlowRetry).Add(o.cfg.SlowRetry).Sub(now)
}

func (o *observer) limitsDue(now time.Time) bool {
	return !o.instance.limitsKnown() && !o.retries.blocked(activityLimits, now)
}

// findLimits asks what the instance type allows, and first for the type, unless the cloud has named it:
// whoever asks for ENIs does not decide how many there may be.
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

func (o *observer) askLimits(ctx context.Context) (typ string, l cloud.Limits, err error) {
	if typ = o.instance.typ; !o.instance.typeKnown || typ == "" {
		in, err := o.cfg.Fleet.Lister.Instance(ctx, o.cfg.InstanceID)
		if err != nil {
			return "", l, fmt.Errorf("instance type of %s: %w", o.cfg.InstanceID, err)
		}
		typ = in.Type
		o.instance.hasType(typ)
	}
	if l, err = o.cfg.Cloud.Limits(ctx, typ); err != nil {
		return typ, l, fmt.Errorf("limits of instance type %q: %w", typ, err)
	}
	return typ, l, nil
}
