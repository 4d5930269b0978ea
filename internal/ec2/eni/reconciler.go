package eni

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/eni/placement"
	"github.com/berthnet/berth/internal/retry"
)

// Reconciler reconciles one node's ENIs with its policy. It decides what to do next; its parts do it, each with its
// own state. Reconcile (or Run) is called by one goroutine at a time, to which all parts belong except the fields
// marked otherwise. Kick, Status, Reconfigure, Invalidate, CheckInstance and End may be called from any goroutine.
type Reconciler struct {
	cfg     Config
	loop    loop
	changes changes
	demand  demand

	view      *view // the node's ENIs
	instance  instance
	retries   retries
	placement placement.Selector
	refusals  refusals

	observer     observer
	planning     planning
	actor        actor
	terminations terminations
	orphans      orphans

	status reporter
}

// loop wakes and ends a reconciler.
type loop struct {
	kick   retry.Signal
	ended  context.Context // canceled by End or Close
	end    context.CancelFunc
	beside sync.WaitGroup // calls that no pass waits for; used by fleetOfOne
}

// New checks the configuration and returns a reconciler that has observed nothing yet.
func New(cfg Config) (*Reconciler, error) {
	if err := cfg.withDefaults(); err != nil {
		return nil, fmt.Errorf("ENI reconciler: %w", err)
	}
	r := &Reconciler{cfg: cfg, view: newView(cfg.Settle, cfg.Lag)}
	r.loop.kick = retry.NewSignal()
	r.loop.ended, r.loop.end = context.WithCancel(context.Background()) //nolint:fatcontext // the life of the reconciler
	r.instance.lag, r.instance.typ = cfg.Lag, cfg.InstanceType
	if r.cfg.process = ofFleet; cfg.Fleet == nil {
		r.cfg.process = ofOneNode
		r.observer.own = &ownLister{cfg: &r.cfg}
		r.cfg.Fleet = r.fleetOfOne()
		r.instance.hasType(cfg.InstanceType) // from the metadata service of this instance
	}
	r.demand = demand{node: cfg.Node, process: r.cfg.process, news: retry.NewSignal()}
	r.retries = newRetries(&r.cfg)
	r.placement = *placement.NewSelector(cfg.Shared.Catalog, cfg.placement(), r.view, r.cfg.process.sharesCounts, cfg.Clock, r.cfg.Fleet.Lister.Subnets)
	r.refusals = refusals{cfg: &r.cfg, view: r.view}
	r.orphans = orphans{cfg: &r.cfg, retries: &r.retries, seen: Sightings{}}
	p := &publisher{cfg: &r.cfg, view: r.view, instance: &r.instance, ended: r.Ended}
	r.observer = observer{
		cfg: &r.cfg, view: r.view, instance: &r.instance, retries: &r.retries,
		placement: &r.placement, publisher: p, demand: &r.demand, own: r.observer.own,
		releases: &releases{cfg: &r.cfg, view: r.view, publisher: p, retries: &r.retries},
	}
	r.actor = actor{
		cfg: &r.cfg, view: r.view, observer: &r.observer, retries: &r.retries, refusals: &r.refusals,
		placement: &r.placement, releases: r.observer.releases, publisher: p, demand: &r.demand, surplus: &r.planning.surplus, report: r.report,
		replies:   &replies{view: r.view, subnets: cfg.Shared.Catalog.Subnets, elsewhere: r.cfg.Fleet.Elsewhere, instance: cfg.InstanceID},
		creations: &creations{cfg: &r.cfg, view: r.view},
	}
	r.terminations = terminations{
		cfg: &r.cfg, view: r.view, observer: &r.observer, retries: &r.retries, ended: r.loop.ended, calls: map[string]*terminationCall{},
	}
	r.planning = planning{
		cfg: &r.cfg, view: r.view, instance: &r.instance, placement: &r.placement, refusals: &r.refusals, retries: &r.retries,
		observer: &r.observer, releases: r.actor.releases, creations: r.actor.creations, terminations: &r.terminations, demand: &r.demand,
		surplus: surplus{delay: cfg.ShrinkDelay},
	}
	r.changes = changes{
		configure: func(ctx context.Context, s Settings) error {
			before := r.cfg.Settings
			if err := r.Configure(s); err != nil {
				return err
			}
			serves := before.Policy.FirstInterfaceIndex != s.Policy.FirstInterfaceIndex || before.primaryServes() != s.primaryServes()
			if serves && !r.view.freshness.unconfirmed() {
				p.changed() // otherwise the next observation is published
				p.flush(ctx)
			}
			return nil
		},
		current: func() Settings { return r.cfg.Settings },
		inventory: func() (inv Inventory, known bool) {
			if !r.instance.limitsKnown() {
				return inv, false
			}
			return p.inventory(), true
		},
	}
	return r, nil
}

