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

// A part that is missing in the timers would stall until something else happens.
func TestEveryTimedPartIsAmongTheTimers(t *testing.T) {
	parts.Listed[Reconciler](t, 5, (&Reconciler{}).timers())
}

// When each part is due, as seen at second 10: the first moment after that.
func TestDue(t *testing.T) {
	none := time.Time{}
	waiting := &backoff{until: unix(30), probe: unix(20)}
	for _, c := range []struct {
		name string
		of   timed
		want time.Time
	}{
		{"nothing to observe later", &freshness{observeNotBefore: unix(9)}, none},
		{"an observation that must wait", &freshness{observeNotBefore: unix(12)}, unix(12)},
		{"a listing for repair", &freshness{observeAt: unix(60)}, unix(60)},
		{"no lookup", &lookups{}, none},
		{"the first lookup that is not due yet", &lookups{at: map[string]time.Time{"a": unix(9), "b": unix(15), "c": unix(14)}}, unix(14)},
		{"a call that counts as resolved", &lookups{at: map[string]time.Time{"a": unix(15)}, unresolved: map[string]unresolvedCall{"b": {until: unix(11)}}}, unix(11)},
		{"an instance that is asked for once more", &instance{askAt: unix(17)}, unix(17)},
		{"a probe of an activity", &retries{failed: map[activity]*backoff{activityGrow: waiting}}, unix(20)},
		{"a probe for pods", &retries{failed: map[activity]*backoff{activityGrow: waiting}, podProbe: podProbe{at: unix(19)}}, unix(19)},
		{"an activity that may be tried", &retries{failed: map[activity]*backoff{activityGrow: {until: unix(10)}}}, none},
		{"a link that is missing for long", &lookups{links: links{lag: 5 * second, since: map[string]time.Time{"a": unix(8)}}}, unix(13)},
		{"an instance that is full for a while", &refusals{pods: attachments{fullUntil: unix(40)}}, unix(40)},
		{"a trunk that could not be attached", &refusals{trunk: attachments{fullUntil: unix(41)}}, unix(41)},
		{"a trunk with branches", &refusals{trunkBusyUntil: unix(42)}, unix(42)},
		{"no excess", &surplus{delay: 60 * second}, none},
		{"orphans", &orphans{at: unix(11)}, unix(11)},
	} {
		if got := c.of.due(unix(10)); !got.Equal(c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	s := surplus{delay: 60 * second}
	s.excess.Allow(3, 3, unix(10), s.delay)
	if got := s.due(unix(10)); !got.Equal(unix(70)) {
		t.Errorf("excess: %v", got)
	}
	s = surplus{delay: 60 * second}
	s.allow(cloud.Limits{}, ipam.Policy{}, &plan.State{ENIs: []plan.ENI{{Outdated: true}}}, true, unix(10))
	if got := s.due(unix(10)); !got.Equal(unix(70)) {
		t.Errorf("outdated ENIs: %v", got)
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
		{"a listing for repair", func(*Reconciler) {}, 50 * second},
		{"one that is due", func(r *Reconciler) { r.view.freshness.observeAt = unix(9) }, 0},
		{"one that failed", func(r *Reconciler) {
			r.view.freshness.observeAt = unix(9)
			r.retries.failed = map[activity]*backoff{activityObserve: {until: unix(13), kind: plan.Observe}}
		}, 3 * second},
		{"something before it", func(r *Reconciler) { r.orphans.at = unix(20) }, 10 * second},
		{"somebody else lists", func(r *Reconciler) { r.cfg.process, r.view.freshness.observeAt = ofFleet, time.Time{} }, idle},
		{"somebody else lists, and an ENI is to be looked at", func(r *Reconciler) {
			r.cfg.process, r.view.freshness.observeAt = ofFleet, time.Time{}
			r.view.lookups.schedule("a", unix(12))
		}, 2 * second},
		{"the instance is no more", func(r *Reconciler) { r.instance.vanished = true }, idle},
	} {
		r := fresh()
		c.change(r)
		check.Equal(t, r.wake(unix(10)), c.want, "%s", c.name)
	}
}

func TestFreshness(t *testing.T) {
	c := freshness{stale: true, lag: 5 * second}
	if c.applyInvalidation(unix(1)) {
		t.Error("invalidated by nobody")
	}
	first := c.unconfirmed()
	c.observed(unix(2), unix(62))
	if !first || c.unconfirmed() || c.stale || c.mayPublish() != nil {
		t.Errorf("after the first observation: %+v", &c)
	}
	if !c.outdated(unix(1)) || c.outdated(unix(2)) {
		t.Error("a listing from before the last does not count, one as of it does")
	}
	c.replied = unix(9)
	c.invalidated.Store(true)
	if c.mayPublish() == nil {
		t.Error("published although it was invalidated")
	}
	if !c.applyInvalidation(unix(10)) || !c.publishHeld || !c.stale {
		t.Errorf("invalidated: %+v", &c)
	}
	if c.mayPublish() == nil || !c.outdated(unix(13)) || c.outdated(unix(14)) {
		t.Error("no listing counts before the last reply shows in it")
	}
	c.releasePublish()
	c.observed(unix(14), unix(74))
	if c.mayPublish() != nil || c.outdated(unix(14)) {
		t.Errorf("observed again: %+v", &c)
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
		{"one that leaves", []plan.Action{{Kind: plan.Detach, ENI: "a"}, {Kind: plan.SetDeleteOnTermination, ENI: "a"}, {Kind: plan.SetDeleteOnTermination, ENI: "b"}}, []string{"b"}},
		{"another change", []plan.Action{{Kind: plan.Retag, ENI: "a"}}, nil},
	} {
		check.Equal(t, deleteOnTerminationOf(c.plan), c.want, "%s", c.name)
	}
}

// A table of answers of the cloud about the instance, one after the other, and what follows from them.
func TestInstanceAnswers(t *testing.T) {
	gone := &cloud.Error{Class: cloud.Gone}
	type end struct{ vanished, stopped, uncertain bool }
	type step struct {
		seconds int
		state   string
		err     error
		want    instanceState
		askAt   int // 0: not asked once more
	}
	for _, c := range []struct {
		name      string
		suspected int // seconds; 0: never
		steps     []step
		is        end
	}{
		{"it runs", 0, []step{{10, "running", nil, instanceRuns, 0}}, end{}},
		{"it is not known, and is asked for once more", 0, []step{{10, "", gone, instanceUnknown, 15}}, end{uncertain: true}},
		{"it is not known twice", 0, []step{{10, "", gone, instanceUnknown, 15}, {15, "", gone, instanceGone, 15}}, end{vanished: true}},
		{"it is known after all", 0, []step{{10, "", gone, instanceUnknown, 15}, {15, "running", nil, instanceRuns, 0}}, end{}},
		{"it is terminated", 0, []step{{10, "shutting-down", nil, instanceGone, 0}}, end{vanished: true}},
		{"no answer", 0, []step{{10, "", errors.New("x"), instanceUnanswered, 0}}, end{uncertain: true}},
		{"it is stopped", 0, []step{{10, "stopping", nil, instanceStopped, 0}}, end{stopped: true}},
		{"it runs again", 0, []step{{10, "stopped", nil, instanceStopped, 0}, {20, "pending", nil, instanceRuns, 0}}, end{}},
		{"no news so soon after a suspicion", 8, []step{{10, "running", nil, instanceRuns, 13}}, end{}},
		{"no news long after it", 8, []step{{13, "running", nil, instanceRuns, 0}}, end{}},
		{"news soon after it", 8, []step{{10, "stopped", nil, instanceStopped, 0}}, end{stopped: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := instance{lag: 5 * second}
			if c.suspected > 0 {
				i.suspected.Store(true)
				if !i.applySuspicion(unix(c.suspected)) || i.applySuspicion(unix(c.suspected)) {
					t.Fatal("a suspicion is taken up once")
				}
			}
			for _, s := range c.steps {
				check.Equal(t, i.answered(cloud.Instance{State: s.state, Type: "t3.small"}, s.err, unix(s.seconds)), s.want, "at %d s", s.seconds)
				if want := unix(s.askAt); s.askAt == 0 && !i.askAt.IsZero() || s.askAt > 0 && !i.askAt.Equal(want) {
					t.Errorf("at %d s: asked once more at %v", s.seconds, i.askAt)
				}
			}
			check.Equal(t, (end{i.vanished, i.stopped, i.uncertain}), c.is, "vanished %v, stopped %v, uncertain %v", i.vanished, i.stopped, i.uncertain)
			if err := c.steps[len(c.steps)-1].err; err == nil && i.typ != "t3.small" {
				t.Errorf("type %q", i.typ)
			}
		})
	}
}

// A listing may trail a new instance; two listings that are apart count.
func TestInstanceIsMissed(t *testing.T) {
	i := instance{lag: 5 * second}
	for _, s := range []struct {
		seconds int
		there   bool
		want    bool // to be asked for; of one that is there: it was missed
	}{
		{1, true, false}, {2, false, false}, {3, false, false}, {7, false, true}, {8, true, true}, {9, true, false}, {10, false, false},
	} {
		var got bool
		if s.there {
			got = i.listed()
		} else {
			got = i.unlisted(unix(s.seconds))
		}
		check.Equal(t, got, s.want, "at %d s", s.seconds)
	}
}

func TestInstanceIsAskedFor(t *testing.T) {
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
		{"the last answer may trail", &instance{uncertain: true, askAt: unix(11)}, false, false},
		{"it has had its time", &instance{askAt: unix(10)}, true, true},
	} {
		check.Equal(t, c.i.askDue(unix(10), c.waits), c.want, "%s", c.name)
	}
}

// The limits are those of the instance's current type.
func TestInstanceLimits(t *testing.T) {
	i := instance{typ: "t3.small"}
	if i.limitsKnown() {
		t.Error("known before they were asked")
	}
	i.learned("t3.small", cloud.Limits{MaxENIs: 3})
	if !i.limitsKnown() || i.limits.MaxENIs != 3 {
		t.Errorf("%+v", i.limits)
	}
	i.answered(cloud.Instance{State: "stopped", Type: "m5.large"}, nil, time.Time{})
	if i.limitsKnown() {
		t.Error("those of another type count")
	}
}
