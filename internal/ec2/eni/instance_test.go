package eni

import (
	"errors"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/test/harness/check"
)

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
			if (end{i.vanished, i.stopped, i.uncertain}) != c.is {
				t.Errorf("vanished %v, stopped %v, uncertain %v", i.vanished, i.stopped, i.uncertain)
			}
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
