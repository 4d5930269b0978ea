package eni

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni/plan"
)

// unsureAssign is an assignment whose reply was lost: it may have taken effect,
// and a listing may trail that by Lag.
type unsureAssign struct {
	before map[netip.Prefix]bool
	until  time.Time
	made   bool // the ENI is new, and a listing may not have it yet
}

// observe lists everything of this node: the instance's ENIs, and detached
// ones of ours. EC2 is the authority; the metadata service is never asked.
func (r *Reconciler) observe(ctx context.Context) bool {
	start := r.cfg.Clock.Now()
	call, cancel := context.WithTimeout(ctx, r.cfg.CallTimeout)
	l, err := r.heard, error(nil)
	if !l.since(r.astrayAt, r.quietUntil, start.Add(-r.cfg.ListingInterval)) {
		l, err = r.lister.List(call, r.cfg.InstanceID, r.astrayAt)
	}
	cancel()
	r.heard = Listing{}
	if err == nil {
		if err = r.take(ctx, l); err != nil && r.confirmed.IsZero() && !r.passive {
			r.heard = l
		}
	}
	r.told(plan.Action{Kind: plan.Observe}, err, start)
	if err != nil {
		r.failObserve(err)
	}
	return true
}

// Observed takes a listing that was made for many nodes, in the goroutine that
// reconciles. One that is older than what is known is ignored.
func (r *Reconciler) Observed(ctx context.Context, l Listing) {
	if r.Ended() || l.At.Before(r.confirmed) || l.At.Before(r.astrayAt) || r.quietUntil.After(l.At) {
		return
	}
	if err := r.take(ctx, l); err != nil {
		r.failObserve(err)
	}
}

// take draws the conclusions from a listing.
func (r *Reconciler) take(ctx context.Context, l Listing) error {
	if err := r.present(ctx, l); err != nil || r.vanished {
		return err
	}
	if r.silent {
		r.view.believe()
	}
	r.view.merge(r.here(l.ENIs), l.At, func(k *known) bool { return l.Whole || k.Attachment != nil })
	r.doubtListings()
	r.zone, r.vpc = cmp.Or(l.Zone, r.zone), cmp.Or(l.VPCID, r.vpc)
	if l.InstanceType != "" {
		r.itype, r.typed = l.InstanceType, true
	}
	if r.subnetUnknown() && !r.closed(gateSubnets, r.cfg.Clock.Now()) {
		if err := r.findSubnets(cloud.WithPriority(ctx, cloud.Begun)); err != nil {
			return err
		}
	}
	if r.silent {
		r.silent, r.quietUntil = false, time.Time{}
	}
	r.heal(gateObserve)
	if r.limitsDue(l.At) && r.confirmed.IsZero() {
		r.learn(ctx)
	}
	first := r.confirmed.IsZero()
	r.confirmed, r.astray = l.At, false
	r.observeAt = r.cfg.Clock.Now().Add(r.cfg.jitter(r.cfg.ListingInterval))
	if first && !r.cfg.NoCollection {
		r.collectAt = l.At.Add(time.Duration(r.cfg.Rand.Int64N(int64(r.cfg.CollectInterval))))
	}
	for _, k := range r.view.list() {
		if at, ok := r.lookAt[k.ID]; ok && !at.After(l.At) {
			delete(r.lookAt, k.ID)
		}
		r.settleLook(k.ID, l.At)
	}
	r.takeUp(r.cfg.Clock.Now())
	_ = r.publish(ctx)
	return nil
}

// here leaves out what is on another instance: it is not for this node to know,
// whatever its device index.
func (r *Reconciler) here(list []cloud.ENI) []cloud.ENI {
	return without(list, func(e cloud.ENI) bool { return e.Attachment != nil && e.Attachment.InstanceID != r.cfg.InstanceID })
}

// lookDue finds an ENI that is to be described singly now, the longest due
// first: any, or one whose doubt keeps growth waiting.
func (r *Reconciler) lookDue(now time.Time, urgent bool) (string, bool) {
	var best string
	for id, at := range r.lookAt {
		if _, doubt := r.unsure[id]; urgent && !doubt {
			continue
		}
		if !at.After(now) && (best == "" || at.Before(r.lookAt[best]) || at.Equal(r.lookAt[best]) && id < best) {
			best = id
		}
	}
	return best, best != ""
}

// look describes one ENI: to see a detachment end, or what a lost reply did.
func (r *Reconciler) look(ctx context.Context, id string) bool {
	start := r.cfg.Clock.Now()
	call := ctx
	if _, doubt := r.unsure[id]; doubt {
		call = cloud.WithPriority(ctx, cloud.Begun)
	}
	call, cancel := context.WithTimeout(call, r.cfg.CallTimeout)
	defer cancel()
	list, at, err := r.lister.Look(call, id)
	r.told(plan.Action{Kind: plan.Observe, ENI: id}, err, start)
	if err != nil {
		r.failObserve(err)
		return true
	}
	r.heal(gateObserve)
	delete(r.lookAt, id)
	list = without(r.here(list), func(e cloud.ENI) bool { return e.ID != id })
	r.view.merge(list, at, func(k *known) bool { return k.ID == id })
	r.doubtListings()
	r.settleLook(id, at)
	_ = r.publish(ctx)
	return true
}

// settleLook draws the conclusions for one ENI from a listing that began at start.
func (r *Reconciler) settleLook(id string, start time.Time) {
	k, known := r.view.enis[id]
	if u, ok := r.unsure[id]; ok {
		effect := known && slices.ContainsFunc(k.things(), func(p netip.Prefix) bool { return !u.before[p] })
		if effect || !known && !u.made || !start.Before(u.until) {
			delete(r.unsure, id)
		} else {
			r.lookAt[id] = start.Add(time.Second)
		}
	}
	if known && k.phase() == plan.Detaching {
		r.lookAt[id] = start.Add(k.detachPoll(start))
	}
	if since, ok := r.leaving[id]; ok && (!known || k.phase() != plan.Attached || start.Sub(since) >= r.cfg.Lag) {
		if known {
			k.unsure = false
		}
		if !known || k.phase() != plan.Attached || !r.shared() {
			delete(r.leaving, id) // if it is still attached, publishing it gives it back
		}
	}
}

// detachPoll is how long after a look at a detaching ENI the next follows:
// detaching takes seconds, but may hang for hours.
func (k *known) detachPoll(now time.Time) time.Duration {
	if k.replied.IsZero() { // someone else's doing
		return 10 * time.Second
	}
	return min(time.Minute, max(2*time.Second, now.Sub(k.replied)/4))
}

// VPCs are where the node's ENIs are: the instance's VPC, and that configured
// for new ones if it is another; none while the instance's is not known. It is
// called from the goroutine that reconciles.
func (r *Reconciler) VPCs() []string {
	own := r.vpc
	if k, ok := r.view.primary(); ok {
		own = cmp.Or(k.VPCID, own)
	}
	switch other := r.cfg.VPCID; {
	case own == "":
		return nil
	case other == "" || other == own:
		return []string{own}
	default:
		return []string{own, other}
	}
}