// Kick reports that there may be something to do now: pods wait or have ended, a withdrawal was confirmed. It never
// blocks.
func (r *Reconciler) Kick() {
	r.loop.kick.Set()
	r.demand.news.Set()
}

// Invalidate reports that the published inventory may differ from the cloud: nothing is published or planned before
// the next observation, which is made late enough to show every reply so far. It may be called from any goroutine,
// and from Publish.
func (r *Reconciler) Invalidate() { r.view.freshness.invalidated.Store(true) }

// CheckInstance reports that the instance may have been stopped or started. It is described before anything else is
// planned. It may be called from any goroutine.
func (r *Reconciler) CheckInstance() { r.instance.suspected.Store(true) }

// ObserveSince disregards observations from before at. It is called before the first pass if another process has
// served the node until then.
func (r *Reconciler) ObserveSince(at time.Time) { r.view.freshness.onlySince(at) }

// Observed processes a listing made for many nodes, on the reconciler's goroutine. It ignores one older than the
// known state.
func (r *Reconciler) Observed(ctx context.Context, l Listing) {
	if r.Ended() {
		return
	}
	r.observer.observed(ctx, l)
	r.observer.publisher.flush(ctx)
}

// Supplied reports whether the node has a free address, and one for each waiting pod. It is called from the reconciler's
// goroutine.
func (r *Reconciler) Supplied() bool { return r.demand.supplied() }

// VPCs returns the VPCs of the node's ENIs; none while unknown. It is called from the reconciler's goroutine.
func (r *Reconciler) VPCs() []string { return r.placement.VPCs() }

// Configure applies other settings and keeps the known state of the node. Errors that needed human intervention are
// retried immediately. It is called from the reconciler's goroutine. The error names the field, and leaves the
// settings unchanged.
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
		if p := r.retries.dropRefused(g); p != nil { // another step may be needed now
			p.reserved.End(0)
			if p.creates() {
				r.actor.creations.end()
			}
		}
	}
	return nil
}

// End makes a running pass stop after its current call and publish nothing. Calls beside passes are canceled. It may
// be called from any goroutine.
func (r *Reconciler) End() { r.loop.end() }

// Ended reports whether End or Close was called.
func (r *Reconciler) Ended() bool { return r.loop.ended.Err() != nil }

// Close ends the reservations that the reconciler holds in shared state. It is called when no pass is running and
// none will follow.
func (r *Reconciler) Close() {
	r.loop.end()
	r.retries.close()
}

// Run reconciles whenever kicked and whenever something is due, until ctx ends. No call is in flight when it returns.
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

// gather waits for the end of a burst of pods, so that one call requests addresses for all of them: until no kick has
// come for burstWindow, and at most ten times as long.
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

// maxSteps bounds one pass; the rest is left to the next pass.
const maxSteps = 256

