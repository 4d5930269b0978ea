package fleet

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/test/harness/check"
)

// instances answers EC2's questions about instances: all are in one state.
type instances struct {
	state   atomic.Value
	calls   atomic.Int32
	unknown atomic.Int32 // coming answers that know none of them
	failing int32        // the call that has no answer
}

func instancesIn(state string) *instances {
	i := &instances{}
	i.state.Store(state)
	return i
}

func (i *instances) describe(ids []string) (out []cloud.Instance, _ error) {
	if i.calls.Add(1) == i.failing {
		return nil, &cloud.Error{Class: cloud.Transient, Op: "DescribeInstances", Message: "no reply"}
	}
	if i.unknown.Add(-1) >= 0 {
		return nil, nil
	}
	for _, id := range ids {
		out = append(out, cloud.Instance{ID: id, Type: "m5.xlarge", State: i.state.Load().(string)})
	}
	return out, nil
}

// suspect returns an operator with one node, whose instance is described by the answers in turn.
func (w *world) suspect(ec2 *instances) (*operator, *writer) {
	p := w.operator(&api{Cloud: w.cloud, instances: ec2.describe})
	return p, p.set(w.t, w.objects[0], settings(0, 8))
}

// One answer that lacks an instance, as a trailing replica of EC2 gives, does not end it: EC2 is asked
// again before anything follows.
func TestOneAnswerWithoutTheInstance(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		ec2 := instancesIn("running")
		p, n := w.suspect(ec2)
		pass(minute)
		for range 3 {
			ec2.unknown.Store(1)
			p.CheckInstance(n.name)
			for range 60 {
				pass(time.Second)
				if s := n.last(); s.Vanished || s.LastError != "" {
					t.Fatalf("after one answer: %+v", s)
				}
			}
			if ec2.unknown.Load() >= 0 {
				t.Fatal("it was not asked for again")
			}
		}
		ec2.unknown.Store(1000)
		for i := 0; i < 5 && !n.last().Vanished; i++ { // a listing between two answers has it, and outranks them
			p.CheckInstance(n.name)
			pass(10 * time.Second)
		}
		if s, asked := n.last(), 1000-ec2.unknown.Load(); !s.Vanished || asked < 2 || asked > 10 {
			t.Errorf("after %d answers without it: %+v; want it vanished after two in a row", asked, s)
		}
	})
}

// A suspicion lasts until it is answered. If EC2 fails to answer the second question, the question does
// not stay open, nor is its failure reported for ever.
func TestSuspicionOutlivesAFailure(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		ec2 := instancesIn("running")
		ec2.failing = 2
		p, n := w.suspect(ec2)
		pass(minute)
		for _, next := range []string{"running", "stopped"} {
			ec2.calls.Store(0)
			p.CheckInstance(n.name)
			pass(time.Second) // the first answer is that it runs
			ec2.state.Store(next)
			pass(20 * time.Second)
			if s := n.last(); (s.LastError != "") != (next == "stopped") || s.LastError != "" && s.Class != cloud.Conflict {
				t.Errorf("%s, after %d calls: %+v", next, ec2.calls.Load(), s)
			}
		}
	})
}

// EC2's answer may trail the change that caused a suspicion. An answer without a change is followed by
// another question, at a time when the change must show.
func TestSuspicionOutlivesATrailingAnswer(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		ec2 := instancesIn("running")
		p, n := w.suspect(ec2)
		pass(minute)
		for _, next := range []string{"stopped", "running", "running"} { // the last suspicion is for nothing
			ec2.calls.Store(0)
			p.CheckInstance(n.name)
			pass(time.Second)
			ec2.state.Store(next)
			pass(10 * time.Second)
			if s := n.last(); (s.Class == cloud.Conflict) != (next == "stopped") || ec2.calls.Load() != 2 {
				t.Errorf("%s: after %d calls %+v; want 2", next, ec2.calls.Load(), s)
			}
		}
	})
}

// A node that needs nothing makes no calls. That its instance was stopped, or runs again, is found by
// one call for each suspicion.
func TestSuspectedInstanceIsAskedFor(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		ec2 := instancesIn("running")
		p, n := w.suspect(ec2)
		other := p.set(t, w.objects[1], settings(0, 8))
		pass(minute)
		ec2.calls.Store(0)
		ec2.state.Store("stopped")
		pass(minute)
		if s := n.last(); s.LastError != "" || ec2.calls.Load() != 0 {
			t.Fatalf("%d calls for nothing: %+v", ec2.calls.Load(), s)
		}
		p.CheckInstance(n.name)
		pass(5 * time.Second)
		if s := n.last(); s.Class != cloud.Conflict || !strings.Contains(s.LastError, "stopped") || ec2.calls.Load() != 1 {
			t.Errorf("after %d calls: %+v", ec2.calls.Load(), s)
		}
		ec2.state.Store("running")
		p.CheckInstance(n.name) // long before it is asked for again by itself
		pass(5 * time.Second)
		if s := n.last(); s.LastError != "" || ec2.calls.Load() != 2 {
			t.Errorf("once it runs, after %d calls: %+v", ec2.calls.Load(), s)
		}
		if s := other.last(); s.LastError != "" {
			t.Errorf("the other: %+v", s)
		}
	})
}

