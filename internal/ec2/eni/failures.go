package eni

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// try makes a step and deals with its failure. It always leaves something
// changed, or a gate closed, so that the pass goes on without spinning.
func (r *Reconciler) try(ctx context.Context, p *step) bool {
	start := r.cfg.Clock.Now()
	err := r.act(cloud.WithHeld(ctx, start.Add(rateLimitPatience), func(op string) { r.rateLimited(p.Action, op) }), p)
	r.acted(p.Action, err, start)
	now := r.cfg.Clock.Now()
	if err == nil {
		r.cfg.Logger.Info("step done", "step", p.Action.String(), "took", now.Sub(start).String())
		r.retries.succeed(gateOfKind[p.Kind])
		return true
	}
	class, g := cloud.ClassOf(err), gateOfKind[p.Kind]
	switch {
	case class == cloud.Throttled && errors.Is(err, cloud.ErrRecalled) && !p.lost:
		r.recalled(p)
	case class == cloud.Throttled:
		// Neither another step nor another ENI: the same call, later. Asking
		// for free counts, routes or groups is no step: growth goes on with those it has.
		if p.Kind != plan.FindSubnets && p.Kind != plan.FindRoutes && p.Kind != plan.FindGroups {
			r.retries.throttled[g] = p
		}
		r.retries.backOff(p.Kind, err, now)
	case r.stillBusy(class, p, now):
	case class == cloud.SubnetFull && (g == gateGrow || g == gateTrunk):
		r.subnetFull(p, err, now)
	default:
		r.afterFailure(ctx, p, class, now)
		wait := r.retries.wait(g, class)
		if k, ok := r.view.enis[p.ENI]; ok && p.attaches() {
			if w, ok := r.attachRefused(k, p.Kind, class, now); ok {
				wait = w
			}
		}
		r.retries.fail(p.Kind, err, now, wait)
	}
	if r.retries.throttled[g] != p {
		p.reserved.end(0)
	}
	return true
}

// recalled takes a step whose call was given up for pods before it was sent.
func (r *Reconciler) recalled(p *step) {
	r.retries.forget(gateOfKind[p.Kind]) // it says that the step waits
	if p.creates() {
		r.forgetIntent()
	} else if p.Kind == plan.Assign {
		r.surplus.rest()
	}
}

// rateLimited tells, in the middle of a step, that it waits for the cloud's rate limit.
func (r *Reconciler) rateLimited(a plan.Action, op string) {
	r.retries.limited(a.Kind, op)
	r.cfg.Logger.Warn("step waits for the rate limit", "step", a.String(), "action", op, "since", rateLimitPatience.String())
	r.report()
	r.fleet.RateLimited()
}

// acted tells the observer of an action that began at start.
func (r *Reconciler) acted(a plan.Action, err error, start time.Time) {
	r.cfg.Observer.Acted(a, cloud.ClassOf(err), err, r.cfg.Clock.Now().Sub(start))
}

// subnetFull takes the subnet, or prefixes in it, out of the plans for a
// while: the next plan falls back to single addresses or another subnet.
func (r *Reconciler) subnetFull(p *step, err error, now time.Time) {
	id := p.Subnet
	if k, ok := r.view.enis[p.ENI]; ok {
		id = k.SubnetID
	}
	p.reserved.end(0)
	if p.creates() {
		r.forgetIntent()
	}
	until := now.Add(r.cfg.jitter(prefixRetry))
	switch ofIPv6 := p.IPv6+p.IPv6Prefixes > 0; {
	case ofIPv6 && p.Kind == plan.Assign || r.cfg.Shared.Subnets.native(id):
		r.cfg.Shared.Subnets.refusedIPv6(id, until)
		r.placement.retryAt = until
	case p.Prefixes > 0:
		r.cfg.Shared.Subnets.refusedPrefix(id, until)
		r.placement.retryAt = until
	default: // of a new ENI's families IPv4 is the one that runs out
		r.placement.retryAt = r.cfg.Shared.Subnets.refused(id, p.Weight(), now)
		r.placement.newerThan = now
	}
	r.retries.fail(p.Kind, err, now, 0) // another way is open: no gate closes
}