// Reconcile does everything that can be done now, and returns the time until it must be called again.
func (r *Reconciler) Reconcile(ctx context.Context) time.Duration {
	start := r.cfg.Clock.Now()
	for range maxSteps {
		if ctx.Err() != nil || r.Ended() {
			break
		}
		call, done := r.demand.yielding(ctx)
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

// next does the most urgent thing that is due, and reports whether there may be more. A plan based on a wrong view is
// wrong, so observing comes first while the view is known to be wrong. A listing for repair comes last and blocks
// nothing, even while EC2 refuses it.
func (r *Reconciler) next(ctx context.Context) bool {
	now := r.cfg.Clock.Now()
	r.planning.reset()
	r.takeNews(ctx, now)
	if r.instance.vanished {
		return false
	}
	r.actor.releases.cancelForPods()
	r.observer.publisher.flush(ctx) // before a call that may take long
	mayObserve := !r.retries.blocked(activityObserve, now)
	if r.view.freshness.publishHeld {
		return mayObserve && r.view.freshness.mayObserve(now) && r.observe(ctx)
	}
	if p := r.retries.again(now); p != nil {
		if r.planning.prepareAgain(ctx, p, now) {
			r.actor.try(ctx, p)
		} else {
			p.reserved.End(0)
		}
		return true
	}
	if r.view.freshness.stale {
		return mayObserve && r.observe(ctx)
	}
	if id, ok := r.view.lookups.next(now, true); ok && mayObserve {
		r.observer.lookUp(ctx, id)
		return true
	}
	if r.learnPrerequisites(ctx, now) {
		return true
	}
	if p := r.planning.choose(ctx, now); p != nil {
		r.actor.try(ctx, p)
		return true
	}
	return r.tidy(ctx, now, mayObserve)
}

// observe lists the node's ENIs. It always returns true: there may be more to do.
func (r *Reconciler) observe(ctx context.Context) bool {
	r.observer.observe(ctx)
	r.orphans.begin(r.view.freshness.confirmed)
	return true
}

// tidy does the work that keeps no pod waiting.
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

// takeNews applies the news from other goroutines since the last step.
func (r *Reconciler) takeNews(ctx context.Context, now time.Time) {
	if r.view.freshness.applyInvalidation(now) {
		r.retries.drop(activityShrink) // the next plan decides again
	}
	if r.instance.applySuspicion(now) {
		r.retries.retryNow(activityInstance, now)
	}
	r.changes.apply(ctx)
	r.retries.probeForPods(now)
	r.retries.probeOutage(now)
	r.terminations.take()
}

// learnPrerequisites fetches what must be known before planning, and reports whether anything was missing: limits,
// the state of the instance, the last process's creation in flight.
func (r *Reconciler) learnPrerequisites(ctx context.Context, now time.Time) bool {
	switch {
	case r.observer.limitsDue(now):
		r.observer.findLimits(ctx)
	case r.instance.askDue(now, r.retries.blocked(activityInstance, now)):
		r.observer.askInstance(ctx)
	case !r.actor.creations.resumed && !r.observer.detachedUnknown():
		if p := r.actor.creations.resume(); p != nil {
			r.retries.put(p)
		}
	default:
		return false
	}
	return true
}

// timed is a part of the reconciler that may have work at certain times, without an event.
type timed interface {
	// due returns the first moment after now at which there may be something to do; zero if there is none.
	due(now time.Time) time.Time
}

// timers returns all timed parts (TestEveryTimedPartIsAmongTheTimers).
func (r *Reconciler) timers() []timed {
	return []timed{&r.instance, &r.retries, &r.refusals, &r.planning, &r.orphans}
}

// idle is how long a reconciler sleeps if other events wake it.
const idle = 24 * time.Hour

// wake returns the time until there may be something to do.
func (r *Reconciler) wake(now time.Time) time.Duration {
	if r.instance.vanished {
		return idle
	}
	if r.observer.repairDue(now) && !r.retries.blocked(activityObserve, now) {
		return 0
	}
	first := retry.Earliest(now, r.placement.Due(now), r.view.due(now))
	for _, t := range r.timers() {
		first = retry.Earliest(now, first, t.due(now))
	}
	if first.IsZero() {
		return idle
	}
	return min(idle, first.Sub(now))
}
