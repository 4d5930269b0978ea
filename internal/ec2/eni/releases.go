package eni

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// releases takes addresses and ENIs from the node before the cloud is called: the node withdraws them, the inventory
// records the release, then the call is made. It belongs to the reconciler's goroutine.
//
// If several processes may serve a node, a process that recorded a release may be stopped before its call is sent,
// and continue much later. Recorded releases are therefore never restored to the node: whichever process serves the
// node repeats the call until the release is done.
type releases struct {
	cfg       *Config
	view      *view
	publisher *publisher
	retries   *retries
}

// prepare withdraws the addresses or the ENI of an Unassign or Detach step, and records the release. It reports
// whether the call can be made now.
func (s *releases) prepare(ctx context.Context, p *step, now time.Time) bool {
	if p.Kind == plan.Unassign {
		return s.withdraw(ctx, p, now)
	}
	if !s.cfg.Node.WithdrawENI(p.ENI) {
		return false
	}
	s.view.detachBegan(p.ENI, now)
	if err := s.publisher.record(ctx); err != nil {
		s.cancelDetach(p.ENI)
		s.publisher.flush(ctx) // the plan continues with other steps, whose calls may take long
		s.retries.fail(plan.Detach, err, now, s.cfg.SlowRetry)
		return false
	}
	return true
}

// withdraw prepares a step of kind Unassign.
func (s *releases) withdraw(ctx context.Context, p *step, now time.Time) bool {
	k := s.view.enis[p.ENI]
	p.withdrawn = s.cfg.Node.Withdraw(p.ENI, p.Amount)
	if k != nil && k.Primary.IsValid() { // the primary address cannot be released
		p.withdrawn = slices.DeleteFunc(p.withdrawn, func(t netip.Prefix) bool { return t == cloud.HostPrefix(k.Primary) })
	}
	if k == nil || len(p.withdrawn) == 0 {
		return false
	}
	p.Amount = cloud.AmountOf(p.withdrawn)
	k.releaseBegan(p.withdrawn, now)
	if err := s.publisher.record(ctx); err != nil {
		s.restore(p)
		s.retries.fail(plan.Unassign, err, now, s.cfg.SlowRetry)
		return false
	}
	return true
}

// prepareAgain prepares a throttled step for another attempt: the release is recorded as of now. It is false if an
// observation since has made the step pointless.
func (s *releases) prepareAgain(ctx context.Context, p *step, k *known, now time.Time) bool {
	if p.Kind == plan.Detach {
		if !s.cfg.Node.WithdrawENI(p.ENI) {
			return false // a listing restored it meanwhile, and pods use it
		}
		s.view.detachBegan(p.ENI, now)
	} else if !k.releaseRepeated(p.withdrawn, now) {
		return false
	}
	if err := s.publisher.record(ctx); err != nil && s.cfg.process.sharesNode {
		s.undo(p)
		s.publisher.flush(ctx)
		return false
	}
	return true
}

// undo restores the withdrawals of a step if the cloud certainly released nothing.
func (s *releases) undo(p *step) {
	if p.Kind == plan.Detach {
		s.cancelDetach(p.ENI)
	} else {
		s.restore(p)
	}
}

// restore undoes withdraw. If the release is recorded for other processes, the next plan adopts it again.
func (s *releases) restore(p *step) {
	k := s.view.enis[p.ENI]
	if k == nil {
		return
	}
	k.releaseCancelled(p.withdrawn)
	s.cfg.Node.RestoreWithdrawn(p.withdrawn)
}

// cancelDetach restores an ENI to the node, by publishing it.
func (s *releases) cancelDetach(id string) {
	s.view.detachCancelled(id)
	s.publisher.changed()
}

// cancelForPods cancels a throttled step that would release what pods now wait for.
func (s *releases) cancelForPods() {
	if s.retries.toRepeat(activityShrink) == nil || s.cfg.process.sharesNode || s.cfg.Node.Usage().Waiting == 0 {
		return
	}
	s.undo(s.retries.take(activityShrink))
}

