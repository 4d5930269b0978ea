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

// instances answers DescribeInstances with the same state for all instances.
type instances struct {
	state   atomic.Value
	calls   atomic.Int32
	unknown atomic.Int32 // number of next replies without any instance
	failing int32        // number of the call that gets no reply
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

// suspect returns an operator with one node whose instance is described by ec2.
func (w *world) suspect(ec2 *instances) (*operator, *writer) {
	p := w.operator(&api{Cloud: w.cloud, instances: ec2.describe})
	return p, p.set(w.t, w.objects[0], settings(0, 8))
}

// A single reply without an instance, as a lagging EC2 replica gives, does not mean that the instance has vanished:
// EC2 is asked again first.
func TestOneReplyWithoutTheInstance(t *testing.T) {
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
					t.Fatalf("status after one reply without the instance = %+v, want no error", s)
				}
			}
			if ec2.unknown.Load() >= 0 {
				t.Fatal("the instance was not described again")
			}
		}
		ec2.unknown.Store(1000)
		for i := 0; i < 5 && !n.last().Vanished; i++ { // a listing in between shows the instance and takes precedence
			p.CheckInstance(n.name)
			pass(10 * time.Second)
		}
		if s, asked := n.last(), 1000-ec2.unknown.Load(); !s.Vanished || asked < 2 || asked > 10 {
			t.Errorf("after %d replies without the instance: status = %+v, want it vanished after two in a row", asked, s)
		}
	})
}

// A suspicion lasts until EC2 replies. If EC2 fails to reply to the second request, the suspicion does not stay open,
// and the failure is not reported forever.
func TestSuspicionOutlivesAFailure(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		ec2 := instancesIn("running")
		ec2.failing = 2
		p, n := w.suspect(ec2)
		pass(minute)
		for _, next := range []string{"running", "stopped"} {
			ec2.calls.Store(0)
			p.CheckInstance(n.name)
			pass(time.Second) // the first reply says running
			ec2.state.Store(next)
			pass(20 * time.Second)
			if s := n.last(); (s.LastError != "") != (next == "stopped") || s.LastError != "" && s.Class != cloud.Conflict {
				t.Errorf("%s: status after %d calls = %+v, want a conflict only when stopped", next, ec2.calls.Load(), s)
			}
		}
	})
}

// EC2's reply may lag behind the change that caused a suspicion. After a reply without a change, EC2 is asked again
// at a time when the change must be visible.
func TestSuspicionOutlivesALaggingReply(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		ec2 := instancesIn("running")
		p, n := w.suspect(ec2)
		pass(minute)
		for _, next := range []string{"stopped", "running", "running"} { // the last suspicion is unfounded
			ec2.calls.Store(0)
			p.CheckInstance(n.name)
			pass(time.Second)
			ec2.state.Store(next)
			pass(10 * time.Second)
			if s := n.last(); (s.Class == cloud.Conflict) != (next == "stopped") || ec2.calls.Load() != 2 {
				t.Errorf("%s: status after %d calls = %+v, want 2 calls, and a conflict only when stopped", next, ec2.calls.Load(), s)
			}
		}
	})
}

// An idle node makes no calls. One call per suspicion detects that its instance was stopped or started.
func TestSuspectedInstanceIsDescribed(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		ec2 := instancesIn("running")
		p, n := w.suspect(ec2)
		other := p.set(t, w.objects[1], settings(0, 8))
		pass(minute)
		ec2.calls.Store(0)
		ec2.state.Store("stopped")
		pass(minute)
		if s := n.last(); s.LastError != "" || ec2.calls.Load() != 0 {
			t.Fatalf("%d calls without a suspicion, status = %+v, want no calls and no error", ec2.calls.Load(), s)
		}
		p.CheckInstance(n.name)
		pass(5 * time.Second)
		if s := n.last(); s.Class != cloud.Conflict || !strings.Contains(s.LastError, "stopped") || ec2.calls.Load() != 1 {
			t.Errorf("status after %d calls = %+v, want a conflict after 1", ec2.calls.Load(), s)
		}
		ec2.state.Store("running")
		p.CheckInstance(n.name) // long before the next regular check
		pass(5 * time.Second)
		if s := n.last(); s.LastError != "" || ec2.calls.Load() != 2 {
			t.Errorf("status of the restarted instance after %d calls = %+v, want no error after 2", ec2.calls.Load(), s)
		}
		if s := other.last(); s.LastError != "" {
			t.Errorf("status of the other node = %+v, want no error", s)
		}
	})
}

