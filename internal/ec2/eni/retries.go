package eni

import (
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/retry"
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
	gateGroups   gate = "find-groups"
	gateTrunk    gate = "trunk"  // all of a trunk
	gateShrink   gate = "shrink" // unassign, detach
	gateDelete   gate = "delete"
	gateRepair   gate = "repair" // set-deletion, tag
	gateFollow   gate = "follow" // set-groups
	gateCollect  gate = "collect"
	gateLimits   gate = "find-limits"
	gateInstance gate = "find-instance"
)

// gates are all gates, that first whose trouble matters most to pods.
var gates = [...]gate{gateInstance, gateLimits, gateGrow, gateObserve, gateSubnets, gateRoutes, gateGroups, gateTrunk, gateShrink, gateDelete, gateFollow, gateRepair, gateCollect}

var gateOfKind = map[plan.Kind]gate{
	plan.Assign: gateGrow, plan.Create: gateGrow, plan.Attach: gateGrow,
	plan.CreateTrunk: gateTrunk, plan.AttachTrunk: gateTrunk, plan.DetachTrunk: gateTrunk,
	plan.Unassign: gateShrink, plan.Detach: gateShrink, plan.Delete: gateDelete,
	plan.SetDeleteOnTermination: gateRepair, plan.Retag: gateRepair, plan.SetGroups: gateFollow, plan.Observe: gateObserve, plan.Collect: gateCollect,
	plan.FindSubnets: gateSubnets, plan.FindRoutes: gateRoutes, plan.FindGroups: gateGroups, plan.FindLimits: gateLimits, plan.FindInstance: gateInstance,
}

// retries is what waits after failures, why, and until when.
type retries struct {
	cfg       *Config
	failed    map[gate]*backoff
	throttled map[gate]*step // each comes next behind its gate, as it was
	podProbe  podProbe
}

// backoff is one gate's waiting time and why it waits.
type backoff struct {
	at       time.Time // of the last failure
	until    time.Time
	probe    time.Time // when it may be opened for pods that wait; see outage
	failures int       // in a row
	kind     plan.Kind
	class    cloud.Class
	err      error
}

// permanent tells whether only a person can mend what failed.
func (b *backoff) permanent() bool { return b.class == cloud.Permission || b.class == cloud.Bug }

// of is a gate's backoff, made if there is none.
func (t *retries) of(g gate) *backoff {
	if t.failed[g] == nil {
		t.failed[g] = &backoff{}
	}
	return t.failed[g]
}

// closed tells whether steps behind a gate wait.
func (t *retries) closed(g gate, now time.Time) bool {
	until, failed := t.until(g)
	return failed && until.After(now)
}

// until is when steps behind a gate that failed may be tried again.
func (t *retries) until(g gate) (at time.Time, failed bool) {
	if b := t.failed[g]; b != nil {
		return b.until, true
	}
	return time.Time{}, false
}

// fail closes the gate of a kind of step for wait.
func (t *retries) fail(kind plan.Kind, err error, now time.Time, wait time.Duration) {
	g := gateOfKind[kind]
	b := t.of(g)
	b.failures++
	b.kind, b.class, b.err, b.at, b.until = kind, cloud.ClassOf(err), err, now, now.Add(wait)
	if away(b.class) {
		b.probe = now.Add(t.cfg.jitter(probeAway))
		t.cfg.Shared.outage.leave(t, now)
	} else {
		t.cfg.Shared.outage.answered(t, g, now)
	}
	t.cfg.Logger.Warn("step failed", "step", string(kind), "class", b.class.String(), "error", err, "retryIn", wait.String())
}

// backOff is fail for as long as the class of the error and the failures so far ask for.
func (t *retries) backOff(kind plan.Kind, err error, now time.Time) {
	t.fail(kind, err, now, t.wait(gateOfKind[kind], cloud.ClassOf(err)))
}

// wait is how long a gate stays closed after an error of a class: slowly
// repeated where only a person can heal it, else doubling up to half a minute.
func (t *retries) wait(g gate, class cloud.Class) time.Duration {
	n := 0
	if b := t.failed[g]; b != nil {
		n = b.failures
	}
	switch class {
	case cloud.Permission, cloud.Bug:
		return t.cfg.jitter(t.cfg.SlowRetry)
	case cloud.Throttled:
		return t.cfg.jitter(retry.Delay(250*time.Millisecond, 10*time.Second, n))
	default:
		return t.cfg.jitter(retry.Delay(500*time.Millisecond, 30*time.Second, n))
	}
}

// limited notes, in the middle of a step, that it waits for the cloud's rate
// limit: nothing failed, but it may be minutes before the step succeeds.
func (t *retries) limited(kind plan.Kind, op string) {
	b := t.of(gateOfKind[kind])
	b.kind, b.class = kind, cloud.Throttled
	b.err = &cloud.Error{Class: cloud.Throttled, Op: op, Message: fmt.Sprintf(
		"not sent for %v, as EC2, or a ceiling that is configured, lets few calls of this action through", rateLimitPatience)}
}

// open lets a gate that is closed be tried again now.
func (t *retries) open(g gate, now time.Time) {
	if b := t.failed[g]; b != nil {
		b.until = now
	}
}

// succeed forgets a gate's trouble.
func (t *retries) succeed(g gate) {
	delete(t.failed, g)
	t.cfg.Shared.outage.answered(t, g, t.cfg.Clock.Now())
}

// forget drops a gate's trouble although nothing succeeded.
func (t *retries) forget(g gate) { delete(t.failed, g) }

// forgetUnwanted forgets trouble with steps that nothing asks for any more:
// neither these actions, nor growth or a trunk that waits for something else.
func (t *retries) forgetUnwanted(actions []plan.Action, growing, trunk bool, now time.Time) {
	wanted := map[gate]bool{gateGrow: growing, gateTrunk: trunk}
	for _, a := range actions {
		wanted[gateOfKind[a.Kind]] = true
		wanted[gateRoutes] = wanted[gateRoutes] || a.Kind == plan.Create
	}
	wanted[gateGroups] = t.cfg.DrainOutdated && len(t.cfg.GroupTags) > 0
	for _, g := range [...]gate{gateGrow, gateRoutes, gateGroups, gateTrunk, gateShrink, gateDelete, gateRepair} {
		if !wanted[g] && !t.closed(g, now) {
			delete(t.failed, g)
		}
	}
}

// forgetConfigured forgets trouble that other settings may mend.
func (t *retries) forgetConfigured() {
	for g, b := range t.failed {
		if b.permanent() || b.class == cloud.Gone {
			delete(t.failed, g)
		}
	}
}

// again takes the throttled step whose time has come, growth first.
func (t *retries) again(now time.Time) *step {
	for _, g := range [...]gate{gateGrow, gateShrink, gateDelete, gateRepair, gateTrunk} {
		if p := t.throttled[g]; p != nil && !t.closed(g, now) {
			delete(t.throttled, g)
			return p
		}
	}
	return nil
}

// worst is the trouble that matters most to pods; nil: there is none.
func (t *retries) worst() *backoff {
	for _, g := range gates {
		if b := t.failed[g]; b != nil {
			return b
		}
	}
	return nil
}

// due is when a gate opens, or may be opened for pods that wait.
func (t *retries) due(now time.Time) (first time.Time) {
	first = retry.Earliest(now, t.podProbe.at)
	for _, b := range t.failed {
		first = retry.Earliest(now, first, b.until, b.probe)
	}
	return first
}
