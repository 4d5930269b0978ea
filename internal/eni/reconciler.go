package eni

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni/plan"
)

// Reconciler brings one node's ENIs to its policy. Reconcile (or Run) is
// called by one goroutine at a time; Kick, Status and Seed by any.
type Reconciler struct {
	cfg    Config
	kick   chan struct{}
	roused chan struct{} // by Kick too, for who watches a step

	// What follows belongs to the goroutine in Reconcile.
	view        *view
	lister      Lister
	passive     bool // someone else lists for repair
	limits      cloud.Limits
	itype       string
	typed       bool                 // and that is sure: the cloud said so, or the instance itself
	limitsOf    string               // the instance type of limits, once the cloud said
	zone, vpc   string               // as the cloud says
	replied     time.Time            // when a reply last gave the node something
	confirmed   time.Time            // last full observation
	heard       Listing              // the first of node mode, while what it takes besides fails
	observeAt   time.Time            // when the next is due
	lookAt      map[string]time.Time // ENIs to describe singly, and when
	collectAt   time.Time
	orphans     Sightings      // detached ENIs of others
	pending     map[gate]*step // throttled steps: each comes next of its kind, as it was
	astray      bool           // the cloud contradicted the view: nothing is planned before it was observed
	astrayAt    time.Time      // since when
	silent      bool           // in doubt: nothing is published before it was observed
	quietUntil  time.Time      // in doubt: not observed before
	missing     int            // listings in a row without the instance
	missedAt    time.Time      // the first of them
	vanished    bool           // the cloud says that the instance is no more
	uncertain   bool           // the instance may be stopped
	suspectedAt time.Time      // when somebody last said so
	askAt       time.Time      // when the instance is asked for once more, as the last answer may trail; zero: it may not
	absentAt    time.Time      // since when the cloud does not know the instance when asked; zero: it does
	stopped     bool           // it is
	unsure      map[string]unsureAssign
	odd         map[string]bool      // what was told of listings that cannot be true
	leaving     map[string]time.Time // ENIs withdrawn from the node, the detachment not confirmed
	subnetsAt   time.Time            // as of when free counts are known
	recount     time.Time            // free counts must be newer
	starved     bool                 // the node would grow if its subnets had room
	refusedAt   time.Time            // until when no ENI is attached: the cloud said the instance is full
	abandoned   int                  // ENIs in a row that could not be attached
	retryAt     time.Time            // when a full subnet is worth another try
	ways        wayKnown             // of the last plan
	excess      plan.Lasting
	movable     plan.Lasting         // 1 while an ENI is Movable
	judged      *judgement           // of the last plan, while nothing changed since
	deletions   map[string]*deletion // under way, by ENI
	gates       map[gate]*backoff
	probe       probe // of gates, for pods that wait
	resumed     bool  // a stored intent was looked for

	doubted   atomic.Bool     // see Doubt
	suspected atomic.Bool     // see Suspect
	life      context.Context // ends with End or Close
	kill      context.CancelFunc
	work      sync.WaitGroup // of Beside, where Run is used

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
		cfg: cfg, kick: make(chan struct{}, 1), roused: make(chan struct{}, 1), view: newView(cfg.Settle), limits: cfg.Limits, itype: cfg.InstanceType,
		lookAt: map[string]time.Time{}, leaving: map[string]time.Time{}, unsure: map[string]unsureAssign{}, odd: map[string]bool{}, gates: map[gate]*backoff{},
		pending: map[gate]*step{}, orphans: Sightings{}, astray: true, lister: cfg.Lister, passive: cfg.Lister != nil,
		deletions: map[string]*deletion{},
	}
	r.life, r.kill = context.WithCancel(context.Background())
	if cfg.Beside == nil {
		r.cfg.Beside = func(work func()) { r.work.Go(func() { work(); r.Kick() }) }
	}
	if !r.passive {
		r.lister = &ownLister{cfg: &r.cfg}
		r.typed = cfg.InstanceType != "" // of this very instance, as its metadata service says
	}
	return r, nil
}

