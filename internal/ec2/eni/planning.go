package eni

import (
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/ec2/eni/placement"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// planning makes plans on the view, and remembers the last one while nothing changed
// since. It belongs to the goroutine that reconciles.
type planning struct {
	cfg       *Config
	view      *view
	instance  *instance
	placement *placement.Selector
	refusals  *refusals
	surplus   surplus
	last      *evaluation // nil: something may have changed since
}

// evaluation is a state and what the plan made of it.
type evaluation struct {
	state  plan.State
	plan   plan.Plan
	routes placement.Routes // what the plan knew of the subnets' routes
}

// reset has the next evaluation look at the view again.
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

// decide makes the plan and reserves what its first step of growth takes.
func (p *planning) decide(now time.Time) (e *evaluation, reserved *placement.Reservation) {
	e = &evaluation{state: p.state(now)}
	if p.cfg.DrainOutdated { // a drain depends on what others can have
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

// keep has evaluate return e until the next reset: none of its actions is for now.
func (p *planning) keep(e *evaluation) { p.last = e }

// state returns the view as a plan sees it.
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
	desired := p.placement.Desired()
	for _, k := range p.view.list() {
		if k.Attachment != nil && k.Attachment.NetworkCard != 0 {
			continue // its device index and the limits are not those of the first card
		}
		e := p.eniState(k, u.ENIs[k.ID], now)
		if mine := e.Ours && !e.Primary && !e.Trunk; mine {
			serves := e.Phase == plan.Detached || e.Index >= p.cfg.Policy.FirstInterfaceIndex
			e.OtherGroups = p.placement.OtherGroups(k.placed())
			e.Outdated = serves && desired.Outdated(k.placed())
		}
		s.ENIs = append(s.ENIs, e)
	}
	return s
}

// eniState returns one ENI as a plan sees it, without what depends on the settings of
// new ones.
func (p *planning) eniState(k *known, u ENIUsage, now time.Time) plan.ENI {
	e := plan.ENI{
		ID: k.ID, Subnet: k.SubnetID, Index: k.index(), Phase: k.phase(),
		Primary: primary(k.Attachment), Ours: k.ours(), Trunk: k.trunk,
		PrimaryServes: p.cfg.primaryServes() && !primary(k.Attachment) && k.ours(),
		Amount:        cloud.AmountOf(k.kept()), Withdrawn: cloud.AmountOf(sortedKeys(k.releasing)).Plus(k.disputed), OwnIPv6: k.ownIPv6,
		Used: u.Used, Cooling: u.Cooling, Free: u.Free,
		Refused: k.refusals >= attachTries, NoLink: p.view.lookups.links.noStock(k.ID, now),
	}
	if _, ok := p.view.detaching[k.ID]; ok && e.Phase == plan.Attached {
		e.Phase = plan.Detaching // its detachment may be in flight: no supply, and not asked for twice
	}
	if k.Attachment != nil && k.Attachment.ID != "" {
		e.WrongDeleteOnTermination = k.Attachment.DeleteOnTermination == p.cfg.KeepENIs
		e.WrongTags = k.owner.instanceTag != p.cfg.InstanceID
	}
	// Another process that works for this node may be about to attach it.
	e.JustMade = p.cfg.process.sharesNode && e.Phase == plan.Detached && k.replied.IsZero() && now.Sub(k.owner.createdAt()) < p.cfg.Settle
	return e
}

// due returns when excess will have lasted.
func (p *planning) due(now time.Time) time.Time { return p.surplus.due(now) }

// priority returns the priority of the call that an action makes: what is begun is
// finished first, then the node that lacks the most begins.
func priority(a plan.Action, p plan.Plan) cloud.Priority {
	switch a.Kind {
	case plan.Attach, plan.AttachTrunk, plan.Retag:
		return cloud.Begun
	case plan.CreateTrunk:
		return 1 // after what nodes lack for pods, before what is given back
	case plan.Assign, plan.Create:
		return min(cloud.Priority(p.Needed), cloud.Begun-1)
	default:
		return 0
	}
}
