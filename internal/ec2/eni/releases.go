package eni

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// Where several processes may work for one node, what is to leave is recorded
// for all of them before the cloud is asked, and who recorded it may be stopped
// before its call leaves and go on much later. So nobody gives back what is
// recorded: whoever works for the node asks the cloud to take it, until it did.

// overdueRelease deals with what was to leave and is there still, according to a
// listing that cannot be older than the call: it is the node's again, or, if
// others may work for the node, asked of the cloud once more by the step returned.
func (r *Reconciler) overdueRelease(ctx context.Context, now time.Time) *step {
	if !r.process.sharesNode {
		r.restoreOverdue()
		return nil
	}
	r.adoptCommitted(now)
	if r.retries.closed(gateShrink, now) || r.retries.throttled[gateShrink] != nil {
		return nil
	}
	for _, k := range r.view.list() {
		p := r.overdueReleaseOf(k)
		if p != nil && r.revalidate(ctx, p, now) {
			return p
		}
	}
	return nil
}

// adoptCommitted makes what others recorded this process's own.
func (r *Reconciler) adoptCommitted(now time.Time) {
	for _, c := range r.fleet.Committed() {
		k := r.view.enis[c.ENI]
		if k == nil || k.phase() != plan.Attached || !k.facts.ours() || k.trunk {
			continue
		}
		if !c.Prefix.IsValid() {
			if _, known := r.view.detaching[c.ENI]; !known && !primary(k.Attachment) {
				r.view.detaching[c.ENI] = now
			}
			continue
		}
		if _, known := k.releasing[c.Prefix]; !known && slices.Contains(k.held, c.Prefix) {
			k.releasing[c.Prefix] = now
		}
	}
}

// overdueReleaseOf is the step that asks for what should have left an ENI long ago.
func (r *Reconciler) overdueReleaseOf(k *known) *step {
	if k.phase() != plan.Attached {
		return nil
	}
	long := func(since time.Time) bool { return r.confidence.confirmed.Sub(since) >= r.cfg.Settle }
	if since, ok := r.view.detaching[k.ID]; ok {
		if long(since) {
			return &step{Action: plan.Action{Kind: plan.Detach, ENI: k.ID}}
		}
		return nil
	}
	var singles, prefixes []netip.Prefix
	for _, p := range sortedKeys(k.releasing) {
		switch {
		case !long(k.releasing[p]):
		case p.IsSingleIP():
			singles = append(singles, p)
		default:
			prefixes = append(prefixes, p)
		}
	}
	things := singles
	if len(things) == 0 { // one call takes either
		things = prefixes
	}
	if len(things) == 0 {
		return nil
	}
	return &step{Action: plan.Action{Kind: plan.Unassign, ENI: k.ID, Amount: cloud.AmountOf(things)}, withdrawn: things}
}
