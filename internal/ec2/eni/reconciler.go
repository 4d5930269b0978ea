package eni

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/retry"
)

// Reconciler brings one node's ENIs to its policy. Reconcile (or Run) is
// called by one goroutine at a time; Kick, Status, Seed and Reconfigure by any.
type Reconciler struct {
	cfg    Config
	kick   retry.Signal
	needed retry.Signal // by Kick too, for the watch of a step

	changes mailbox // of Reconfigure

	// What follows belongs to the goroutine in Reconcile.
	view    *view
	process process
	fleet   Fleet
	own     *ownLister // used if process.lists

	confidence     confidence
	lookups        lookups
	instance       instance
	retries        retries
	placement      placement
	attachments    attachments
	trunk          trunk
	surplus        surplus
	links          links
	orphans        orphans
	attributeCalls attributeCalls
	evaluation     *evaluation // of the last plan, while nothing changed since
	resumed        bool        // a stored intent was looked for
	trial          *trial      // of settings that may not be for this instance; nil: none

	life context.Context // ends with End or Close
	kill context.CancelFunc
	work sync.WaitGroup // of noFleet, beside a pass

	mu     sync.Mutex // guards status
	status Status
}

// New checks the configuration and returns a reconciler that has observed
// nothing yet.
func New(cfg Config) (*Reconciler, error) {
	if err := cfg.withDefaults(); err != nil {
		return nil, fmt.Errorf("ENI reconciler: %w", err)
	}
	r := &Reconciler{
		cfg: cfg, kick: retry.NewSignal(), needed: retry.NewSignal(), view: newView(cfg.Settle),
		attributeCalls: attributeCalls{},
	}
	r.confidence.viewStale = true
	r.lookups = lookups{at: map[string]time.Time{}, unresolved: map[string]unresolvedCall{}}
	r.retries = retries{cfg: &r.cfg, failed: map[gate]*backoff{}, throttled: map[gate]*step{}}
	r.instance.lag, r.instance.typ = cfg.Lag, cfg.InstanceType
	r.links = links{lag: cfg.Lag, since: map[string]time.Time{}, flips: map[string]flips{}}
	r.surplus.delay, r.orphans.seen = cfg.ShrinkDelay, Sightings{}
	r.life, r.kill = context.WithCancel(context.Background())
	if cfg.Fleet != nil {
		r.process, r.fleet = ofFleet, *cfg.Fleet
	} else {
		r.own = &ownLister{cfg: &r.cfg}
		r.process, r.fleet = ofOneNode, r.noFleet()
		r.instance.typeKnown = cfg.InstanceType != "" // of this very instance, as its metadata service says
	}
	r.placement = placement{subnetCounts: subnetCounts{shared: r.process.sharesCounts}, cfg: &r.cfg, view: r.view, lister: r.fleet.Lister, configured: r.cfg.Clock.Now()}
	return r, nil
}

// Kick says that something may have to be done now: pods wait or went, a
// withdrawal was confirmed. It never blocks.
func (r *Reconciler) Kick() {
	r.kick.Set()
	r.needed.Set()
}

// Run reconciles whenever kicked and whenever something is due, until ctx ends.
// Nothing is under way when it returns.
func (r *Reconciler) Run(ctx context.Context) error {
	defer r.work.Wait()
	for {
		due := r.cfg.Clock.After(r.Reconcile(ctx))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-due:
		case <-r.kick:
			if err := r.gather(ctx); err != nil {
				return err
			}
		}
	}
}

// gather waits for a burst of pods to be over, so that one call asks for all of
// them: until no kick came for burstWindow, and at most ten times as long.
func (r *Reconciler) gather(ctx context.Context) error {
	latest := r.cfg.Clock.Now().Add(10 * burstWindow)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.cfg.Clock.After(burstWindow):
			return nil
		case <-r.kick:
			if !r.cfg.Clock.Now().Before(latest) {
				return nil
			}
		}
	}
}

// maxSteps bounds one pass; what is left continues with the next.
const maxSteps = 256