// unassignFailed keeps withdrawn addresses out of use while the call may have taken effect: up to now, whenever it
// was sent. A denied call certainly has not.
func (s *releases) unassignFailed(p *step, class cloud.Class, now time.Time) {
	if class == cloud.Permission && !s.cfg.process.sharesNode {
		s.restore(p)
		return
	}
	if k, ok := s.view.enis[p.ENI]; ok {
		k.releaseRecorded(p.withdrawn, now)
	}
	s.view.lookups.schedule(p.ENI, now.Add(s.cfg.Lag))
}

// detachFailed is unassignFailed for an ENI.
func (s *releases) detachFailed(p *step, class cloud.Class, now time.Time) {
	if (class == cloud.Permission || class == cloud.Bug) && !s.cfg.process.sharesNode {
		s.cancelDetach(p.ENI)
		return
	}
	s.view.attachmentUnresolved(p.ENI)
	s.view.detachBegan(p.ENI, now)
	s.view.lookups.schedule(p.ENI, now.Add(s.cfg.Lag))
}

// overdue handles releases that should be done according to a listing that cannot be older than the call, but are
// not. If other processes may serve the node, it returns the step that repeats the call; otherwise the node gets the
// addresses back.
func (s *releases) overdue(ctx context.Context, now time.Time) *step {
	if !s.cfg.process.sharesNode {
		s.restoreOverdue()
		return nil
	}
	s.adoptCommitted(now)
	if s.retries.blocked(activityShrink, now) || s.retries.toRepeat(activityShrink) != nil {
		return nil
	}
	for _, k := range s.view.list() {
		if p := s.overdueOf(k); p != nil && s.prepareAgain(ctx, p, k, now) {
			return p
		}
	}
	return nil
}

// adoptCommitted takes over the releases recorded by other processes.
func (s *releases) adoptCommitted(now time.Time) {
	for _, c := range s.cfg.Fleet.Committed() {
		k := s.view.enis[c.ENI]
		if k == nil || k.phase() != plan.Attached || !k.facts.ours() || k.trunk {
			continue
		}
		if !c.Prefix.IsValid() {
			if _, known := s.view.detaching[c.ENI]; !known && !primary(k.Attachment) {
				s.view.detachBegan(c.ENI, now)
			}
			continue
		}
		if !k.isReleasing(c.Prefix) && slices.Contains(k.held, c.Prefix) {
			k.releaseRecorded([]netip.Prefix{c.Prefix}, now)
		}
	}
}

// overdueOf returns the step that repeats an ENI's overdue releases; nil if there are none.
func (s *releases) overdueOf(k *known) *step {
	if k.phase() != plan.Attached {
		return nil
	}
	if since, ok := s.view.detaching[k.ID]; ok {
		if s.overdueSince(since) {
			return &step{Action: plan.Action{Kind: plan.Detach, ENI: k.ID}}
		}
		return nil
	}
	var singles, prefixes []netip.Prefix
	for _, p := range sortedKeys(k.releasing) {
		switch {
		case !s.overdueSince(k.releasing[p]):
		case p.IsSingleIP():
			singles = append(singles, p)
		default:
			prefixes = append(prefixes, p)
		}
	}
	list := singles
	if len(list) == 0 { // a call accepts only one kind
		list = prefixes
	}
	if len(list) == 0 {
		return nil
	}
	return &step{Action: plan.Action{Kind: plan.Unassign, ENI: k.ID, Amount: cloud.AmountOf(list)}, withdrawn: list}
}

// overdueSince reports whether the last listing cannot be older than a call made at the given time.
func (s *releases) overdueSince(since time.Time) bool {
	return s.view.freshness.confirmedLater(since, s.cfg.Settle)
}

// restoreOverdue restores addresses with an overdue release to the node.
func (s *releases) restoreOverdue() {
	for _, k := range s.view.enis {
		var back []netip.Prefix
		for p, since := range k.releasing {
			if s.overdueSince(since) {
				back = append(back, p)
			}
		}
		if len(back) > 0 {
			k.releaseCancelled(back)
			s.cfg.Node.RestoreWithdrawn(back)
		}
	}
}
