package eni

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni/plan"
)

// A gate is a group of steps that wait together after a failure, so that
// trouble with one kind does not stop another, and that growth refused in one
// way is not tried in another way instead.
type gate string

const (
	gateObserve  gate = "observe"
	gateGrow     gate = "grow" // assign, create, attach
	gateSubnets  gate = "find-subnets"
	gateRoutes   gate = "find-routes"
	gateShrink   gate = "shrink" // unassign, detach
	gateDelete   gate = "delete"
	gateRepair   gate = "repair" // set-deletion, tag
	gateCollect  gate = "collect"
	gateLimits   gate = "find-limits"
	gateInstance gate = "find-instance"
)

func gateOf(k plan.Kind) gate {
	switch k {
	case plan.Assign, plan.Create, plan.Attach:
		return gateGrow
	case plan.Unassign, plan.Detach:
		return gateShrink
	case plan.Delete:
		return gateDelete
	case plan.Observe:
		return gateObserve
	case plan.FindSubnets:
		return gateSubnets
	case plan.FindRoutes:
		return gateRoutes
	case plan.Collect:
		return gateCollect
	case plan.FindLimits:
		return gateLimits
	case plan.FindInstance:
		return gateInstance
	default:
		return gateRepair
	}
}

// backoff is one gate's waiting time and why it waits.
type backoff struct {
	at       time.Time // of the last failure
	until    time.Time
	probe    time.Time // when it may be opened for pods that wait; see Outage
	failures int       // in a row
	kind     plan.Kind
	class    cloud.Class
	err      error
}

func (r *Reconciler) closed(g gate, now time.Time) bool {
	b := r.gates[g]
	return b != nil && b.until.After(now)
}

// fail closes a gate for wait.
func (r *Reconciler) fail(g gate, kind plan.Kind, err error, now time.Time, wait time.Duration) {
	b := r.gates[g]
	if b == nil {
		b = &backoff{}
		r.gates[g] = b
	}
	b.failures++
	b.kind, b.class, b.err, b.at, b.until = kind, cloud.ClassOf(err), err, now, now.Add(wait)
	if away(b.class) {
		b.probe = now.Add(r.cfg.jitter(probeAway))
		r.cfg.Outage.leave(r, now)
	} else {
		r.cfg.Outage.answered(r, g, now)
	}
	r.cfg.Logger.Warn("step failed", "step", string(kind), "class", b.class.String(), "error", err, "retryIn", wait.String())
}

// note remembers trouble that leaves another way open: no gate closes.
func (r *Reconciler) note(g gate, kind plan.Kind, err error, now time.Time) {
	r.fail(g, kind, err, now, 0)
}

// heal forgets a gate's trouble after a success.
func (r *Reconciler) heal(g gate) {
	delete(r.gates, g)
	r.cfg.Outage.answered(r, g, r.cfg.Clock.Now())
}

// healUnwanted forgets trouble with steps that nothing asks for any more.
func (r *Reconciler) healUnwanted(actions []plan.Action, now time.Time) {
	wanted := map[gate]bool{gateGrow: r.starved || r.growthWaits() || r.abandoned > 1 && r.refusedAt.After(now)}
	for _, a := range actions {
		wanted[gateOf(a.Kind)] = true
		wanted[gateRoutes] = wanted[gateRoutes] || a.Kind == plan.Create
	}
	for _, g := range [...]gate{gateGrow, gateRoutes, gateShrink, gateDelete, gateRepair} {
		if !wanted[g] && !r.closed(g, now) {
			delete(r.gates, g)
		}
	}
}

// waitAfter is how long a gate stays closed after an error of a class: slowly
// repeated where only a person can heal it, else doubling up to half a minute.
func (r *Reconciler) waitAfter(g gate, class cloud.Class) time.Duration {
	n := 0
	if b := r.gates[g]; b != nil {
		n = min(b.failures, 10)
	}
	switch class {
	case cloud.Permission, cloud.Bug:
		return r.cfg.jitter(r.cfg.SlowRetry)
	case cloud.Throttled:
		return r.cfg.jitter(min(10*time.Second, 250*time.Millisecond<<n))
	default:
		return r.cfg.jitter(min(30*time.Second, 500*time.Millisecond<<n))
	}
}

func (r *Reconciler) failObserve(err error) {
	r.fail(gateObserve, plan.Observe, err, r.cfg.Clock.Now(), r.waitAfter(gateObserve, cloud.ClassOf(err)))
}

// try makes a step and deals with its failure. It always leaves something
// changed, or a gate closed, so that the pass goes on without spinning.
func (r *Reconciler) try(ctx context.Context, p *step) bool {
	start := r.cfg.Clock.Now()
	err := r.act(cloud.WithHeld(ctx, start.Add(r.cfg.Patience), func(op string) { r.held(p.Action, op) }), p)
	r.told(p.Action, err, start)
	now := r.cfg.Clock.Now()
	if err == nil {
		r.cfg.Logger.Info("step done", "step", p.Action.String(), "took", now.Sub(start).String())
		r.heal(gateOf(p.Kind))
		return true
	}
	class, g := cloud.ClassOf(err), gateOf(p.Kind)
	switch {
	case class == cloud.Throttled:
		// Neither another step nor another ENI: the same call, later. Asking
		// for free counts or routes is no step: growth goes on with those it has.
		if p.Kind != plan.FindSubnets && p.Kind != plan.FindRoutes {
			r.pending[g] = p
		}
		r.fail(g, p.Kind, err, now, r.waitAfter(g, class))
	case class == cloud.SubnetFull && g == gateGrow:
		r.subnetFull(p, err, now)
	default:
		r.undo(ctx, p, class, now)
		wait := r.waitAfter(g, class)
		if k, ok := r.view.enis[p.ENI]; ok && p.Kind == plan.Attach {
			if w, ok := r.attachRefused(k, class, now); ok {
				wait = w
			}
		}
		r.fail(g, p.Kind, err, now, wait)
	}
	if r.pending[g] != p {
		p.hold.end(0)
	}
	return true
}

