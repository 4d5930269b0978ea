package eni

import (
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/placement"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/retry"
)

// An activity is a group of steps that back off together after a failure, so that trouble with one kind
// of step does not stop another, and that growth which was refused in one way is not tried in another.
type activity string

const (
	activityObserve  activity = "observe"
	activityGrow     activity = "grow" // assign, create, attach
	activitySubnets  activity = "find-subnets"
	activityRoutes   activity = "find-routes"
	activityGroups   activity = "find-groups"
	activityTrunk    activity = "trunk"  // all of a trunk
	activityShrink   activity = "shrink" // unassign, detach
	activityDelete   activity = "delete"
	activityRepair   activity = "repair" // set-deletion, tag
	activityFollow   activity = "follow" // set-groups
	activityCollect  activity = "collect"
	activityLimits   activity = "find-limits"
	activityInstance activity = "find-instance"
)

// activities are all activities, the one whose trouble matters most to pods first.
var activities = [...]activity{activityInstance, activityLimits, activityGrow, activityObserve, activitySubnets, activityRoutes, activityGroups, activityTrunk, activityShrink, activityDelete, activityFollow, activityRepair, activityCollect}

var activityOf = map[plan.Kind]activity{
	plan.Assign: activityGrow, plan.Create: activityGrow, plan.Attach: activityGrow,
	plan.CreateTrunk: activityTrunk, plan.AttachTrunk: activityTrunk, plan.DetachTrunk: activityTrunk,
	plan.Unassign: activityShrink, plan.Detach: activityShrink, plan.Delete: activityDelete,
	plan.SetDeleteOnTermination: activityRepair, plan.Retag: activityRepair, plan.SetGroups: activityFollow, plan.Observe: activityObserve, plan.Collect: activityCollect,
	plan.FindSubnets: activitySubnets, plan.FindRoutes: activityRoutes, plan.FindGroups: activityGroups, plan.FindLimits: activityLimits, plan.FindInstance: activityInstance,
}

// retries is what backs off after failures, why, and until when. It belongs to the goroutine that
// reconciles.
type retries struct {
	cfg      *Config
	failed   map[activity]*backoff
	repeat   map[activity]*step // the next of each activity, as it was: throttled, its reply lost, or resumed
	podProbe podProbe
}

func newRetries(cfg *Config) retries {
	return retries{cfg: cfg, failed: map[activity]*backoff{}, repeat: map[activity]*step{}}
}

// backoff is how long an activity waits, and why.
type backoff struct {
	at       time.Time // of the last failure
	until    time.Time
	probe    time.Time // when it may end for pods that wait; see outage
	failures int       // in a row
	kind     plan.Kind
	class    cloud.Class
	err      error
}

// permanent reports whether only a person can resolve what failed.
func (b *backoff) permanent() bool { return b.class == cloud.Permission || b.class == cloud.Bug }

// of returns an activity's backoff, and adds one if there is none.
func (t *retries) of(g activity) *backoff {
	if t.failed[g] == nil {
		t.failed[g] = &backoff{}
	}
	return t.failed[g]
}

// blocked reports whether an activity backs off.
func (t *retries) blocked(g activity, now time.Time) bool {
	until, failed := t.until(g)
	return failed && until.After(now)
}

// until returns when an activity that failed may be tried again.
func (t *retries) until(g activity) (at time.Time, failed bool) {
	if b := t.failed[g]; b != nil {
		return b.until, true
	}
	return time.Time{}, false
}

// fail has the activity of a kind of step back off for wait.
func (t *retries) fail(kind plan.Kind, err error, now time.Time, wait time.Duration) {
	g := activityOf[kind]
	b := t.of(g)
	b.failures++
	b.kind, b.class, b.err, b.at, b.until = kind, cloud.ClassOf(err), err, now, now.Add(wait)
	if away(b.class) {
		b.probe = now.Add(t.cfg.jitter(probeAway))
		t.cfg.Shared.outage.leave(t, now)
	} else {
		t.cfg.Shared.outage.answered(t, g, now)
	}
	t.cfg.Logger.Warn("step failed", "step", string(kind), "class", b.class.String(), "err", err, "retryIn", wait.String())
}

// backOff is fail with the wait that follows from the class of the error and the number of failures.
func (t *retries) backOff(kind plan.Kind, err error, now time.Time) {
	t.fail(kind, err, now, t.wait(activityOf[kind], cloud.ClassOf(err)))
}

