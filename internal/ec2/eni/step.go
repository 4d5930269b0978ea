package eni

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// step is an action with everything its cloud call takes, so that a throttled
// one can be made again exactly as it was.
type step struct {
	plan.Action
	withdrawn []netip.Prefix // Unassign: what was withdrawn
	intent    Intent         // Create, CreateTrunk
	reserved  *reservation   // those, Assign: what is set apart of the subnet
	priority  cloud.Priority // of its call
	tidies    bool           // no pod needs it: a move's Assign, or what a trunk takes that is not begun
	lost      bool           // Create, CreateTrunk: it was made, and the reply was lost
	doubtful  string         // Create, CreateTrunk: the ENI that a reply named which does not fit
}

// creates tells whether a step makes an ENI.
func (p *step) creates() bool { return p.Kind == plan.Create || p.Kind == plan.CreateTrunk }

// attaches tells whether a step attaches an ENI.
func (p *step) attaches() bool { return p.Kind == plan.Attach || p.Kind == plan.AttachTrunk }

// prepare readies a step: what leaves is withdrawn from the node first, what is
// created is written down first. It tells whether there is something to do
// after all, and now.
func (r *Reconciler) prepare(ctx context.Context, p *step, now time.Time) bool {
	switch p.Kind {
	case plan.Unassign:
		return r.withdraw(ctx, p, now)
	case plan.Detach:
		if !r.cfg.Node.WithdrawENI(p.ENI) {
			return false
		}
		r.view.detaching[p.ENI] = now
		if err := r.publish(ctx); err != nil {
			r.cancelDetach(ctx, p.ENI)
			r.retries.fail(plan.Detach, err, now, r.cfg.SlowRetry)
			return false
		}
	case plan.Assign:
		p.Subnet = r.view.enis[p.ENI].SubnetID
	case plan.Create, plan.CreateTrunk:
		groups, err := r.placement.groups(ctx)
		if err == nil {
			p.intent = r.newIntent(p.Action, groups, now)
			if err = r.cfg.Intents.Save(p.intent); err != nil {
				err = fmt.Errorf("record the intent to %v: %w", p.Action, err)
			}
		}
		if err != nil {
			r.retries.fail(p.Kind, err, now, r.retries.wait(gateOfKind[p.Kind], cmp.Or(cloud.ClassOf(err), cloud.Bug)))
			return false
		}
	}
	return true
}

// withdraw takes addresses out of the node's use and records that, before the
// cloud is asked to take them.
func (r *Reconciler) withdraw(ctx context.Context, p *step, now time.Time) bool {
	k := r.view.enis[p.ENI]
	p.withdrawn = r.cfg.Node.Withdraw(p.ENI, p.Amount)
	if k != nil && k.Primary.IsValid() { // the cloud takes no ENI's own address
		p.withdrawn = slices.DeleteFunc(p.withdrawn, func(t netip.Prefix) bool { return t == cloud.HostPrefix(k.Primary) })
	}
	if k == nil || len(p.withdrawn) == 0 {
		return false
	}
	p.Amount = cloud.AmountOf(p.withdrawn)
	for _, t := range p.withdrawn {
		k.releasing[t] = now
		delete(k.added, t)
	}
	if err := r.publish(ctx); err != nil {
		r.restoreWithdrawn(p)
		r.retries.fail(plan.Unassign, err, now, r.cfg.SlowRetry)
		return false
	}
	return true
}

