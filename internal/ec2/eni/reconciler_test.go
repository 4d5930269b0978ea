package eni

import (
	"errors"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/test/harness/check"
	"github.com/berthnet/berth/test/harness/parts"
)

// A part missing from the timers would stall until something else happens.
func TestEveryTimedPartIsAmongTheTimers(t *testing.T) {
	parts.Listed[Reconciler](t, 5, (&Reconciler{}).timers())
}

// TestDue checks when each part is due, as seen at second 10.
func TestDue(t *testing.T) {
	none := time.Time{}
	waiting := &backoff{until: unix(30), probe: unix(20)}
	for _, c := range []struct {
		name string
		of   timed
		want time.Time
	}{
		{"observation already possible", &freshness{observeNotBefore: unix(9)}, none},
		{"delayed observation", &freshness{observeNotBefore: unix(12)}, unix(12)},
		{"listing for repair", &freshness{observeAt: unix(60)}, unix(60)},
		{"no lookup", &lookups{}, none},
		{"first lookup not yet due", &lookups{at: map[string]time.Time{"a": unix(9), "b": unix(15), "c": unix(14)}}, unix(14)},
		{"unresolved call", &lookups{at: map[string]time.Time{"a": unix(15)}, unresolved: map[string]unresolvedCall{"b": {until: unix(11)}}}, unix(11)},
		{"repeated description of the instance", &instance{askAt: unix(17)}, unix(17)},
		{"probe of an activity", &retries{failed: map[activity]*backoff{activityGrow: waiting}}, unix(20)},
		{"probe for pods", &retries{failed: map[activity]*backoff{activityGrow: waiting}, podProbe: podProbe{at: unix(19)}}, unix(19)},
		{"backoff over", &retries{failed: map[activity]*backoff{activityGrow: {until: unix(10)}}}, none},
		{"missing link", &lookups{links: links{lag: 5 * second, since: map[string]time.Time{"a": unix(8)}}}, unix(13)},
		{"instance temporarily full", &refusals{pods: attachments{fullUntil: unix(40)}}, unix(40)},
		{"trunk that could not be attached", &refusals{trunk: attachments{fullUntil: unix(41)}}, unix(41)},
		{"trunk with branches", &refusals{trunkBusyUntil: unix(42)}, unix(42)},
		{"no excess", &surplus{delay: 60 * second}, none},
		{"orphans", &orphans{at: unix(11)}, unix(11)},
	} {
		if got := c.of.due(unix(10)); !got.Equal(c.want) {
			t.Errorf("%s: due() = %v, want %v", c.name, got, c.want)
		}
	}
	s := surplus{delay: 60 * second}
	s.excess.Allow(3, 3, unix(10), s.delay)
	if got := s.due(unix(10)); !got.Equal(unix(70)) {
		t.Errorf("excess: due() = %v, want second 70", got)
	}
	s = surplus{delay: 60 * second}
	s.allow(cloud.Limits{}, ipam.Policy{}, &plan.State{ENIs: []plan.ENI{{Outdated: true}}}, true, unix(10))
	if got := s.due(unix(10)); !got.Equal(unix(70)) {
		t.Errorf("outdated ENIs: due() = %v, want second 70", got)
	}
}

func TestWake(t *testing.T) {
	fresh := func() *Reconciler {
		r := check.Must(New(Config{InstanceID: "i-1", Cluster: "test", Cloud: struct{ cloud.API }{}, Node: struct{ Node }{}, Clock: clock.NewFake(unix(0))}))(t)
		r.view.freshness.observeAt = unix(60)
		return r
	}
	for _, c := range []struct {
		name   string
		change func(*Reconciler)
		want   time.Duration
	}{
		{"listing for repair", func(*Reconciler) {}, 50 * second},
		{"listing for repair due", func(r *Reconciler) { r.view.freshness.observeAt = unix(9) }, 0},
		{"listing for repair failed", func(r *Reconciler) {
			r.view.freshness.observeAt = unix(9)
			r.retries.failed = map[activity]*backoff{activityObserve: {until: unix(13), kind: plan.Observe}}
		}, 3 * second},
		{"earlier search for orphans", func(r *Reconciler) { r.orphans.at = unix(20) }, 10 * second},
		{"listings by the fleet", func(r *Reconciler) { r.cfg.process, r.view.freshness.observeAt = ofFleet, time.Time{} }, idle},
		{"listings by the fleet, lookup scheduled", func(r *Reconciler) {
			r.cfg.process, r.view.freshness.observeAt = ofFleet, time.Time{}
			r.view.lookups.schedule("a", unix(12))
		}, 2 * second},
		{"instance vanished", func(r *Reconciler) { r.instance.vanished = true }, idle},
	} {
		r := fresh()
		c.change(r)
		check.Equal(t, r.wake(unix(10)), c.want, "%s", c.name)
	}
}