// wait returns how long an activity backs off after an error of a class: long where only a person can
// resolve it, else doubling up to half a minute.
func (t *retries) wait(g activity, class cloud.Class) time.Duration {
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

// limited records, in the middle of a step, that the step waits for the cloud's rate limit: nothing
// failed, but it may be minutes before the step succeeds.
func (t *retries) limited(kind plan.Kind, op string) {
	b := t.of(activityOf[kind])
	b.kind, b.class = kind, cloud.Throttled
	b.err = &cloud.Error{Class: cloud.Throttled, Op: op, Message: fmt.Sprintf(
		"not sent for %v, as EC2, or a ceiling that is configured, lets few calls of this action through", rateLimitPatience)}
}

// retryNow ends the backoff of an activity.
func (t *retries) retryNow(g activity, now time.Time) {
	if b := t.failed[g]; b != nil {
		b.until = now
	}
}

// succeed ends an activity's trouble.
func (t *retries) succeed(g activity) {
	delete(t.failed, g)
	t.cfg.Shared.outage.answered(t, g, t.cfg.Clock.Now())
}

// forget drops an activity's trouble although no step succeeded.
func (t *retries) forget(g activity) { delete(t.failed, g) }

// forgetUnwanted drops trouble with steps that are no longer needed: neither for these actions, nor for
// growth or a trunk that waits for something else.
func (t *retries) forgetUnwanted(actions []plan.Action, growing, trunk bool, now time.Time) {
	needed := map[activity]bool{activityGrow: growing, activityTrunk: trunk}
	for _, a := range actions {
		needed[activityOf[a.Kind]] = true
		needed[activityRoutes] = needed[activityRoutes] || a.Kind == plan.Create
	}
	needed[activityGroups] = t.cfg.DrainOutdated && len(t.cfg.GroupTags) > 0
	for _, g := range [...]activity{activityGrow, activityRoutes, activityGroups, activityTrunk, activityShrink, activityDelete, activityRepair} {
		if !needed[g] && !t.blocked(g, now) {
			delete(t.failed, g)
		}
	}
}

// forgetConfigured drops trouble that other settings may resolve.
func (t *retries) forgetConfigured() {
	for g, b := range t.failed {
		if b.permanent() || b.class == cloud.Gone {
			delete(t.failed, g)
		}
	}
}

// put has a step made again, before any other of its activity.
func (t *retries) put(p *step) { t.repeat[activityOf[p.Kind]] = p }

// toRepeat returns the step of an activity that is to be made again; nil: none.
func (t *retries) toRepeat(g activity) *step { return t.repeat[g] }

// take removes and returns the step of an activity that is to be made again; nil: none.
func (t *retries) take(g activity) *step {
	p := t.repeat[g]
	delete(t.repeat, g)
	return p
}

// drop removes and returns the step of an activity that is to be made again, unless its call may have
// taken effect; nil: none.
func (t *retries) drop(g activity) *step {
	if p := t.repeat[g]; p == nil || p.lost {
		return nil
	}
	return t.take(g)
}

// close ends the reservations of the steps that are not made again.
func (t *retries) close() {
	for _, p := range t.repeat {
		p.reserved.End(0)
	}
}

// again removes and returns a step that may be made again now, growth first; nil: none.
func (t *retries) again(now time.Time) *step {
	for _, g := range [...]activity{activityGrow, activityShrink, activityDelete, activityRepair, activityTrunk} {
		if t.repeat[g] != nil && !t.blocked(g, now) {
			return t.take(g)
		}
	}
	return nil
}

// worst returns the trouble that matters most to pods; nil: none.
func (t *retries) worst() *backoff {
	for _, g := range activities {
		if b := t.failed[g]; b != nil {
			return b
		}
	}
	return nil
}

// due returns when a backoff ends, or may end for pods that wait.
func (t *retries) due(now time.Time) (first time.Time) {
	first = retry.Earliest(now, t.podProbe.at)
	for _, b := range t.failed {
		first = retry.Earliest(now, first, b.until, b.probe)
	}
	return first
}

// dropRefused is drop, and ends the activity's trouble if there was such a step.
func (t *retries) dropRefused(g activity) *step {
	p := t.drop(g)
	if p != nil {
		t.forget(g)
	}
	return p
}

// routes returns the trouble with questions for route tables.
func (t *retries) routes(now time.Time) placement.Trouble {
	b := t.failed[activityRoutes]
	if b == nil {
		return placement.Trouble{}
	}
	return placement.Trouble{Waits: b.until.After(now), Permanent: b.permanent(), Failures: b.failures}
}