// revalidate readies a throttled step for another try: it may have become pointless
// by what was observed since, and what is about to leave is recorded as of now.
func (r *Reconciler) revalidate(ctx context.Context, p *step, now time.Time) bool {
	switch p.Kind {
	case plan.Create, plan.CreateTrunk, plan.FindSubnets, plan.FindRoutes, plan.FindGroups:
		return true
	}
	k, ok := r.view.enis[p.ENI]
	want := plan.Attached
	if p.Kind == plan.Attach || p.Kind == plan.AttachTrunk || p.Kind == plan.Delete {
		want = plan.Detached
	}
	if !ok || k.phase() != want {
		return false
	}
	switch p.Kind {
	case plan.Detach:
		if !r.cfg.Node.WithdrawENI(p.ENI) {
			return false // a listing gave it back meanwhile, and pods came
		}
		r.view.detaching[p.ENI] = now
		if err := r.publish(ctx); err != nil && r.process.sharesNode {
			r.cancelDetach(ctx, p.ENI)
			return false
		}
	case plan.Unassign:
		for _, t := range p.withdrawn {
			if _, ok := k.releasing[t]; !ok {
				return false // a listing showed it gone
			}
			k.releasing[t] = now
		}
		if err := r.publish(ctx); err != nil && r.process.sharesNode {
			r.restoreWithdrawn(p)
			return false
		}
	}
	return true
}

// cancelShrink ends a throttled step that would take what pods wait for by now.
func (r *Reconciler) cancelShrink(ctx context.Context) {
	p := r.retries.throttled[gateShrink]
	if p == nil || r.process.sharesNode || r.cfg.Node.Usage().Waiting == 0 {
		return
	}
	delete(r.retries.throttled, gateShrink)
	if p.Kind == plan.Detach {
		r.cancelDetach(ctx, p.ENI)
	} else {
		r.restoreWithdrawn(p)
	}
}

// restoreWithdrawn undoes withdraw, when the cloud surely took nothing. What is recorded
// for others to see is taken up again by the next plan.
func (r *Reconciler) restoreWithdrawn(p *step) {
	k := r.view.enis[p.ENI]
	if k == nil {
		return
	}
	for _, t := range p.withdrawn {
		delete(k.releasing, t)
	}
	r.cfg.Node.RestoreWithdrawn(p.withdrawn)
}

// cancelDetach gives an ENI that was about to leave back to the node, by publishing it.
func (r *Reconciler) cancelDetach(ctx context.Context, id string) {
	delete(r.view.detaching, id)
	_ = r.publish(ctx)
}

// newIntent writes the request for a new ENI: all tags and addresses in the one call.
func (r *Reconciler) newIntent(a plan.Action, groups []string, now time.Time) Intent {
	q := cloud.CreateENI{
		SubnetID: a.Subnet, Groups: groups, Description: Description(r.cfg.InstanceID),
		Tags: r.cfg.creationTags(now), ClientToken: "berth-" + rand.Text(),
		Amount: a.Amount,
	}
	if a.Kind == plan.CreateTrunk {
		q.Type = cloud.InterfaceTrunk
	}
	return Intent{Index: a.Index, At: now, Request: q}
}

// resume repeats a creation that the last process began, unless its ENI is in
// sight. The token makes the repeat return that ENI. Intents older than an
// hour are forgotten: listings do not trail that long, and tokens expire.
func (r *Reconciler) resume() {
	now := r.cfg.Clock.Now()
	intent, ok, err := r.cfg.Intents.Load()
	r.resumed = true
	if err != nil {
		r.cfg.Logger.Warn("intent unreadable; the ENI, if any, is found by its tags", "error", err)
		ok = false
	}
	created := intent.Request.Tags[TagCreatedAt]
	for _, k := range r.view.enis {
		if k.createdTag == created {
			ok = false
		}
	}
	if !ok || now.Sub(intent.At) > time.Hour || intent.Request.Tags[TagInstanceID] != r.cfg.InstanceID {
		r.forgetIntent()
		return
	}
	q := intent.Request
	r.retries.throttled[gateGrow] = &step{Action: plan.Action{Kind: plan.Create, Subnet: q.SubnetID, Index: intent.Index, Amount: q.Amount}, intent: intent, priority: cloud.Begun, lost: true}
}

func (r *Reconciler) forgetIntent() {
	if err := r.cfg.Intents.Clear(); err != nil {
		r.cfg.Logger.Warn("intent not cleared", "error", err)
	}
}

func sortedKeys(m map[netip.Prefix]time.Time) []netip.Prefix {
	return slices.SortedFunc(maps.Keys(m), netip.Prefix.Compare)
}
