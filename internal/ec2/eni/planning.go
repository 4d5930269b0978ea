package eni

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/ec2/eni/placement"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/retry"
)

// planning makes plans from the view and chooses the next step of a plan. It belongs to the reconciler's goroutine.
type planning struct {
	cfg          *Config
	view         *view
	instance     *instance
	placement    *placement.Selector
	refusals     *refusals
	retries      *retries
	observer     *observer
	releases     *releases
	creations    *creations
	terminations *terminations
	demand       *demand

	surplus     surplus
	last        *evaluation // nil if something may have changed since
	trunkReason string      // last logged reason why the trunk is not as configured
}

// evaluation is a state and its plan.
type evaluation struct {
	state  plan.State
	plan   plan.Plan
	routes placement.Routes // the plan's knowledge of the subnets' routes
}

// reset makes the next evaluation use the current view.
func (p *planning) reset() { p.last = nil }

// evaluate returns the current state with its plan, for the status.
func (p *planning) evaluate(now time.Time) *evaluation {
	if p.last != nil {
		return p.last
	}
	e := &evaluation{state: p.state(now)}
	e.state.Subnets = p.placement.Subnets(now)
	e.routes = p.placement.MarkRoutes(e.state.Subnets)
	e.plan = plan.Make(p.instance.limits, p.cfg.Policy, e.state)
	return e
}

// decide makes the plan and reserves the addresses of its first growth step.
func (p *planning) decide(now time.Time) (e *evaluation, reserved *placement.Reservation) {
	e = &evaluation{state: p.state(now)}
	if p.cfg.DrainOutdated { // an ENI drains only while another one can take over its addresses
		e.state.Subnets = p.placement.Subnets(now)
	}
	p.surplus.allow(p.instance.limits, p.cfg.Policy, &e.state, p.cfg.DrainOutdated, now)
	reserved = p.placement.Choose(now, func(list []plan.Subnet) (a plan.Action, subnet string) {
		e.state.Subnets, e.routes = list, p.placement.MarkRoutes(list)
		e.plan = plan.Make(p.instance.limits, p.cfg.Policy, e.state)
		for _, a := range e.plan.Actions {
			switch a.Kind {
			case plan.Create, plan.CreateTrunk:
				return a, a.Subnet
			case plan.Assign:
				return a, p.view.enis[a.ENI].SubnetID
			}
		}
		return plan.Action{}, ""
	})
	p.placement.Planned(e.plan.Exhausted, e.state.Drain)
	return e, reserved
}

// state returns the view in the form for plans.
func (p *planning) state(now time.Time) plan.State {
	u := p.cfg.Node.Usage()
	p.view.missingLinks(u.MissingLinks, now)
	s := plan.State{
		Waiting: u.Waiting, NoMoreENIs: p.refusals.pods.full(now), PrimaryServes: p.cfg.primaryServes(),
		FollowGroups: p.cfg.FollowGroups, Drain: p.surplus.drains,
		Trunk: plan.Trunk{
			Wanted: p.cfg.Trunk, Branches: p.cfg.Trunk && limits.Branches(p.instance.limitsOf) > 0,
			Refused: p.refusals.trunk.full(now), Busy: p.refusals.trunkBusyUntil.After(now),
		},
	}
	var desired *placement.Desired // found for the first ENI that may be outdated
	list := p.view.list()
	s.ENIs = make([]plan.ENI, 0, len(list))
	for _, k := range list {
		if k.Attachment != nil && k.Attachment.NetworkCard != 0 {
			continue // device index and limits apply per card
		}
		e := p.eniState(k, u.ENIs[k.ID], now)
		if mine := e.Ours && !e.Primary && !e.Trunk; mine {
			serves := e.Phase == plan.Detached || e.Index >= p.cfg.Policy.FirstInterfaceIndex
			e.OtherGroups = p.placement.OtherGroups(k.placed()) && !k.owner.adopted // its groups may be those of an ENIConfig
			if serves && desired == nil {
				desired = p.placement.Desired()
			}
			e.Outdated = serves && desired.Outdated(k.placed())
		}
		s.ENIs = append(s.ENIs, e)
	}
	return s
}