func TestFreshness(t *testing.T) {
	c := freshness{stale: true, lag: 5 * second}
	if c.applyInvalidation(unix(1)) {
		t.Error("applyInvalidation() = true without Invalidate")
	}
	first := c.unconfirmed()
	c.observed(unix(2), unix(62))
	if !first || c.unconfirmed() || c.stale || c.mayPublish() != nil {
		t.Errorf("unexpected state after the first observation: %+v", &c)
	}
	if !c.outdated(unix(1)) || c.outdated(unix(2)) {
		t.Error("outdated() must hold for listings before the last observation, and only for those")
	}
	c.replied = unix(9)
	c.invalidated.Store(true)
	if c.mayPublish() == nil {
		t.Error("mayPublish() = nil after Invalidate")
	}
	if !c.applyInvalidation(unix(10)) || !c.publishHeld || !c.stale {
		t.Errorf("unexpected state after Invalidate: %+v", &c)
	}
	if c.mayPublish() == nil || !c.outdated(unix(13)) || c.outdated(unix(14)) {
		t.Error("a listing counts before the last reply is visible, or publishing is allowed")
	}
	c.releasePublish()
	c.observed(unix(14), unix(74))
	if c.mayPublish() != nil || c.outdated(unix(14)) {
		t.Errorf("unexpected state after another observation: %+v", &c)
	}
}

func TestDeleteOnTerminationPriority(t *testing.T) {
	for _, c := range []struct {
		due  time.Duration
		want cloud.Priority
		wait time.Duration
	}{
		{0, 0, 2 * time.Minute},
		{119 * time.Second, 0, time.Second},
		{2 * time.Minute, cloud.Begun, time.Hour},
		{3 * time.Minute, cloud.Begun, time.Hour},
		{-time.Second, 0, 121 * time.Second}, // the clock was set back
	} {
		if p, wait := deleteOnTerminationPriority(c.due, time.Hour); p != c.want || wait != c.wait {
			t.Errorf("due for %v: priority %d for %v, want %d for %v", c.due, p, wait, c.want, c.wait)
		}
	}
}

func TestDeleteOnTerminationOf(t *testing.T) {
	for _, c := range []struct {
		name string
		plan []plan.Action
		want []string
	}{
		{"nothing to do", nil, nil},
		{"after growth, in the order of the plan", []plan.Action{{Kind: plan.Create}, {Kind: plan.SetDeleteOnTermination, ENI: "b"}, {Kind: plan.SetDeleteOnTermination, ENI: "a"}}, []string{"b", "a"}},
		{"ENI being detached", []plan.Action{{Kind: plan.Detach, ENI: "a"}, {Kind: plan.SetDeleteOnTermination, ENI: "a"}, {Kind: plan.SetDeleteOnTermination, ENI: "b"}}, []string{"b"}},
		{"another change", []plan.Action{{Kind: plan.Retag, ENI: "a"}}, nil},
	} {
		check.Equal(t, deleteOnTerminationOf(c.plan), c.want, "%s", c.name)
	}
}