// Hundreds of nodes that are not ready share a few calls, at first and later.
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
			{"stopped but not suspected", "", minute, 0, cloud.Unknown},
			{"stopped", "stopped", 5 * time.Second, 2, cloud.Conflict},
			{"stopped for 5 min", "", 5 * minute, 12, cloud.Conflict},
			{"running again", "running", 5 * time.Second, 2, cloud.Unknown},
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
					t.Fatalf("%s: status of %s = %+v, want class %v", c.name, n.name, s, c.trouble)
				}
			}
			check.AtMost(t, ec2.calls.Swap(0), c.most, "%s: number of calls", c.name)
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
			t.Errorf("status = %+v, want an error about the stopped instance and no changes; calls: %v", s, w.cloud.Front.Calls())
		}
		ec2.state.Store("running")
		pass(3 * minute)
		if s := n.last(); s.LastError != "" || s.Available < 8 {
			t.Errorf("status of the running instance = %+v, want 8 available addresses and no error", s)
		}
	})
}

func TestVanishedInstanceIsLeftAlone(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		p := w.operator(w.cloud)
		n, other := p.set(t, w.objects[0], settings(0, 8)), p.set(t, w.objects[1], settings(0, 8))
		pass(10 * time.Second)
		w.cloud.State.Terminate(n.instance)
		w.apart = true // its pods lose their addresses
		pass(5 * minute)
		if s := n.last(); !s.Vanished || !strings.Contains(s.LastError, n.instance) {
			t.Errorf("status of the node with the terminated instance = %+v, want vanished", s)
		}
		if s := other.last(); s.Vanished || s.LastError != "" {
			t.Errorf("status of the other node = %+v, want no error", s)
		}
		before := w.cloud.Front.Count("Instances")
		n.runFor(1, 5*minute)
		check.Equal(t, w.cloud.Front.Count("Instances")-before, 0, "calls for a vanished instance")
		w.cloud.State.AddInstance(n.instance, "m5.xlarge", "subnet-home")
		pass(5 * minute)
		if s := n.last(); s.Vanished || s.LastError != "" || n.available() < 8 {
			t.Errorf("status after the instance reappeared = %+v with %d addresses, want no error and at least 8", s, n.available())
		}
	})
}

// Whatever state and type EC2 reports, pods keep their addresses, and they get more once the reports are true again.
func TestImpossibleInstances(t *testing.T) {
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
			t.Errorf("EC2 gave %d false replies, want at least 60", lies.Load())
		}
	})
}

// The settings of a node may name a wrong instance type, by mistake or intentionally. The limits are those of the
// type that EC2 reports.
func TestLimitsAreThoseOfTheCloud(t *testing.T) {
	for _, said := range []string{"m5.4xlarge", "z9.none"} {
		t.Run(said, inBubble(1, func(t *testing.T, w *world) { // the instance is an m5.xlarge
			s := settings(0, 60)
			s.InstanceType = said
			n := w.operator(w.cloud).set(t, w.objects[0], s)
			pass(30 * time.Second)
			got := n.inventory()
			if st := n.last(); st.InstanceType != "m5.xlarge" || st.LastError != "" || !st.AtCapacity {
				t.Errorf("status = %+v, want m5.xlarge at capacity", st)
			}
			if got.InstanceType != "m5.xlarge" || got.Limits.MaxENIs != 4 || len(got.ENIs) > 4 || n.available() > 4*14 {
				t.Errorf("inventory of %s with %d ENIs and %d addresses exceeds the limits of m5.xlarge", got.InstanceType, len(got.ENIs), n.available())
			}
		}))
	}
}