// eniState returns one ENI in the form for plans, without what depends on the settings of new ones.
func (p *planning) eniState(k *known, u ENIUsage, now time.Time) plan.ENI {
	e := plan.ENI{
		ID: k.ID, Subnet: k.SubnetID, Index: k.index(), Phase: k.phase(),
		Primary: primary(k.Attachment), Ours: k.ours(), Trunk: k.trunk,
		PrimaryServes: p.cfg.primaryServes() && !primary(k.Attachment) && k.ours(),
		Amount:        cloud.AmountOf(k.kept()), Withdrawn: cloud.AmountOf(sortedKeys(k.releasing)).Plus(k.disputed), OwnIPv6: k.ownIPv6,
		Used: u.Used, Cooling: u.Cooling, Free: u.Free,
		Refused: k.refusals >= attachTries, NoLink: p.view.lookups.links.ignoresAddresses(k.ID, now),
	}
	if _, ok := p.view.detaching[k.ID]; ok && e.Phase == plan.Attached {
		e.Phase = plan.Detaching // the detachment may be in flight: no supply, and not requested twice
	}
	if k.Attachment != nil && k.Attachment.ID != "" {
		e.WrongDeleteOnTermination = k.Attachment.DeleteOnTermination == p.cfg.KeepENIs
		e.WrongTags = k.owner.instanceTag != p.cfg.InstanceID
	}
	// Another process that serves this node may be about to attach it.
	e.JustMade = p.cfg.process.sharesNode && e.Phase == plan.Detached && k.replied.IsZero() && now.Sub(k.owner.createdAt()) < p.cfg.Settle
	return e
}

// choose returns the first step of the current plan that can be made now; nil if there is none. The addresses of a
// growth step are reserved when it is chosen.
func (p *planning) choose(ctx context.Context, now time.Time) *step {
	if !p.instance.limitsKnown() || p.instance.stopped {
		return nil
	}
	if s := p.releases.overdue(ctx, now); s != nil {
		return s
	}
	e, reserved := p.decide(now)
	defer func() { reserved.End(0) }() // unless a step takes it
	growing := e.plan.Exhausted || p.growthWaits() || p.refusals.pods.stuck(now)
	p.retries.forgetUnwanted(e.plan.Actions, growing, p.refusals.trunk.full(now), now)
	p.terminations.set(ctx, e.plan.Actions, now)
	for _, a := range e.plan.Actions {
		if p.waits(a, now) {
			continue
		}
		if takes(a) && p.countsDue(now) {
			return &step{Action: plan.Action{Kind: plan.FindSubnets}, priority: cloud.Begun}
		}
		if a.Kind == plan.Create {
			ask, wait := e.routes.Missing(p.retries.routes(now))
			if ask {
				return &step{Action: plan.Action{Kind: plan.FindRoutes}, priority: cloud.Begun}
			}
			if wait {
				continue
			}
		}
		s := &step{Action: a, priority: priority(a, e.plan), tidies: e.plan.Moves(a) || p.demand.mayRecall(a)}
		if reserved.IsFor(a) {
			s.reserved, reserved = reserved, nil
		}
		if p.prepare(ctx, s, now) {
			return s
		}
		s.reserved.End(0)
	}
	p.last = e // none of its actions can be made now
	// Counts of a full subnet are fetched again, even if the plan has no other action.
	if e.plan.Exhausted && p.countsDue(now) {
		return &step{Action: plan.Action{Kind: plan.FindSubnets}}
	}
	for _, k := range p.placement.Unknown(now) {
		if !p.retries.blocked(activityOf[k], now) {
			return &step{Action: plan.Action{Kind: k}}
		}
	}
	return nil
}

// takes reports whether an action takes addresses of a subnet, or completes one that did.
func takes(a plan.Action) bool {
	return activityOf[a.Kind] == activityGrow || a.Kind == plan.CreateTrunk
}

// countsDue reports whether to fetch the free counts of subnets.
func (p *planning) countsDue(now time.Time) bool {
	return p.placement.CountsStale(now) && !p.retries.blocked(activitySubnets, now)
}

// waits reports whether an action of the plan cannot be made now. A new ENI waits until the node's detached ENIs are
// known: they are listed next.
func (p *planning) waits(a plan.Action, now time.Time) bool {
	return a.Kind == plan.SetDeleteOnTermination || p.retries.blocked(activityOf[a.Kind], now) ||
		takes(a) && p.growthWaits() || a.Kind == plan.Create && p.observer.detachedUnknown()
}

// growthWaits reports whether an unfinished growth step must be resolved before more addresses are requested.
func (p *planning) growthWaits() bool {
	return p.view.lookups.blockGrowth() || p.retries.toRepeat(activityGrow) != nil
}

