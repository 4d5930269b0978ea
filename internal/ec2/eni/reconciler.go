package eni

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/placement"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/retry"
)

// Reconciler brings one node's ENIs to its policy. It decides what comes next; its
// parts do it, each with a state of its own. Reconcile (or Run) is called by one
// goroutine at a time, to which all parts belong but for the fields that say otherwise.
// Kick, Status, Reconfigure, Invalidate, CheckInstance and End may be called by any.
type Reconciler struct {
	cfg     Config
	loop    loop
	changes changes
	demand  demand

	view       *view      // the node's ENIs
	confidence confidence // ... whether it can be trusted
	instance   instance
	retries    retries
	placement  placement.Selector
	refusals   refusals

	observer     observer
	planning     planning
	actor        actor
	terminations terminations
	orphans      orphans

	status reporter
}

// loop is what wakes a reconciler and ends it.
type loop struct {
	kick   retry.Signal
	ended  context.Context // with End or Close
	end    context.CancelFunc
	beside sync.WaitGroup // calls that no pass waits for; of fleetOfOne
}

// New checks the configuration and returns a reconciler that has observed
// nothing yet.
func New(cfg Config) (*Reconciler, error) {
	if err := cfg.withDefaults(); err != nil {
		return nil, fmt.Errorf("ENI reconciler: %w", err)
	}
	r := &Reconciler{cfg: cfg, view: newView(cfg.Settle, cfg.Lag)}
	r.loop.kick = retry.NewSignal()
	r.loop.ended, r.loop.end = context.WithCancel(context.Background())
	r.instance.lag, r.instance.typ = cfg.Lag, cfg.InstanceType
	if r.cfg.process = ofFleet; cfg.Fleet == nil {
		r.cfg.process = ofOneNode
		r.observer.own = &ownLister{cfg: &r.cfg}
		r.cfg.Fleet = r.fleetOfOne()
		r.instance.typeKnown = cfg.InstanceType != "" // of this very instance, as its metadata service says
	}
	r.confidence.lag, r.confidence.viewStale = cfg.Lag, true
	r.demand = demand{node: cfg.Node, process: r.cfg.process, news: retry.NewSignal()}
	r.retries = newRetries(&r.cfg)
	r.placement = *placement.NewSelector(cfg.Shared.Catalog, cfg.placement(), r.view, r.cfg.process.sharesCounts, cfg.Clock, r.cfg.Fleet.Lister.Subnets)
	r.refusals = refusals{cfg: &r.cfg, view: r.view}
	r.orphans = orphans{cfg: &r.cfg, retries: &r.retries, seen: Sightings{}}
	r.planning = planning{
		cfg: &r.cfg, view: r.view, instance: &r.instance, placement: &r.placement, refusals: &r.refusals,
		surplus: surplus{delay: cfg.ShrinkDelay},
	}
	p := &publisher{cfg: &r.cfg, view: r.view, confidence: &r.confidence, instance: &r.instance, ended: r.Ended}
	r.observer = observer{
		cfg: &r.cfg, view: r.view, confidence: &r.confidence, instance: &r.instance, retries: &r.retries,
		placement: &r.placement, publisher: p, own: r.observer.own,
		releases: &releases{cfg: &r.cfg, view: r.view, publisher: p, retries: &r.retries},
	}
	r.actor = actor{
		cfg: &r.cfg, view: r.view, confidence: &r.confidence, observer: &r.observer, retries: &r.retries, refusals: &r.refusals,
		placement: &r.placement, releases: r.observer.releases, publisher: p, demand: &r.demand, surplus: &r.planning.surplus, report: r.report,
		replies:   &replies{view: r.view, subnets: cfg.Shared.Catalog.Subnets, elsewhere: r.cfg.Fleet.Elsewhere, instance: cfg.InstanceID},
		creations: &creations{cfg: &r.cfg, view: r.view},
	}
	r.terminations = terminations{
		cfg: &r.cfg, view: r.view, observer: &r.observer, retries: &r.retries, ended: r.loop.ended, calls: map[string]*terminationCall{},
	}
	r.changes = changes{configure: r.Configure, current: func() Settings { return r.cfg.Settings }, inventory: func() (inv Inventory, known bool) {
		if !r.instance.limitsKnown() {
			return inv, false
		}
		return p.inventory(), true
	}}
	return r, nil
}