// Hundreds of nodes that are not ready cost a few calls, at first and later.
func TestSuspicionsShareCalls(t *testing.T) {
	bubble(t, 300, func(t *testing.T, w *world) {
		ec2 := instancesIn("running")
		p, _ := w.suspect(ec2)
		p.setAll(settings(0, 1))
		pass(minute)
		ec2.calls.Store(0)
		ec2.state.Store("stopped")
		for _, c := range []struct {
			name, state string
			wait        time.Duration
			most        int32
			trouble     cloud.Class
		}{
			{"stopped, which nobody suspects", "", minute, 0, cloud.Unknown},
			{"stopped", "stopped", 5 * time.Second, 2, cloud.Conflict},
			{"stopped for 5 min", "", 5 * minute, 12, cloud.Conflict},
			{"run again", "running", 5 * time.Second, 2, cloud.Unknown},
		} {
			if c.state != "" {
				ec2.state.Store(c.state)
				for _, o := range w.objects {
					p.CheckInstance(o.name)
				}
			}
			pass(c.wait)
			for _, n := range p.writers {
				if s := n.last(); s.Class != c.trouble {
					t.Fatalf("%s: %s: %+v", c.name, n.name, s)
				}
			}
			check.AtMost(t, ec2.calls.Swap(0), c.most, "%s: calls", c.name)
		}
	})
}

func TestStoppedInstanceIsNotChanged(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		ec2 := instancesIn("stopped")
		w.cloud.Front.Inject(cloudfake.Fault{Op: "AttachENI", Times: 1, Err: cloudfake.Err(cloud.Conflict, "IncorrectState")})
		_, n := w.suspect(ec2)
		pass(10 * time.Second)
		before := w.cloud.Front.Count("CreateENI", "AttachENI", "DeleteENI")
		n.runFor(1, 20*time.Second)
		if s := n.last(); !strings.Contains(s.LastError, "stopped") || w.cloud.Front.Count("CreateENI", "AttachENI", "DeleteENI") != before {
			t.Errorf("status %+v; calls %v", s, w.cloud.Front.Calls())
		}
		ec2.state.Store("running")
		pass(3 * minute)
		if s := n.last(); s.LastError != "" || s.Available < 8 {
			t.Errorf("running again: %+v", s)
		}
	})
}

func TestVanishedInstanceIsLeftAlone(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		p := w.operator(w.cloud)
		n, other := p.set(t, w.objects[0], settings(0, 8)), p.set(t, w.objects[1], settings(0, 8))
		pass(10 * time.Second)
		w.cloud.State.Terminate(n.instance)
		w.apart = true // its pods' addresses are no more
		pass(5 * minute)
		if s := n.last(); !s.Vanished || !strings.Contains(s.LastError, n.instance) {
			t.Errorf("status of the terminated: %+v", s)
		}
		if s := other.last(); s.Vanished || s.LastError != "" {
			t.Errorf("status of the other: %+v", s)
		}
		before := w.cloud.Front.Count("Instances")
		n.runFor(1, 5*minute)
		check.Equal(t, w.cloud.Front.Count("Instances")-before, 0, "calls for a vanished instance")
		w.cloud.State.AddInstance(n.instance, "m5.xlarge", "subnet-home")
		pass(5 * minute)
		if s := n.last(); s.Vanished || s.LastError != "" || n.available() < 8 {
			t.Errorf("after it came back: %+v with %d addresses", s, n.available())
		}
	})
}

// Whatever state and type EC2 names, pods keep their addresses, and get more once it tells the truth.
func TestInstancesThatCannotBeTrue(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		states := []string{"terminated", "running", "stopped", "shutting-down", "nonsense", "pending", "stopping"}
		types := []string{"t3.small", "m5.4xlarge", "nonsense", "", "c5.large"}
		var lies atomic.Int32
		var honest atomic.Bool
		p := w.operator(&api{Cloud: w.cloud, instances: func(ids []string) ([]cloud.Instance, error) {
			list, err := w.cloud.Instances(t.Context(), ids)
			for i := range list {
				if n := int(lies.Add(1)); !honest.Load() {
					list[i].State, list[i].Type = states[n%len(states)], types[n%len(types)]
				}
			}
			return list, err
		}})
		s := settings(0, 4)
		s.InstanceType = ""
		p.setAll(s)
		for i := range 120 {
			for _, n := range p.writers {
				if i < 20 {
					n.start()
				}
				n.run(0)
				p.CheckInstance(n.name)
			}
			pass(minute / 4)
			w.kept()
		}
		honest.Store(true)
		for _, n := range p.writers {
			p.CheckInstance(n.name)
		}
		pass(10 * minute)
		for _, n := range p.writers {
			n.wantPods(t, 20)
		}
		if lies.Load() < 60 {
			t.Errorf("EC2 was asked %d times", lies.Load())
		}
	})
}

// The settings of a node may have a wrong type, by mistake or on purpose: the limits are those of the
// type that the cloud names.
func TestLimitsAreThoseOfTheCloud(t *testing.T) {
	for _, said := range []string{"m5.4xlarge", "z9.none"} {
		t.Run(said, inBubble(1, func(t *testing.T, w *world) { // of m5.xlarge
			s := settings(0, 60)
			s.InstanceType = said
			n := w.operator(w.cloud).set(t, w.objects[0], s)
			pass(30 * time.Second)
			got := n.inventory()
			if st := n.last(); st.InstanceType != "m5.xlarge" || st.LastError != "" || !st.AtCapacity {
				t.Errorf("status %+v", st)
			}
			if got.InstanceType != "m5.xlarge" || got.Limits.MaxENIs != 4 || len(got.ENIs) > 4 || n.available() > 4*14 {
				t.Errorf("%s with %d ENIs and %d addresses", got.InstanceType, len(got.ENIs), n.available())
			}
		}))
	}
}