// prepare readies a step: releases are first withdrawn from the node, creations are first recorded. It reports
// whether the call can be made now.
func (p *planning) prepare(ctx context.Context, s *step, now time.Time) bool {
	switch s.Kind {
	case plan.Unassign, plan.Detach:
		return p.releases.prepare(ctx, s, now)
	case plan.Assign:
		s.Subnet = p.view.enis[s.ENI].SubnetID
	case plan.Create, plan.CreateTrunk:
		groups, err := p.placement.FindGroups(ctx)
		if err == nil {
			s.intent, err = p.creations.begin(s.Action, groups, now)
		}
		if err != nil {
			p.retries.fail(s.Kind, err, now, p.retries.wait(activityOf[s.Kind], cmp.Or(cloud.ClassOf(err), cloud.Bug)))
			return false
		}
	}
	return true
}

// prepareAgain readies a throttled step for another attempt. It is false if an observation since has made the step
// pointless.
func (p *planning) prepareAgain(ctx context.Context, s *step, now time.Time) bool {
	switch s.Kind {
	case plan.Create, plan.CreateTrunk, plan.FindSubnets, plan.FindRoutes, plan.FindGroups:
		return true
	}
	k, ok := p.view.enis[s.ENI]
	want := plan.Attached
	if s.attaches() || s.Kind == plan.Delete {
		want = plan.Detached
	}
	if !ok || k.phase() != want {
		return false
	}
	return !s.returns() || p.releases.prepareAgain(ctx, s, k, now)
}

// due returns when a part of the excess will have lasted for long enough.
func (p *planning) due(now time.Time) time.Time { return p.surplus.due(now) }

// priority returns the priority of an action's call. Calls that complete earlier work come first, then those of the
// node that lacks most.
func priority(a plan.Action, p plan.Plan) cloud.Priority {
	switch a.Kind {
	case plan.Attach, plan.AttachTrunk, plan.Retag:
		return cloud.Begun
	case plan.CreateTrunk:
		return 1 // below demand of pods, above releases
	case plan.Assign, plan.Create:
		return min(cloud.Priority(p.Needed), cloud.Begun-1)
	default:
		return 0
	}
}

// trunk returns the state of the trunk; nil if none is configured and none exists.
//
// No pod or daemon knows of the trunk's addresses. It is attached and detached without being published, because the
// node does not have to release anything. Branches use it, and EC2 does not detach it while it has any.
func (p *planning) trunk(s plan.State) *Trunk {
	var t Trunk
	for _, e := range s.ENIs {
		if e.Trunk && e.Ours && e.Phase == plan.Attached && (t.ID == "" || e.ID < t.ID) {
			t.ID, t.MAC, t.DeviceIndex = e.ID, mac.Addr(p.view.enis[e.ID].MAC), e.Index
		}
	}
	t.Reason, t.Message = plan.TrunkTrouble(p.instance.limits, p.cfg.Policy, s)
	if t.Reason != p.trunkReason {
		if p.trunkReason = t.Reason; t.Reason != "" {
			p.cfg.Logger.Info("trunk is not as configured", "reason", t.Reason, "why", t.Message)
		}
	}
	if t.ID == "" && !p.cfg.Trunk {
		return nil
	}
	out := t // on the heap, unlike that of the nodes without a trunk
	return &out
}

// surplus measures how long a node has had an excess, or outdated ENIs.
type surplus struct {
	delay   time.Duration // how long a surplus must last
	excess  plan.Lasting  // addresses
	movable plan.Lasting  // 1 while other ENIs could take over an ENI's addresses

	outdated plan.Lasting // 1 while there is an outdated ENI to drain
	drains   bool         // outdated has lasted
}

// allow sets in a state which part of its excess may be released now and, if drain is set, whether outdated ENIs may
// be drained.
func (u *surplus) allow(l cloud.Limits, p ipam.Policy, s *plan.State, drain bool, now time.Time) {
	outdated := 0
	if drain && slices.ContainsFunc(s.ENIs, func(e plan.ENI) bool { return e.Outdated }) {
		outdated = 1
	}
	u.drains = u.outdated.Allow(outdated, outdated, now, u.delay) > 0
	s.Drain = u.drains
	excess, total := plan.Excess(l, p, *s)
	s.Release = u.excess.Allow(excess, total, now, u.delay)
	movable := 0
	if plan.Movable(l, p, *s) {
		movable = 1
	}
	s.Moves = u.movable.Allow(movable, movable, now, u.delay) > 0
}

// rest restarts the time for which an ENI must be dispensable before it is emptied.
func (u *surplus) rest() { u.movable = plan.Lasting{} }

// due returns when excess will have lasted.
func (u *surplus) due(now time.Time) time.Time {
	return retry.Earliest(now, u.excess.Due(now, u.delay), u.movable.Due(now, u.delay), u.outdated.Due(now, u.delay))
}
