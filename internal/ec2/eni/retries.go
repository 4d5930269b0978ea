package eni

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/placement"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/retry"
)

// An activity is a group of steps with a common backoff, so that failures of one kind of step do not stop another,
// and growth that was refused in one way is not attempted in another.
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

// activities lists all activities, starting with those that affect pods most.
var activities = [...]activity{activityInstance, activityLimits, activityGrow, activityObserve, activitySubnets, activityRoutes, activityGroups, activityTrunk, activityShrink, activityDelete, activityFollow, activityRepair, activityCollect}

var activityOf = map[plan.Kind]activity{
	plan.Assign: activityGrow, plan.Create: activityGrow, plan.Attach: activityGrow,
	plan.CreateTrunk: activityTrunk, plan.AttachTrunk: activityTrunk, plan.DetachTrunk: activityTrunk,
	plan.Unassign: activityShrink, plan.Detach: activityShrink, plan.Delete: activityDelete,
	plan.SetDeleteOnTermination: activityRepair, plan.Retag: activityRepair, plan.SetGroups: activityFollow, plan.Observe: activityObserve, plan.Collect: activityCollect,
	plan.FindSubnets: activitySubnets, plan.FindRoutes: activityRoutes, plan.FindGroups: activityGroups, plan.FindLimits: activityLimits, plan.FindInstance: activityInstance,
}

// retries tracks which activities are in backoff after failures, why, and until when. It belongs to the reconciler's
// goroutine.
type retries struct {
	cfg      *Config
	failed   map[activity]*backoff
	repeat   map[activity]*step // the step to repeat unchanged, by activity: throttled, reply lost, or resumed
	podProbe podProbe
	stretch  stretch // of the intervals of listings for repair and of searches for orphans, if this process makes them
}

func newRetries(cfg *Config) retries {
	return retries{cfg: cfg, failed: map[activity]*backoff{}, repeat: map[activity]*step{}}
}

// backoff is the backoff of an activity, and its cause.
type backoff struct {
	at       time.Time // time of the last failure
	until    time.Time
	probe    time.Time // when it may end early for waiting pods; see outage
	failures int       // failures in a row
	kind     plan.Kind
	class    cloud.Class
	err      error
	held     bool // nothing failed: the call waits for the rate limit
}

// permanent reports whether the failure needs human intervention.
func (b *backoff) permanent() bool { return b.class == cloud.Permission || b.class == cloud.Bug }

// record sets the cause of a backoff; held is set if nothing failed. A throttled call leaves a failure of the same kind of step that
// needs human intervention as it is: it says nothing about that.
func (b *backoff) record(kind plan.Kind, err error, held bool) {
	class := cloud.ClassOf(err)
	if class == cloud.Throttled && b.permanent() && b.kind == kind {
		return
	}
	b.kind, b.class, b.err, b.held = kind, class, err, held
}

// of returns an activity's backoff, creating it if necessary.
func (t *retries) of(g activity) *backoff {
	if t.failed[g] == nil {
		t.failed[g] = &backoff{}
	}
	return t.failed[g]
}

// blocked reports whether an activity is in backoff.
func (t *retries) blocked(g activity, now time.Time) bool {
	until, failed := t.until(g)
	return failed && until.After(now)
}

// until returns when a failed activity may be retried.
func (t *retries) until(g activity) (at time.Time, failed bool) {
	if b := t.failed[g]; b != nil {
		return b.until, true
	}
	return time.Time{}, false
}

// fail puts the activity of a kind of step into backoff for wait.
func (t *retries) fail(kind plan.Kind, err error, now time.Time, wait time.Duration) {
	g := activityOf[kind]
	b := t.of(g)
	level := slog.LevelWarn
	if b.failures++; b.failures > 1 && b.kind == kind && b.permanent() && b.class == cloud.ClassOf(err) {
		level = slog.LevelDebug // the same failure, which waits for somebody to resolve it
	}
	b.at, b.until = now, now.Add(wait)
	b.record(kind, err, false)
	if away(b.class) {
		b.probe = now.Add(t.cfg.jitter(probeAway))
		t.cfg.Shared.outage.leave(t, now)
	} else {
		t.cfg.Shared.outage.answered(t, g, now)
	}
	t.cfg.Logger.Log(context.Background(), level, "step failed", "step", string(kind), "class", cloud.ClassOf(err).String(), "err", err, "retryIn", wait.String())
}