// Reconcile does everything that can be done now and tells when to come back
// at the latest.
func (r *Reconciler) Reconcile(ctx context.Context) time.Duration {
	start := r.cfg.Clock.Now()
	for range maxSteps {
		if ctx.Err() != nil || r.Ended() {
			break
		}
		call, done := r.sparing(ctx)
		more := r.next(call)
		done()
		if !more {
			break
		}
	}
	r.report()
	now := r.cfg.Clock.Now()
	r.cfg.Shared.outage.leave(&r.retries, now)
	r.cfg.Observer.Reconciled(now.Sub(start))
	return r.wake(now)
}

// next does the one most urgent thing that is due, and tells whether there may
// be more. A plan on a guess is a wrong plan, so observing comes first while
// the view is known to be wrong; a listing that is for repair only comes last
// and keeps nobody waiting, also while EC2 refuses it.
func (r *Reconciler) next(ctx context.Context) bool {
	now := r.cfg.Clock.Now()
	r.evaluation = nil
	r.takeNews(ctx, now)
	if r.instance.vanished {
		return false
	}
	r.cancelShrink(ctx)
	mayObserve := !r.retries.closed(gateObserve, now)
	if r.confidence.publishHeld {
		return mayObserve && !r.confidence.observeNotBefore.After(now) && r.observe(ctx)
	}
	if p := r.retries.again(now); p != nil {
		if !r.revalidate(ctx, p, now) {
			p.reserved.end(0)
			return true
		}
		return r.try(ctx, p)
	}
	if r.confidence.viewStale {
		return mayObserve && r.observe(ctx)
	}
	if id, ok := r.lookups.next(now, true); ok && mayObserve {
		return r.lookUp(ctx, id)
	}
	if r.learnPrerequisites(ctx, now) {
		return true
	}
	if p := r.plan(ctx, now); p != nil {
		return r.try(ctx, p)
	}
	return r.tidy(ctx, now, mayObserve)
}

// tidy is the end of next: what keeps nobody waiting.
func (r *Reconciler) tidy(ctx context.Context, now time.Time, mayObserve bool) bool {
	if r.repairDue(now) && mayObserve {
		return r.observe(ctx)
	}
	if id, ok := r.lookups.next(now, false); ok && mayObserve {
		return r.lookUp(ctx, id)
	}
	if r.process.collects && r.orphans.collectDue(now) && !r.retries.closed(gateCollect, now) {
		r.collect(ctx)
		return true
	}
	return false
}

// repairDue tells whether the node's ENIs are to be listed for repair, which is
// this reconciler's own to do.
func (r *Reconciler) repairDue(now time.Time) bool {
	return r.process.lists && !r.confidence.observeAt.After(now)
}

// takeNews takes up what other goroutines said since the last step.
func (r *Reconciler) takeNews(ctx context.Context, now time.Time) {
	if r.confidence.applyInvalidation(now, r.cfg.Lag) {
		if p := r.retries.throttled[gateShrink]; p != nil && !p.lost { // someone must say so again
			delete(r.retries.throttled, gateShrink)
		}
	}
	if r.instance.applySuspicion(now) {
		r.retries.open(gateInstance, now)
	}
	r.takeChange(ctx)
	r.retries.probeForPods(now)
	r.retries.probeOutage(now)
	r.takeDeleteOnTermination(ctx)
}

// learnPrerequisites does what must be known before anything is planned, and tells
// whether something was: limits, the instance's state, what the last process began.
func (r *Reconciler) learnPrerequisites(ctx context.Context, now time.Time) bool {
	switch {
	case r.limitsDue(now):
		r.findLimits(ctx)
	case r.instance.askDue(now, r.retries.closed(gateInstance, now)):
		r.askInstance(ctx)
	case !r.resumed && !r.detachedUnknown():
		r.resume()
	default:
		return false
	}
	return true
}

