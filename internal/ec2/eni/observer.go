package eni

import (
	"cmp"
	"context"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// observe lists everything of this node: the instance's ENIs, and detached
// ones of ours. At the start of a node of its own process these are listed by
// themselves and later: nobody waits for them but new ENIs. EC2 is the authority;
// the metadata service is never asked.
func (r *Reconciler) observe(ctx context.Context) bool {
	start := r.cfg.Clock.Now()
	call, cancel := context.WithTimeout(ctx, callTimeout)
	l, err := r.list(call, start)
	cancel()
	if err == nil {
		if err = r.take(ctx, l); err != nil && r.confidence.confirmed.IsZero() && r.process.lists {
			r.own.kept = l
		}
	}
	r.acted(plan.Action{Kind: plan.Observe}, err, start)
	if err != nil {
		r.observeFailed(err)
	}
	return true
}

// list asks for what is to be known next, unless the first listing, of which
// nothing followed, is new enough.
func (r *Reconciler) list(ctx context.Context, now time.Time) (Listing, error) {
	if r.process.lists {
		l := r.own.kept
		r.own.kept = Listing{}
		if l.since(r.confidence.staleSince, r.confidence.observeNotBefore, now.Add(-r.cfg.ListingInterval)) {
			return l, nil
		}
		if r.detachedUnknown() && !r.confidence.viewStale {
			return r.own.listDetached(ctx, r.cfg.InstanceID)
		}
	}
	return r.fleet.Lister.List(ctx, r.cfg.InstanceID, r.confidence.staleSince)
}

// Observed takes a listing that was made for many nodes, in the goroutine that
// reconciles. One that is older than what is known is ignored.
func (r *Reconciler) Observed(ctx context.Context, l Listing) {
	if r.Ended() || r.confidence.outdated(l.At) {
		return
	}
	if err := r.take(ctx, l); err != nil {
		r.observeFailed(err)
	}
}

// observeFailed has the next observation wait, and tells the node.
func (r *Reconciler) observeFailed(err error) {
	r.retries.backOff(plan.Observe, err, r.cfg.Clock.Now())
	r.cfg.Node.ObserveFailed(err)
}

// take draws the conclusions from a listing.
func (r *Reconciler) take(ctx context.Context, l Listing) error {
	if l.Of == Detached {
		r.takeDetached(ctx, l)
		return nil
	}
	if err := r.present(ctx, l); err != nil || r.instance.vanished {
		return err
	}
	if r.confidence.publishHeld {
		r.view.trustListings()
	}
	r.view.merge(r.ofInstance(l.ENIs), l.At, l.covers)
	r.checkContradictions()
	r.placement.zone, r.placement.vpc = cmp.Or(l.Zone, r.placement.zone), cmp.Or(l.VPCID, r.placement.vpc)
	if l.InstanceType != "" {
		r.instance.typ, r.instance.typeKnown = l.InstanceType, true
	}
	if r.placement.subnetUnknown() && !r.retries.closed(gateSubnets, r.cfg.Clock.Now()) {
		if err := r.placement.findSubnets(cloud.WithPriority(ctx, cloud.Begun)); err != nil {
			return err
		}
	}
	r.confidence.releasePublish()
	r.retries.succeed(gateObserve)
	if r.limitsDue(l.At) && r.confidence.confirmed.IsZero() {
		r.findLimits(ctx)
	}
	first := r.confidence.observed(l.At, r.nextRepair(l.Of))
	if first && r.process.collects {
		r.orphans.at = l.At.Add(time.Duration(r.cfg.Rand.Int64N(int64(r.cfg.CollectInterval))))
	}
	for _, k := range r.view.list() {
		if at, ok := r.lookups.at[k.ID]; ok && !at.After(l.At) {
			delete(r.lookups.at, k.ID)
		}
		r.concludeOn(k.ID, l.At)
	}
	r.adoptCommitted(r.cfg.Clock.Now())
	_ = r.publish(ctx)
	return nil
}

// nextRepair is when to list for repair after a listing of some part: if it was
// not the last part, the rest is due.
func (r *Reconciler) nextRepair(listed Part) time.Time {
	switch now := r.cfg.Clock.Now(); {
	case !r.process.lists:
		return time.Time{}
	case listed == Whole:
		return now.Add(r.cfg.jitter(r.cfg.ListingInterval))
	default:
		return now
	}
}

// takeDetached draws the conclusions from a listing of what is detached.
func (r *Reconciler) takeDetached(ctx context.Context, l Listing) {
	r.view.merge(r.ofInstance(l.ENIs), l.At, l.covers)
	r.checkContradictions()
	r.retries.succeed(gateObserve)
	r.confidence.observeAt = r.nextRepair(Whole)
	_ = r.publish(ctx)
}

// ofInstance leaves out what is on another instance, whatever its device index, or was
// made for another and is on none: it is not for this node to know.
func (r *Reconciler) ofInstance(list []cloud.ENI) (out []facts) {
	for _, e := range list {
		of := e.Tags[TagInstanceID]
		if e.Attachment != nil {
			of = e.Attachment.InstanceID
		}
		if of == r.cfg.InstanceID || of == "" && e.Attachment == nil {
			out = append(out, factsOf(e, r.cfg.Cluster))
		}
	}
	return out
}

// lookUp describes one ENI.
func (r *Reconciler) lookUp(ctx context.Context, id string) bool {
	start := r.cfg.Clock.Now()
	call := ctx
	if r.lookups.blocksGrowth(id) {
		call = cloud.WithPriority(ctx, cloud.Begun)
	}
	call, cancel := context.WithTimeout(call, callTimeout)
	defer cancel()
	list, at, err := r.fleet.Lister.Look(call, id)
	r.acted(plan.Action{Kind: plan.Observe, ENI: id}, err, start)
	if err != nil {
		r.observeFailed(err)
		return true
	}
	r.retries.succeed(gateObserve)
	delete(r.lookups.at, id)
	list = without(list, func(e cloud.ENI) bool { return e.ID != id })
	r.view.merge(r.ofInstance(list), at, func(k *known) bool { return k.ID == id })
	r.checkContradictions()
	r.concludeOn(id, at)
	_ = r.publish(ctx)
	return true
}

// concludeOn draws the conclusions for one ENI from a listing as of a moment.
func (r *Reconciler) concludeOn(id string, at time.Time) {
	k := r.view.enis[id]
	r.lookups.seen(id, k, at)
	attached := k != nil && k.phase() == plan.Attached
	if again := r.links.again(id, at); k != nil && k.phase() != plan.Detached && !again.IsZero() {
		r.lookups.at[id] = again
	}
	if since, ok := r.view.detaching[id]; ok && (!attached || at.Sub(since) >= r.cfg.Lag) {
		if k != nil {
			k.attachUnresolved = false
		}
		if !attached || !r.process.sharesNode {
			delete(r.view.detaching, id) // if it is still attached, publishing it gives it back
		}
	}
}

// VPCs are where the node's ENIs are; none while that is not known. It is called
// from the goroutine that reconciles.
func (r *Reconciler) VPCs() []string { return r.placement.vpcs() }