// backOff is fail with a wait derived from the class of the error and the number of failures.
func (t *retries) backOff(kind plan.Kind, err error, now time.Time) {
	t.fail(kind, err, now, t.wait(activityOf[kind], cloud.ClassOf(err)))
}

// wait returns the backoff of an activity after an error of a class: long if it needs human intervention, otherwise
// doubling up to half a minute.
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

// limited records that a step in progress waits for the cloud's rate limit: nothing failed, but the step may take
// minutes.
func (t *retries) limited(kind plan.Kind, op string) {
	t.of(activityOf[kind]).record(kind, &cloud.Error{Class: cloud.Throttled, Op: op, Message: fmt.Sprintf(
		"not sent for %v: EC2 or a configured ceiling limits the rate of this action", rateLimitPatience)}, true)
}

// retryNow ends the backoff of an activity.
func (t *retries) retryNow(g activity, now time.Time) {
	if b := t.failed[g]; b != nil {
		b.until = now
	}
}

// succeed clears an activity's failure.
func (t *retries) succeed(g activity) {
	delete(t.failed, g)
	t.cfg.Shared.outage.answered(t, g, t.cfg.Clock.Now())
}

// forget clears an activity's failure although no step succeeded.
func (t *retries) forget(g activity) { delete(t.failed, g) }

// forgetUnwanted clears failures of steps that are no longer needed: neither for these actions, nor for growth or a
// trunk that waits for something else.
func (t *retries) forgetUnwanted(actions []plan.Action, growing, trunk bool, now time.Time) {
	if len(t.failed) == 0 {
		return
	}
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

// forgetConfigured clears failures that other settings may resolve.
func (t *retries) forgetConfigured() {
	for g, b := range t.failed {
		if b.permanent() || b.class == cloud.Gone {
			delete(t.failed, g)
		}
	}
}

// put schedules a step to be repeated before any other of its activity.
func (t *retries) put(p *step) { t.repeat[activityOf[p.Kind]] = p }

// toRepeat returns the step of an activity to be repeated; nil if there is none.
func (t *retries) toRepeat(g activity) *step { return t.repeat[g] }

// take removes and returns the step of an activity to be repeated; nil if there is none.
func (t *retries) take(g activity) *step {
	p := t.repeat[g]
	delete(t.repeat, g)
	return p
}

// drop removes and returns the step of an activity to be repeated, unless its call may have taken effect; nil if
// there is none.
func (t *retries) drop(g activity) *step {
	if p := t.repeat[g]; p == nil || p.lost {
		return nil
	}
	return t.take(g)
}

// close ends the reservations of steps that will not be repeated.
func (t *retries) close() {
	for _, p := range t.repeat {
		p.reserved.End(0)
	}
}

// again removes and returns a step that may be repeated now, growth first; nil if there is none.
func (t *retries) again(now time.Time) *step {
	for _, g := range [...]activity{activityGrow, activityShrink, activityDelete, activityRepair, activityTrunk} {
		if t.repeat[g] != nil && !t.blocked(g, now) {
			return t.take(g)
		}
	}
	return nil
}

// worst returns the failure that affects pods most; nil if there is none.
func (t *retries) worst() *backoff {
	for _, g := range activities {
		if b := t.failed[g]; b != nil {
			return b
		}
	}
	return nil
}

// due returns when a backoff ends, or may end early for waiting pods.
func (t *retries) due(now time.Time) (first time.Time) {
	first = retry.Earliest(now, t.podProbe.at)
	for _, b := range t.failed {
		first = retry.Earliest(now, first, b.until, b.probe)
	}
	return first
}

// dropRefused is drop, and clears the activity's failure if there was such a step.
func (t *retries) dropRefused(g activity) *step {
	p := t.drop(g)
	if p != nil {
		t.forget(g)
	}
	return p
}

// routes returns the failures to fetch route tables.
func (t *retries) routes(now time.Time) placement.Trouble {
	b := t.failed[activityRoutes]
	if b == nil {
		return placement.Trouble{}
	}
	return placement.Trouble{Waits: b.until.After(now), Permanent: b.permanent(), Failures: b.failures}
}