// Kick says that something may have to be done now: pods wait or ended, a
// withdrawal was confirmed. It never blocks.
func (r *Reconciler) Kick() {
	r.loop.kick.Set()
	r.demand.news.Set()
}

// Invalidate says that what was published may not be what the cloud has: nothing
// is published or planned before the next observation, late enough for every reply so
// far to show. It may be called by any goroutine, and from Publish.
func (r *Reconciler) Invalidate() { r.confidence.invalidated.Store(true) }

// CheckInstance says that the instance may have been stopped, or may run again. It is
// asked for before anything else is planned. It may be called by any goroutine.
func (r *Reconciler) CheckInstance() { r.instance.suspected.Store(true) }

// ObserveSince has only observations as of then or later count. It is called
// before the first pass, when someone else worked for the node until then.
func (r *Reconciler) ObserveSince(at time.Time) { r.confidence.staleSince = at }

// Observed takes a listing that was made for many nodes, in the goroutine that
// reconciles. One that is older than what is known is ignored.
func (r *Reconciler) Observed(ctx context.Context, l Listing) {
	if r.Ended() {
		return
	}
	r.observer.observed(ctx, l)
	r.observer.publisher.flush(ctx)
}

// VPCs returns where the node's ENIs are; none while that is not known. It is called
// from the goroutine that reconciles.
func (r *Reconciler) VPCs() []string { return r.placement.VPCs() }

// Configure applies other settings; what is known of the node stays. What waits
// for a person is tried again at once. It is called from the goroutine that
// reconciles. The error names the field, and leaves the settings as they were.
func (r *Reconciler) Configure(s Settings) error {
	before := r.cfg.Settings
	if reflect.DeepEqual(s, before) {
		return nil
	}
	if err := s.Policy.Validate(); err != nil {
		return fmt.Errorf("ENI reconciler: Policy: %w", err)
	}
	if s.InstanceType != before.InstanceType {
		r.instance.retype()
	}
	r.cfg.Settings = s
	r.placement.Configure(s.placement())
	r.retries.forgetConfigured()
	for _, g := range [...]activity{activityGrow, activityTrunk} {
		if p := r.retries.dropRefused(g); p != nil { // another may be needed now
			p.reserved.End(0)
			if p.creates() {
				r.actor.creations.end()
			}
		}
	}
	return nil
}

// End has a pass that is under way do nothing after its present call, and
// publish nothing. Calls beside passes are cancelled. It may be called by any
// goroutine.
func (r *Reconciler) End() { r.loop.end() }

// Ended reports whether End or Close was called.
func (r *Reconciler) Ended() bool { return r.loop.ended.Err() != nil }

// Close ends the reservations that the reconciler holds in what it shares with others.
// It is called once no pass is under way, and none follows.
func (r *Reconciler) Close() {
	r.loop.end()
	for _, p := range r.retries.throttled {
		p.reserved.End(0)
	}
}

// Run reconciles whenever kicked and whenever something is due, until ctx ends.
// Nothing is in flight when it returns.
func (r *Reconciler) Run(ctx context.Context) error {
	defer r.loop.beside.Wait()
	for {
		due := r.cfg.Clock.After(r.Reconcile(ctx))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-due:
		case <-r.loop.kick:
			if err := r.loop.gather(ctx, r.cfg.Clock); err != nil {
				return err
			}
		}
	}
}

// gather waits for a burst of pods to be over, so that one call asks for all of
// them: until no kick came for burstWindow, and at most ten times as long.
func (l *loop) gather(ctx context.Context, c clock.Clock) error {
	latest := c.Now().Add(10 * burstWindow)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.After(burstWindow):
			return nil
		case <-l.kick:
			if !c.Now().Before(latest) {
				return nil
			}
		}
	}
}

// maxSteps bounds one pass; what is left continues with the next.
const maxSteps = 256

