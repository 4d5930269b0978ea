package eni

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// try makes a step and handles its failure. It always leaves something changed, or an activity in backoff, so
// that the pass does not spin.
func (a *actor) try(ctx context.Context, p *step) {
	start := a.cfg.Clock.Now()
	err := a.act(cloud.WithHeld(ctx, start.Add(rateLimitPatience), func(op string) { a.rateLimited(p.Action, op) }), p)
	a.publisher.flush(ctx) // first, because other nodes' replies are compared with the published inventory
	a.cfg.acted(p.Action, err, start)
	now := a.cfg.Clock.Now()
	class, g := cloud.ClassOf(err), activityOf[p.Kind]
	switch {
	case err == nil:
		a.cfg.Logger.Info("step done", "step", loggedAction(p.Action), "took", loggedTime(now.Sub(start)))
		a.retries.succeed(g)
		return
	case class == cloud.Throttled && errors.Is(err, cloud.ErrRecalled) && !p.lost:
		a.recalled(p)
	case class == cloud.Throttled:
		// Retry the same call later, instead of another step or another ENI. Fetching free counts, routes or groups
		// is an exception: growth continues with the known ones.
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

// loggedAction and loggedTime are formatted only if they are logged.
type (
	loggedAction plan.Action
	loggedTime   time.Duration
)

// LogValue implements slog.LogValuer.
func (a loggedAction) LogValue() slog.Value { return slog.StringValue(plan.Action(a).String()) }

// LogValue implements slog.LogValuer.
func (d loggedTime) LogValue() slog.Value { return slog.StringValue(time.Duration(d).String()) }

// recalled handles a step whose call was recalled for pods before it was sent.
func (a *actor) recalled(p *step) {
	a.retries.forget(activityOf[p.Kind]) // clears the report that the step waits
	if p.creates() {
		a.creations.end()
	} else if p.Kind == plan.Assign {
		a.surplus.rest()
	}
}

// rateLimited reports that a step in progress waits for the cloud's rate limit.
func (a *actor) rateLimited(action plan.Action, op string) {
	a.retries.limited(action.Kind, op)
	a.cfg.Logger.Warn("step waits for the rate limit", "step", action.String(), "action", op, "since", rateLimitPatience.String())
	a.report()
	a.cfg.Fleet.RateLimited()
}

// subnetFull excludes the subnet, or prefixes in it, from plans for a while: the next plan falls back to single
// addresses or another subnet.
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
	default: // for a dual-stack ENI, IPv4 is the family that runs out
		a.placement.Refused(id, p.Weight(), now)
	}
	a.retries.fail(p.Kind, err, now, 0) // no backoff, because there is an alternative
}

// failed cleans up after a failed step. Calls that may have taken effect are followed by a lookup of the ENI
// before anything is repeated.
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
			p.reserved.End(p.Weight()) // assume that it took effect; the next count shows
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

// createFailed handles a failed creation. Lost means that it may have taken effect.
func (a *actor) createFailed(p *step, class cloud.Class, lost bool, now time.Time) {
	switch {
	case p.doubtful != "": // repeating the request would get the same reply
		p.reserved.End(p.Weight())
		a.view.lookups.creationDoubtful(p.doubtful, now, now.Add(a.cfg.Lag))
	case lost:
		p.lost = true
		a.retries.put(p) // with the same client token, EC2 returns the ENI of the first attempt
		return
	case class == cloud.Gone:
		a.placement.SubnetGone(now) // possibly; try another one
	}
	a.creations.end()
}