// Replies of the cloud about the instance, one after the other, and the resulting states.
func TestInstanceReplies(t *testing.T) {
	gone := &cloud.Error{Class: cloud.Gone}
	type end struct{ vanished, stopped, uncertain bool }
	type step struct {
		seconds int
		state   string
		err     error
		want    instanceState
		askAt   int // 0 if not described again
	}
	for _, c := range []struct {
		name      string
		suspected int // seconds; 0 means never
		steps     []step
		is        end
	}{
		{"running", 0, []step{{10, "running", nil, instanceRuns, 0}}, end{}},
		{"unknown, to be described again", 0, []step{{10, "", gone, instanceUnknown, 15}}, end{uncertain: true}},
		{"unknown twice", 0, []step{{10, "", gone, instanceUnknown, 15}, {15, "", gone, instanceGone, 15}}, end{vanished: true}},
		{"unknown, then running", 0, []step{{10, "", gone, instanceUnknown, 15}, {15, "running", nil, instanceRuns, 0}}, end{}},
		{"terminated", 0, []step{{10, "shutting-down", nil, instanceGone, 0}}, end{vanished: true}},
		{"no reply", 0, []step{{10, "", errors.New("x"), instanceUnanswered, 0}}, end{uncertain: true}},
		{"stopped", 0, []step{{10, "stopping", nil, instanceStopped, 0}}, end{stopped: true}},
		{"stopped, then running", 0, []step{{10, "stopped", nil, instanceStopped, 0}, {20, "pending", nil, instanceRuns, 0}}, end{}},
		{"no change soon after a suspicion", 8, []step{{10, "running", nil, instanceRuns, 13}}, end{}},
		{"no change long after a suspicion", 8, []step{{13, "running", nil, instanceRuns, 0}}, end{}},
		{"change soon after a suspicion", 8, []step{{10, "stopped", nil, instanceStopped, 0}}, end{stopped: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := instance{lag: 5 * second}
			if c.suspected > 0 {
				i.suspected.Store(true)
				if !i.applySuspicion(unix(c.suspected)) || i.applySuspicion(unix(c.suspected)) {
					t.Fatal("applySuspicion() must be true exactly once")
				}
			}
			for _, s := range c.steps {
				check.Equal(t, i.answered(cloud.Instance{State: s.state, Type: "t3.small"}, s.err, unix(s.seconds)), s.want, "state at %d s", s.seconds)
				if want := unix(s.askAt); s.askAt == 0 && !i.askAt.IsZero() || s.askAt > 0 && !i.askAt.Equal(want) {
					t.Errorf("at %d s: askAt = %v", s.seconds, i.askAt)
				}
			}
			check.Equal(t, (end{i.vanished, i.stopped, i.uncertain}), c.is, "final state (vanished %v, stopped %v, uncertain %v)", i.vanished, i.stopped, i.uncertain)
			if err := c.steps[len(c.steps)-1].err; err == nil && i.typ != "t3.small" {
				t.Errorf("type = %q, want t3.small", i.typ)
			}
		})
	}
}

// A listing may lag behind a new instance; only two listings some time apart count.
func TestInstanceMissingFromListings(t *testing.T) {
	i := instance{lag: 5 * second}
	for _, s := range []struct {
		seconds int
		there   bool
		want    bool // result of unlisted, or of listed if the instance is present
	}{
		{1, true, false}, {2, false, false}, {3, false, false}, {7, false, true}, {8, true, true}, {9, true, false}, {10, false, false},
	} {
		var got bool
		if s.there {
			got = i.listed()
		} else {
			got = i.unlisted(unix(s.seconds))
		}
		check.Equal(t, got, s.want, "result at %d s", s.seconds)
	}
}

func TestInstanceDescriptionDue(t *testing.T) {
	for _, c := range []struct {
		name  string
		i     *instance
		waits bool
		want  bool
	}{
		{"no doubt", &instance{}, false, false},
		{"doubt", &instance{uncertain: true}, false, true},
		{"doubt, after a failure", &instance{uncertain: true}, true, false},
		{"stopped", &instance{stopped: true}, false, true},
		{"last reply may lag", &instance{uncertain: true, askAt: unix(11)}, false, false},
		{"last reply can no longer lag", &instance{askAt: unix(10)}, true, true},
	} {
		check.Equal(t, c.i.askDue(unix(10), c.waits), c.want, "%s", c.name)
	}
}

// The limits are those of the instance's current type.
func TestInstanceLimits(t *testing.T) {
	i := instance{typ: "t3.small"}
	if i.limitsKnown() {
		t.Error("limits are known before they were fetched")
	}
	i.learned("t3.small", cloud.Limits{MaxENIs: 3})
	if !i.limitsKnown() || i.limits.MaxENIs != 3 {
		t.Errorf("limits = %+v, want the fetched ones with MaxENIs = 3", i.limits)
	}
	i.answered(cloud.Instance{State: "stopped", Type: "m5.large"}, nil, time.Time{})
	if i.limitsKnown() {
		t.Error("limits of another type count as known")
	}
}