// Reconcile does everything that can be done now, and returns when to come back
// at the latest.
func (r *Reconciler) Reconcile(ctx context.Context) time.Duration {
	start := r.cfg.Clock.Now()
	for range maxSteps {
		if ctx.Err() != nil || r.Ended() {
			break
		}
		call, done := r.demand.sparing(ctx)
		more := r.next(call)
		done()
		r.observer.publisher.flush(ctx)
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

// next does the one most urgent thing that is due, and reports whether there may
// be more. A plan on a guess is a wrong plan, so observing comes first while
// the view is known to be wrong. A listing for repair comes last and keeps
// nobody waiting, also while EC2 refuses it.
func (r *Reconciler) next(ctx context.Context) bool {
	now := r.cfg.Clock.Now()
	r.planning.reset()
	r.takeNews(now)
	if r.instance.vanished {
		return false
	}
	r.actor.releases.cancelForPods()
	r.observer.publisher.flush(ctx) // before a call that may take long
	mayObserve := !r.retries.blocked(activityObserve, now)
	if r.confidence.publishHeld {
		return mayObserve && r.confidence.mayObserve(now) && r.observe(ctx)
	}
	if p := r.retries.again(now); p != nil {
		if r.prepareAgain(ctx, p, now) {
			r.actor.try(ctx, p)
		} else {
			p.reserved.End(0)
		}
		return true
	}
	if r.confidence.viewStale {
		return mayObserve && r.observe(ctx)
	}
	if id, ok := r.view.lookups.next(now, true); ok && mayObserve {
		r.observer.lookUp(ctx, id)
		return true
	}
	if r.learnPrerequisites(ctx, now) {
		return true
	}
	if p := r.choose(ctx, now); p != nil {
		r.actor.try(ctx, p)
		return true
	}
	return r.tidy(ctx, now, mayObserve)
}

// observe lists the node's ENIs. It always returns true: there may be more to do.
func (r *Reconciler) observe(ctx context.Context) bool {
	r.observer.observe(ctx)
	r.orphans.begin(r.confidence.confirmed)
	return true
}

// tidy is the end of next: what keeps nobody waiting.
func (r *Reconciler) tidy(ctx context.Context, now time.Time, mayObserve bool) bool {
	if r.observer.repairDue(now) && mayObserve {
		return r.observe(ctx)
	}
	if id, ok := r.view.lookups.next(now, false); ok && mayObserve {
		r.observer.lookUp(ctx, id)
		return true
	}
	if r.orphans.collectDue(now) {
		r.orphans.collect(ctx)
		return true
	}
	return false
}

// takeNews applies what other goroutines said since the last step.
func (r *Reconciler) takeNews(now time.Time) {
	if r.confidence.applyInvalidation(now) {
		if p := r.retries.throttled[activityShrink]; p != nil && !p.lost { // the next plan decides again
			delete(r.retries.throttled, activityShrink)
		}
	}
	if r.instance.applySuspicion(now) {
		r.retries.retryNow(activityInstance, now)
	}
	r.changes.apply()
	r.retries.probeForPods(now)
	r.retries.probeOutage(now)
	r.terminations.take()
}

// learnPrerequisites does what must be known before anything is planned, and reports
// whether there was something: limits, the instance's state, what the last process began.
func (r *Reconciler) learnPrerequisites(ctx context.Context, now time.Time) bool {
	switch {
	case r.observer.limitsDue(now):
		r.observer.findLimits(ctx)
	case r.instance.askDue(now, r.retries.blocked(activityInstance, now)):
		r.observer.askInstance(ctx)
	case !r.actor.creations.resumed && !r.observer.detachedUnknown():
		if p := r.actor.creations.resume(); p != nil {
			r.retries.throttled[activityGrow] = p
		}
	default:
		return false
	}
	return true
}

// choose returns the first step of the current plan that can be made now; nil: none. The
// addresses that a step of growth takes are reserved in the moment in which it is chosen.
func (r *Reconciler) choose(ctx context.Context, now time.Time) *step {
	if !r.instance.limitsKnown() || r.instance.stopped {
		return nil
	}
	if p := r.actor.releases.overdue(ctx, now); p != nil {
		return p
	}
	e, reserved := r.planning.decide(now)
	defer func() { reserved.End(0) }() // if no step takes it
	growing := e.plan.Exhausted || r.growthWaits() || r.refusals.pods.stuck(now)
	r.retries.forgetUnwanted(e.plan.Actions, growing, r.refusals.trunk.full(now), now)
	r.terminations.set(ctx, e.plan.Actions, now)
	for _, a := range e.plan.Actions {
		if r.waits(a, now) {
			continue
		}
		if takes(a) && r.countsDue(now) {
			return &step{Action: plan.Action{Kind: plan.FindSubnets}, priority: cloud.Begun}
		}
		if a.Kind == plan.Create {
			ask, wait := e.routes.Missing(r.retries.routes(now))
			if ask {
				return &step{Action: plan.Action{Kind: plan.FindRoutes}, priority: cloud.Begun}
			}
			if wait {
				continue
			}
		}
		p := &step{Action: a, priority: priority(a, e.plan), tidies: e.plan.Moves(a) || r.demand.mayRecall(a)}
		if reserved.IsFor(a) {
			p.reserved, reserved = reserved, nil
		}
		if r.prepare(ctx, p, now) {
			return p
		}
		p.reserved.End(0)
	}
	r.planning.keep(e)
	// A full subnet is asked about again, however little the plan can do.
	if e.plan.Exhausted && r.countsDue(now) {
		return &step{Action: plan.Action{Kind: plan.FindSubnets}}
	}
	for _, k := range r.placement.Unknown(now) {
		if !r.retries.blocked(activityOf[k], now) {
			return &step{Action: plan.Action{Kind: k}}
		}
	}
	return nil
}

// takes reports whether an action takes addresses of a subnet, or finishes what did.
func takes(a plan.Action) bool {
	return activityOf[a.Kind] == activityGrow || a.Kind == plan.CreateTrunk
}

// countsDue reports whether to ask for the free counts of subnets.
func (r *Reconciler) countsDue(now time.Time) bool {
	return r.placement.CountsStale(now) && !r.retries.blocked(activitySubnets, now)
}

// waits reports whether an action of the plan is not for now. A new ENI waits until
// it is known what is detached: that comes next.
func (r *Reconciler) waits(a plan.Action, now time.Time) bool {
	return a.Kind == plan.SetDeleteOnTermination || r.retries.blocked(activityOf[a.Kind], now) ||
		takes(a) && r.growthWaits() || a.Kind == plan.Create && r.observer.detachedUnknown()
}

// growthWaits reports whether an unfinished step of growth must be resolved
// before more addresses are asked for.
func (r *Reconciler) growthWaits() bool {
	return r.view.lookups.blockGrowth() || r.retries.throttled[activityGrow] != nil
}

// prepare readies a step: what leaves is withdrawn from the node first, a creation
// is recorded first. It reports whether the call can be made now.
func (r *Reconciler) prepare(ctx context.Context, p *step, now time.Time) bool {
	switch p.Kind {
	case plan.Unassign, plan.Detach:
		return r.actor.releases.prepare(ctx, p, now)
	case plan.Assign:
		p.Subnet = r.view.enis[p.ENI].SubnetID
	case plan.Create, plan.CreateTrunk:
		groups, err := r.placement.FindGroups(ctx)
		if err == nil {
			p.intent, err = r.actor.creations.begin(p.Action, groups, now)
		}
		if err != nil {
			r.retries.fail(p.Kind, err, now, r.retries.wait(activityOf[p.Kind], cmp.Or(cloud.ClassOf(err), cloud.Bug)))
			return false
		}
	}
	return true
}

// prepareAgain readies a throttled step for another try: it may have become pointless
// by what was observed since.
func (r *Reconciler) prepareAgain(ctx context.Context, p *step, now time.Time) bool {
	switch p.Kind {
	case plan.Create, plan.CreateTrunk, plan.FindSubnets, plan.FindRoutes, plan.FindGroups:
		return true
	}
	k, ok := r.view.enis[p.ENI]
	want := plan.Attached
	if p.attaches() || p.Kind == plan.Delete {
		want = plan.Detached
	}
	if !ok || k.phase() != want {
		return false
	}
	return !p.returns() || r.actor.releases.prepareAgain(ctx, p, k, now)
}

// timed is a part of the reconciler that has something to do at a time of its
// own, without an event.
type timed interface {
	// due returns the first moment after now at which there may be something to do;
	// zero: there is none.
	due(now time.Time) time.Time
}

// timers returns all parts that have times of their own
// (TestEveryTimedPartIsAmongTheTimers).
func (r *Reconciler) timers() []timed {
	return []timed{&r.confidence, &r.instance, &r.retries, &r.refusals, &r.planning, &r.orphans}
}

// idle is how long a reconciler rests that someone else wakes.
const idle = 24 * time.Hour

// wake returns how long nothing needs to be done.
func (r *Reconciler) wake(now time.Time) time.Duration {
	if r.instance.vanished {
		return idle
	}
	if r.observer.repairDue(now) && !r.retries.blocked(activityObserve, now) {
		return 0
	}
	first := retry.Earliest(now, r.placement.Due(now), r.view.lookups.due(now))
	for _, t := range r.timers() {
		first = retry.Earliest(now, first, t.due(now))
	}
	if first.IsZero() {
		return idle
	}
	return min(idle, first.Sub(now))
}
