package eni

import (
	"context"
	"errors"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// try makes a step and handles its failure. It always leaves something changed, or an activity backing
// off, so that the pass goes on without spinning.
func (a *actor) try(ctx context.Context, p *step) {
	start := a.cfg.Clock.Now()
	err := a.act(cloud.WithHeld(ctx, start.Add(rateLimitPatience), func(op string) { a.rateLimited(p.Action, op) }), p)
	a.publisher.flush(ctx) // first, as other nodes' replies are compared with what is published
	a.cfg.acted(p.Action, err, start)
	now := a.cfg.Clock.Now()
	class, g := cloud.ClassOf(err), activityOf[p.Kind]
	switch {
	case err == nil:
		a.cfg.Logger.Info("step done", "step", p.Action.String(), "took", now.Sub(start).String())
		a.retries.succeed(g)
		return
	case class == cloud.Throttled && errors.Is(err, cloud.ErrRecalled) && !p.lost:
		a.recalled(p)
	case class == cloud.Throttled:
		// Neither another step nor another ENI: the same call, later. Asking
		// for free counts, routes or groups is no step: growth goes on with those it has.
		if p.Kind != plan.FindSubnets && p.Kind != plan.FindRoutes && p.Kind != plan.FindGroups {
			a.retries.put(p)
		}
		a.retries.backOff(p.Kind, err, now)
	case a.refusals.trunkBusy(p.Kind, class, now):
	case class == cloud.SubnetFull && (g == activityGrow || g == activityTrunk):
		a.subnetFull(p, err, now)
	default:
		a.failed(p, class, now)
		wait := a.retries.wait(g, class)
		if k, ok := a.view.enis[p.ENI]; ok && p.attaches() {
			if w, ok := a.refusals.attach(k, p.Kind, class, now); ok {
				wait = w
			}
		}
		a.retries.fail(p.Kind, err, now, wait)
	}
	if a.retries.toRepeat(g) != p {
		p.reserved.End(0)
	}
}

// recalled takes a step whose call was given up for pods before it was sent.
func (a *actor) recalled(p *step) {
	a.retries.forget(activityOf[p.Kind]) // it says that the step waits
	if p.creates() {
		a.creations.end()
	} else if p.Kind == plan.Assign {
		a.surplus.rest()
	}
}

// rateLimited reports, in the middle of a step, that it waits for the cloud's rate limit.
func (a *actor) rateLimited(action plan.Action, op string) {
	a.retries.limited(action.Kind, op)
	a.cfg.Logger.Warn("step waits for the rate limit", "step", action.String(), "action", op, "since", rateLimitPatience.String())
	a.report()
	a.cfg.Fleet.RateLimited()
}

// subnetFull takes the subnet, or prefixes in it, out of the plans for a while: the next plan falls
// back to single addresses or another subnet.
func (a *actor) subnetFull(p *step, err error, now time.Time) {
	id := p.Subnet
	if k, ok := a.view.enis[p.ENI]; ok {
		id = k.SubnetID
	}
	p.reserved.End(0)
	if p.creates() {
		a.creations.end()
	}
	until := now.Add(a.cfg.jitter(prefixRetry))
	switch ofIPv6 := p.IPv6+p.IPv6Prefixes > 0; {
	case ofIPv6 && p.Kind == plan.Assign || a.subnets().Native(id):
		a.placement.RefusedIPv6(id, until)
	case p.Prefixes > 0:
		a.placement.RefusedPrefix(id, until)
	default: // of a new ENI's families IPv4 is the one that runs out
		a.placement.Refused(id, p.Weight(), now)
	}
	a.retries.fail(p.Kind, err, now, 0) // another way is open: nothing backs off
}

// failed handles what a failed step leaves open. Calls that may have taken effect are followed by a
// look at the ENI before anything is repeated.
func (a *actor) failed(p *step, class cloud.Class, now time.Time) {
	a.observer.contradicted(class, p.attaches(), now)
	lost := class == cloud.Transient || class == cloud.Unknown
	switch p.Kind {
	case plan.Create, plan.CreateTrunk:
		a.createFailed(p, class, lost, now)
	case plan.Attach, plan.AttachTrunk:
		a.view.lookups.schedule(p.ENI, now)
		a.view.attachmentUnresolved(p.ENI)
		if k, ok := a.view.enis[p.ENI]; ok && lost {
			k.attachLost(now)
		}
		if class == cloud.LimitReached {
			a.refusals.instanceFull(p.Kind, now)
		}
	case plan.Assign:
		a.view.lookups.schedule(p.ENI, now)
		if lost {
			p.reserved.End(p.Weight()) // perhaps; the next count tells
			if k, ok := a.view.enis[p.ENI]; ok {
				a.view.lookups.assignmentLost(k, now.Add(a.cfg.Lag))
			}
		}
	case plan.Unassign:
		a.releases.unassignFailed(p, class, now)
	case plan.Detach:
		a.releases.detachFailed(p, class, now)
	case plan.DetachTrunk:
		a.view.attachmentUnresolved(p.ENI)
		a.view.lookups.schedule(p.ENI, now.Add(a.cfg.Lag))
	case plan.Delete:
		a.view.lookups.schedule(p.ENI, now.Add(time.Second))
	}
}

// createFailed handles a creation that failed. Lost says that it may have taken effect.
func (a *actor) createFailed(p *step, class cloud.Class, lost bool, now time.Time) {
	switch {
	case p.doubtful != "": // a repeat would get the same answer
		p.reserved.End(p.Weight())
		a.view.lookups.creationDoubtful(p.doubtful, now, now.Add(a.cfg.Lag))
	case lost:
		p.lost = true
		a.retries.put(p) // the token makes the repeat return what the first try made
		return
	case class == cloud.Gone:
		a.placement.SubnetGone(now) // perhaps: another may do
	}
	a.creations.end()
}