// plan picks the first step of the current plan whose way is open. What a step
// of growth takes of a subnet is set apart in the moment in which it is chosen.
func (r *Reconciler) plan(ctx context.Context, now time.Time) *step {
	if !r.instance.limitsKnown() || r.instance.stopped {
		return nil
	}
	if p := r.overdueRelease(ctx, now); p != nil {
		return p
	}
	e, reserved := r.decide(now)
	defer func() { reserved.end(0) }() // if no step takes it
	r.placement.exhausted, r.placement.drains = e.plan.Exhausted, e.state.Drain
	r.retries.forgetUnwanted(e.plan.Actions, e.plan.Exhausted || r.growthWaits() || r.attachments.stuck(now), r.trunk.full(now), now)
	r.setDeleteOnTermination(ctx, e.plan.Actions, now)
	for _, a := range e.plan.Actions {
		if r.waits(a, now) {
			continue
		}
		if takes(a) && r.countsDue(now) {
			return &step{Action: plan.Action{Kind: plan.FindSubnets}, priority: cloud.Begun}
		}
		if a.Kind == plan.Create {
			ask, wait := e.routes.missing(r.retries.failed[gateRoutes], now)
			if ask {
				return &step{Action: plan.Action{Kind: plan.FindRoutes}, priority: cloud.Begun}
			}
			if wait {
				continue
			}
		}
		p := &step{Action: a, priority: priority(a, e.plan), tidies: e.plan.Moves(a) || r.mayWait(a)}
		if reserved.isFor(a) {
			p.reserved, reserved = reserved, nil
		}
		if r.prepare(ctx, p, now) {
			return p
		}
		p.reserved.end(0)
	}
	r.evaluation = e
	// A full subnet is asked about again, however little the plan can do.
	if e.plan.Exhausted && r.countsDue(now) {
		return &step{Action: plan.Action{Kind: plan.FindSubnets}}
	}
	for _, k := range r.placement.unknown(now) {
		if !r.retries.closed(gateOfKind[k], now) {
			return &step{Action: plan.Action{Kind: k}}
		}
	}
	return nil
}

// takes tells whether an action takes addresses of a subnet, or finishes what did.
func takes(a plan.Action) bool { return gateOfKind[a.Kind] == gateGrow || a.Kind == plan.CreateTrunk }

// countsDue tells whether to ask for the free counts of subnets.
func (r *Reconciler) countsDue(now time.Time) bool {
	return r.placement.stale(now) && !r.retries.closed(gateSubnets, now)
}

// detachedUnknown tells that it is not known yet what of the node is detached: there
// may be an ENI already that can be attached in place of a new one.
func (r *Reconciler) detachedUnknown() bool { return r.process.lists && !r.own.listedDetached }

// evaluation is a state and what the plan made of it.
type evaluation struct {
	state  plan.State
	plan   plan.Plan
	routes routesKnown // what it knew of the subnets' routes
}

// evaluate tells what there is to say of the node now.
func (r *Reconciler) evaluate(now time.Time) *evaluation {
	if r.evaluation != nil {
		return r.evaluation
	}
	s := r.state(now)
	s.Subnets = r.cfg.Shared.Subnets.States(now, r.placement.subnetsInUse(), r.placement.candidates())
	routes := r.placement.markRoutes(s.Subnets)
	return &evaluation{s, plan.Make(r.instance.limits, r.cfg.Policy, s), routes}
}

// decide makes the plan and reserves what its first step of growth takes.
func (r *Reconciler) decide(now time.Time) (e *evaluation, reserved *reservation) {
	e = &evaluation{state: r.state(now)}
	if r.cfg.DrainOutdated { // it matters to a drain what others can have
		e.state.Subnets = r.cfg.Shared.Subnets.States(now, r.placement.subnetsInUse(), r.placement.candidates())
	}
	r.surplus.allow(r.instance.limits, r.cfg.Policy, &e.state, r.cfg.DrainOutdated, now)
	reserved = r.cfg.Shared.Subnets.choose(now, r.placement.subnetsInUse(), r.placement.candidates(), func(list []plan.Subnet) (a plan.Action, subnet string) {
		e.state.Subnets = list
		e.routes = r.placement.markRoutes(list)
		e.plan = plan.Make(r.instance.limits, r.cfg.Policy, e.state)
		for _, a := range e.plan.Actions {
			switch a.Kind {
			case plan.Create, plan.CreateTrunk:
				return a, a.Subnet
			case plan.Assign:
				return a, r.view.enis[a.ENI].SubnetID
			}
		}
		return plan.Action{}, ""
	})
	return e, reserved
}