// afterFailure deals with what a failed step leaves open. Calls that may have taken
// effect are followed by a look at the ENI before anything is repeated.
func (r *Reconciler) afterFailure(ctx context.Context, p *step, class cloud.Class, now time.Time) {
	// An index that is taken is one of an ENI that came since the last listing.
	if class == cloud.LimitReached || class == cloud.Gone || class == cloud.Conflict && p.attaches() {
		r.confidence.markStale(now)
	}
	r.instance.uncertain = r.instance.uncertain || !r.process.onInstance && class == cloud.Conflict
	lost := class == cloud.Transient || class == cloud.Unknown
	switch p.Kind {
	case plan.Create, plan.CreateTrunk:
		if p.doubtful != "" { // a repeat would get the same answer
			r.forgetIntent()
			p.reserved.end(p.Weight())
			r.lookups.at[p.doubtful] = now
			r.lookups.unresolved[p.doubtful] = unresolvedCall{until: now.Add(r.cfg.Lag), made: true}
			return
		}
		if lost {
			p.lost = true
			r.retries.throttled[gateOfKind[p.Kind]] = p // the token makes the repeat return what the first try made
			return
		}
		if class == cloud.Gone {
			r.placement.newerThan = now // the subnet, perhaps: another may do
		}
		r.forgetIntent()
	case plan.Attach, plan.AttachTrunk:
		r.afterAttach(p, class, now)
	case plan.Assign:
		r.lookups.at[p.ENI] = now
		if lost {
			p.reserved.end(p.Weight()) // perhaps; the next count tells
			r.leaveUnresolved(p, now)
		}
	case plan.Unassign:
		r.afterUnassign(p, class, now)
	case plan.Detach:
		r.afterDetach(ctx, p, class, now)
	case plan.DetachTrunk:
		if k, ok := r.view.enis[p.ENI]; ok {
			k.attachUnresolved = true
		}
		r.lookups.at[p.ENI] = now.Add(r.cfg.Lag)
	case plan.Delete:
		r.lookups.at[p.ENI] = now.Add(time.Second)
	}
}

func (r *Reconciler) afterAttach(p *step, class cloud.Class, now time.Time) {
	r.lookups.at[p.ENI] = now
	if k, ok := r.view.enis[p.ENI]; ok {
		k.attachUnresolved = true
		if class == cloud.Transient || class == cloud.Unknown {
			k.attachReplyLost = now
		}
	}
	if class == cloud.LimitReached {
		r.attachmentsBy(p.Kind).fullUntil = now.Add(r.cfg.jitter(r.cfg.SlowRetry))
	}
}

// leaveUnresolved keeps growth back until a listing shows whether a lost assignment took effect.
func (r *Reconciler) leaveUnresolved(p *step, now time.Time) {
	k, ok := r.view.enis[p.ENI]
	if !ok {
		return
	}
	u := unresolvedCall{before: map[netip.Prefix]bool{}, until: now.Add(r.cfg.Lag)}
	for _, t := range k.held {
		u.before[t] = true
	}
	r.lookups.unresolved[p.ENI] = u
}

// afterUnassign keeps what was withdrawn out of use while the call may have
// taken effect: until now, whenever it was made. A denied one surely has not.
func (r *Reconciler) afterUnassign(p *step, class cloud.Class, now time.Time) {
	if class == cloud.Permission && !r.process.sharesNode {
		r.restoreWithdrawn(p)
		return
	}
	if k, ok := r.view.enis[p.ENI]; ok {
		for _, t := range p.withdrawn {
			k.releasing[t] = now
		}
	}
	r.lookups.at[p.ENI] = now.Add(r.cfg.Lag)
}

func (r *Reconciler) afterDetach(ctx context.Context, p *step, class cloud.Class, now time.Time) {
	if (class == cloud.Permission || class == cloud.Bug) && !r.process.sharesNode {
		r.cancelDetach(ctx, p.ENI)
		return
	}
	if k, ok := r.view.enis[p.ENI]; ok {
		k.attachUnresolved = true
	}
	r.view.detaching[p.ENI] = now
	r.lookups.at[p.ENI] = now.Add(r.cfg.Lag)
}