// held tells, in the middle of a step, that it waits for the cloud's rate limit:
// it may be minutes before the step succeeds, and that nothing failed is no
// comfort to who waits for it.
func (r *Reconciler) held(a plan.Action, op string) {
	g := gateOf(a.Kind)
	b := r.gates[g]
	if b == nil {
		b = &backoff{}
		r.gates[g] = b
	}
	b.kind, b.class = a.Kind, cloud.Throttled
	b.err = &cloud.Error{Class: cloud.Throttled, Op: op, Message: fmt.Sprintf(
		"not sent for %v, as EC2, or a ceiling that is configured, lets few calls of this action through", r.cfg.Patience)}
	r.cfg.Logger.Warn("step waits for the rate limit", "step", a.String(), "action", op, "since", r.cfg.Patience.String())
	r.report()
	r.cfg.Held()
}

func (r *Reconciler) told(a plan.Action, err error, start time.Time) {
	r.cfg.Observer.Acted(a, cloud.ClassOf(err), err, r.cfg.Clock.Now().Sub(start))
}

// subnetFull takes the subnet, or prefixes in it, out of the plans for a
// while: the next plan falls back to single addresses or another subnet.
func (r *Reconciler) subnetFull(p *step, err error, now time.Time) {
	id := p.Subnet
	if k, ok := r.view.enis[p.ENI]; ok {
		id = k.SubnetID
	}
	p.hold.end(0)
	if p.Kind == plan.Create {
		r.forgetIntent()
	}
	if p.Prefixes > 0 {
		until := now.Add(r.cfg.jitter(r.cfg.PrefixRetry))
		r.cfg.Subnets.refusedPrefix(id, until)
		r.retryAt = until
	} else {
		r.retryAt = r.cfg.Subnets.refused(id, p.Weight(), now)
		r.recount = now
	}
	r.note(gateGrow, p.Kind, err, now)
}

// undo deals with what a failed step leaves open. Calls that may have taken
// effect are followed by a look at the ENI before anything is repeated.
func (r *Reconciler) undo(ctx context.Context, p *step, class cloud.Class, now time.Time) {
	// An index that is taken is one of an ENI that came since the last listing.
	if class == cloud.LimitReached || class == cloud.Gone || class == cloud.Conflict && p.Kind == plan.Attach {
		r.goAstray(now)
	}
	r.uncertain = r.uncertain || r.passive && class == cloud.Conflict
	lost := class == cloud.Transient || class == cloud.Unknown
	switch p.Kind {
	case plan.Create:
		if p.doubtful != "" { // a repeat would get the same answer
			r.forgetIntent()
			p.hold.end(p.Weight())
			r.lookAt[p.doubtful] = now
			r.unsure[p.doubtful] = unsureAssign{until: now.Add(r.cfg.Lag), made: true}
			return
		}
		if lost {
			p.lost = true
			r.pending[gateGrow] = p // the token makes the repeat return what the first try made
			return
		}
		if class == cloud.Gone {
			r.recount = now // the subnet, perhaps: another may do
		}
		r.forgetIntent()
	case plan.Attach:
		r.undoAttach(p, class, now)
	case plan.Assign:
		r.lookAt[p.ENI] = now
		if lost {
			p.hold.end(p.Weight()) // perhaps; the next count tells
			r.doubt(p, now)
		}
	case plan.Unassign:
		r.undoUnassign(p, class, now)
	case plan.Detach:
		r.undoDetach(ctx, p, class, now)
	case plan.Delete:
		r.lookAt[p.ENI] = now.Add(time.Second)
	}
}

func (r *Reconciler) undoAttach(p *step, class cloud.Class, now time.Time) {
	r.lookAt[p.ENI] = now
	if k, ok := r.view.enis[p.ENI]; ok {
		k.unsure = true
		if class == cloud.Transient || class == cloud.Unknown {
			k.lost = now
		}
	}
	if class == cloud.LimitReached {
		r.refusedAt = now.Add(r.cfg.jitter(r.cfg.SlowRetry))
	}
}

// doubt keeps growth back until a listing shows whether a lost assignment took effect.
func (r *Reconciler) doubt(p *step, now time.Time) {
	k, ok := r.view.enis[p.ENI]
	if !ok {
		return
	}
	u := unsureAssign{before: map[netip.Prefix]bool{}, until: now.Add(r.cfg.Lag)}
	for _, t := range k.things() {
		u.before[t] = true
	}
	r.unsure[p.ENI] = u
}

// undoUnassign keeps what was withdrawn out of use while the call may have
// taken effect: until now, whenever it was made. A denied one surely has not.
func (r *Reconciler) undoUnassign(p *step, class cloud.Class, now time.Time) {
	if class == cloud.Permission && !r.shared() {
		r.giveBack(p)
		return
	}
	if k, ok := r.view.enis[p.ENI]; ok {
		for _, t := range p.things {
			k.releasing[t] = now
		}
	}
	r.lookAt[p.ENI] = now.Add(r.cfg.Lag)
}

func (r *Reconciler) undoDetach(ctx context.Context, p *step, class cloud.Class, now time.Time) {
	if (class == cloud.Permission || class == cloud.Bug) && !r.shared() {
		r.stay(ctx, p.ENI)
		return
	}
	if k, ok := r.view.enis[p.ENI]; ok {
		k.unsure = true
	}
	r.leaving[p.ENI] = now
	r.lookAt[p.ENI] = now.Add(r.cfg.Lag)
}