// Kick says that something may have to be done now: pods wait or went, a
// withdrawal was confirmed. It never blocks.
func (r *Reconciler) Kick() {
	for _, c := range [...]chan struct{}{r.kick, r.roused} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
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
// them: until no kick came for BurstWindow, and at most ten times as long.
func (r *Reconciler) gather(ctx context.Context) error {
	latest := r.cfg.Clock.Now().Add(10 * r.cfg.BurstWindow)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.cfg.Clock.After(r.cfg.BurstWindow):
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
	r.cfg.Outage.leave(r, now)
	r.cfg.Observer.Reconciled(now.Sub(start))
	return r.wake(now)
}

// next does the one most urgent thing that is due, and tells whether there may
// be more. A plan on a guess is a wrong plan, so observing comes first while
// the view is known to be wrong; a listing that is for repair only comes last
// and keeps nobody waiting, also while EC2 refuses it.
func (r *Reconciler) next(ctx context.Context) bool {
	now := r.cfg.Clock.Now()
	r.judged = nil
	r.heedDoubt(now)
	r.heedSuspicion(now)
	r.heedWaiters(now)
	r.heedOutage(now)
	r.takeDeletions(ctx)
	if r.vanished {
		return false
	}
	r.relent(ctx)
	blind, listing := r.closed(gateObserve, now), !r.passive && !r.observeAt.After(now)
	if r.silent {
		return !blind && !r.quietUntil.After(now) && r.observe(ctx)
	}
	if p := r.again(now); p != nil {
		if !r.renew(ctx, p, now) {
			p.hold.end(0)
			return true
		}
		return r.try(ctx, p)
	}
	if r.astray {
		return !blind && r.observe(ctx)
	}
	if id, ok := r.lookDue(now, true); ok && !blind {
		return r.look(ctx, id)
	}
	if r.acquaint(ctx, now) {
		return true
	}
	if p := r.plan(ctx, now); p != nil {
		return r.try(ctx, p)
	}
	if listing && !blind {
		return r.observe(ctx)
	}
	if id, ok := r.lookDue(now, false); ok && !blind {
		return r.look(ctx, id)
	}
	if r.collectDue(now) {
		r.collect(ctx)
		return true
	}
	return false
}

// acquaint does what must be known before anything is planned, and tells
// whether something was: limits, the instance's state, what the last process began.
func (r *Reconciler) acquaint(ctx context.Context, now time.Time) bool {
	switch {
	case r.limitsDue(now) && r.learn(ctx):
	case r.askDue(now):
		r.ask(ctx)
	case !r.resumed:
		r.resume()
	default:
		return false
	}
	return true
}

// again takes the throttled step whose time has come, growth first.
func (r *Reconciler) again(now time.Time) *step {
	for _, g := range [...]gate{gateGrow, gateShrink, gateDelete, gateRepair} {
		if p := r.pending[g]; p != nil && !r.closed(g, now) {
			delete(r.pending, g)
			return p
		}
	}
	return nil
}

// plan picks the first step of the current plan whose way is open. What a step
// of growth takes of a subnet is set apart in the moment in which it is chosen.
func (r *Reconciler) plan(ctx context.Context, now time.Time) *step {
	if !r.limitsKnown() || r.stopped {
		return nil
	}
	if p := r.unfinished(ctx, now); p != nil {
		return p
	}
	s, d, hold := r.decide(now)
	r.starved = d.Starved
	r.healUnwanted(d.Actions, now)
	r.setDeletions(ctx, d.Actions, now)
	for _, a := range d.Actions {
		g := gateOf(a.Kind)
		if a.Kind == plan.KeepWithVM || r.closed(g, now) || g == gateGrow && r.growthWaits() {
			continue
		}
		if g == gateGrow && r.subnetsStale(now) && !r.closed(gateSubnets, now) {
			hold.end(0)
			return &step{Action: plan.Action{Kind: plan.FindSubnets}, priority: cloud.Begun}
		}
		if a.Kind == plan.Create {
			ask, wait := r.routesMissing(r.ways, now)
			if ask {
				hold.end(0)
				return &step{Action: plan.Action{Kind: plan.FindRoutes}, priority: cloud.Begun}
			}
			if wait {
				continue
			}
		}
		p := &step{Action: a, priority: r.priority(a, d)}
		if hold.is(a) {
			p.hold, hold = hold, nil
		}
		if r.prepare(ctx, p, now) {
			hold.end(0)
			return p
		}
		p.hold.end(0)
	}
	hold.end(0)
	r.judged = &judgement{s, d}
	// A full subnet is asked about again, however little the plan can do.
	if r.starved && r.subnetsStale(now) && !r.closed(gateSubnets, now) {
		return &step{Action: plan.Action{Kind: plan.FindSubnets}}
	}
	return nil
}

// judgement is a state and what the plan made of it.
type judgement struct {
	state plan.State
	plan  plan.Plan
}

// judge tells what there is to say of the node now.
func (r *Reconciler) judge(now time.Time) *judgement {
	if r.judged != nil {
		return r.judged
	}
	s := r.state(now)
	s.Subnets = r.cfg.Subnets.States(now, r.relevant(), r.forNew())
	r.mark(s.Subnets)
	return &judgement{s, plan.Make(r.limits, r.cfg.Policy, s)}
}

// decide makes the plan and reserves what its first step of growth takes.
func (r *Reconciler) decide(now time.Time) (s plan.State, d plan.Plan, hold *reservation) {
	s = r.state(now)
	s.Release = r.excess.Allow(plan.Excess(r.limits, r.cfg.Policy, s), now, r.cfg.ShrinkDelay)
	movable := 0
	if plan.Movable(r.limits, r.cfg.Policy, s) {
		movable = 1
	}
	s.Moves = r.movable.Allow(movable, now, r.cfg.ShrinkDelay) > 0
	hold = r.cfg.Subnets.choose(now, r.relevant(), r.forNew(), func(list []plan.Subnet) (a plan.Action, subnet string) {
		s.Subnets = list
		r.ways = r.mark(s.Subnets)
		d = plan.Make(r.limits, r.cfg.Policy, s)
		for _, a := range d.Actions {
			switch a.Kind {
			case plan.Create:
				return a, a.Subnet
			case plan.Assign:
				return a, r.view.enis[a.ENI].SubnetID
			}
		}
		return plan.Action{}, ""
	})
	return s, d, hold
}

// priority is that of the call that an action makes: what is begun is finished
// first, then the node that lacks the most begins.
func (r *Reconciler) priority(a plan.Action, d plan.Plan) cloud.Priority {
	switch a.Kind {
	case plan.Attach, plan.Retag:
		return cloud.Begun
	case plan.Assign, plan.Create:
		return min(cloud.Priority(d.Needed), cloud.Begun-1)
	default:
		return 0
	}
}

// growthWaits tells whether an unfinished step of growth must be resolved
// before more addresses are asked for.
func (r *Reconciler) growthWaits() bool { return len(r.unsure) > 0 || r.pending[gateGrow] != nil }

// state is the view as a plan sees it.
func (r *Reconciler) state(now time.Time) plan.State {
	u := r.cfg.Node.Usage()
	s := plan.State{Waiting: u.Waiting, NoMoreENIs: r.refusedAt.After(now), PrimaryServes: r.cfg.UsePrimaryAddress}
	for _, k := range r.view.list() {
		if k.Attachment != nil && k.Attachment.NetworkCard != 0 {
			continue // neither its device index nor the limits are those of the first card
		}
		e := r.eniState(k, u.ENIs[k.ID])
		// Someone else who works for this node may be about to attach it.
		e.Young = r.passive && e.Phase == plan.Detached && k.replied.IsZero() && now.Sub(createdAt(k.ENI)) < r.cfg.Settle
		s.ENIs = append(s.ENIs, e)
	}
	return s
}

// ours tells whether an ENI may be changed and used.
func (r *Reconciler) ours(k *known) bool { return !k.double && ours(k.ENI, r.cfg.Cluster) }

func (r *Reconciler) eniState(k *known, u ENIUsage) plan.ENI {
	e := plan.ENI{
		ID: k.ID, Subnet: k.SubnetID, Index: k.index(), Phase: k.phase(),
		Primary: primary(k.ENI), Ours: r.ours(k),
		PrimaryServes: r.cfg.UsePrimaryAddress && !primary(k.ENI) && r.ours(k),
		Amount:        amountOf(k.things()), Withdrawn: len(k.releasing) + k.disputed,
		Used: u.Used, Cooling: u.Cooling, Free: u.Free,
	}
	if _, ok := r.leaving[k.ID]; ok && e.Phase == plan.Attached {
		e.Phase = plan.Detaching // its detachment may be under way: no supply, and not asked for twice
	}
	for p := range k.releasing {
		if p.IsSingleIP() {
			e.Addresses--
		} else {
			e.Prefixes--
		}
	}
	e.Refused = k.refusals >= attachTries
	if k.Attachment != nil && k.Attachment.ID != "" {
		e.WrongDeletion = k.Attachment.DeleteOnTermination == r.cfg.KeepENIs
		e.WrongTags = k.Tags[TagInstanceID] != r.cfg.InstanceID
	}
	return e
}

// idle is how long a reconciler rests that someone else wakes.
const idle = 24 * time.Hour

// wake tells how long nothing needs to be done.
func (r *Reconciler) wake(now time.Time) time.Duration {
	at := r.observeAt
	if r.passive {
		at = now.Add(idle)
	}
	if r.vanished {
		return idle
	}
	if b := r.gates[gateObserve]; b != nil && !at.After(now) {
		at = b.until
	}
	sooner := func(t time.Time) {
		if t.After(now) && t.Before(at) {
			at = t
		}
	}
	for _, t := range r.lookAt {
		sooner(t)
	}
	for _, b := range r.gates {
		sooner(b.until)
		sooner(b.probe)
	}
	for _, u := range r.unsure {
		sooner(u.until)
	}
	sooner(r.excess.Due(r.cfg.ShrinkDelay))
	sooner(r.movable.Due(r.cfg.ShrinkDelay))
	sooner(r.collectAt)
	sooner(r.refusedAt)
	sooner(r.retryAt)
	sooner(r.quietUntil)
	sooner(r.probe.at)
	sooner(r.askAt)
	if r.starved {
		sooner(r.subnetsAt.Add(r.subnetsAge()))
	}
	return max(0, at.Sub(now))
}