// priority is that of the call that an action makes: what is begun is finished
// first, then the node that lacks the most begins.
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

// waits tells whether an action of the plan is not for now. A new ENI waits until
// it is known what is detached: that comes next.
func (r *Reconciler) waits(a plan.Action, now time.Time) bool {
	g := gateOfKind[a.Kind]
	return a.Kind == plan.SetDeleteOnTermination || r.retries.closed(g, now) || takes(a) && r.growthWaits() || a.Kind == plan.Create && r.detachedUnknown()
}

// growthWaits tells whether an unfinished step of growth must be resolved
// before more addresses are asked for.
func (r *Reconciler) growthWaits() bool {
	return len(r.lookups.unresolved) > 0 || r.retries.throttled[gateGrow] != nil
}

// state is the view as a plan sees it.
func (r *Reconciler) state(now time.Time) plan.State {
	u := r.cfg.Node.Usage()
	r.compareLinks(u.MissingLinks, now)
	s := plan.State{Waiting: u.Waiting, NoMoreENIs: r.attachments.full(now), PrimaryServes: r.cfg.primaryServes(), Trunk: r.wantedTrunk(now), FollowGroups: r.cfg.FollowGroups, Drain: r.surplus.drains}
	wanted := r.placement.wanted()
	for _, k := range r.view.list() {
		if k.Attachment != nil && k.Attachment.NetworkCard != 0 {
			continue // neither its device index nor the limits are those of the first card
		}
		e := r.eniState(k, u.ENIs[k.ID])
		e.OtherGroups = e.Ours && !e.Primary && !e.Trunk && r.placement.othersThanPrimary(k)
		e.NoLink = r.links.noStock(k.ID, now)
		serves := e.Phase == plan.Detached || e.Index >= r.cfg.Policy.FirstInterfaceIndex
		e.Outdated = e.Ours && !e.Primary && !e.Trunk && serves && wanted.differs(k)
		// Someone else who works for this node may be about to attach it.
		e.JustMade = r.process.sharesNode && e.Phase == plan.Detached && k.replied.IsZero() && now.Sub(k.createdAt()) < r.cfg.Settle
		s.ENIs = append(s.ENIs, e)
	}
	return s
}

// ours tells whether an ENI may be changed and used.
func (r *Reconciler) ours(k *known) bool { return !k.ambiguous && k.facts.ours() }

func (r *Reconciler) eniState(k *known, u ENIUsage) plan.ENI {
	e := plan.ENI{
		ID: k.ID, Subnet: k.SubnetID, Index: k.index(), Phase: k.phase(),
		Primary: primary(k.Attachment), Ours: r.ours(k), Trunk: k.trunk,
		PrimaryServes: r.cfg.primaryServes() && !primary(k.Attachment) && r.ours(k),
		Amount:        cloud.AmountOf(k.kept()), Withdrawn: cloud.AmountOf(sortedKeys(k.releasing)).Plus(k.disputed), OwnIPv6: k.ownIPv6,
		Used: u.Used, Cooling: u.Cooling, Free: u.Free,
	}
	if _, ok := r.view.detaching[k.ID]; ok && e.Phase == plan.Attached {
		e.Phase = plan.Detaching // its detachment may be under way: no supply, and not asked for twice
	}
	e.Refused = k.refusals >= attachTries
	if k.Attachment != nil && k.Attachment.ID != "" {
		e.WrongDeleteOnTermination = k.Attachment.DeleteOnTermination == r.cfg.KeepENIs
		e.WrongTags = k.instanceTag != r.cfg.InstanceID
	}
	return e
}
