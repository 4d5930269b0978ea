package fleet

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/cloudfake"
	"github.com/berthnet/berth/internal/eni"
)

// Three subnets with 400 free addresses each, 100 nodes that need 11 each and
// one for the ENI: exactly 1,200. The last node is served from what is left of
// all three.
func TestSubnetsAreFilledWithoutOneFailedCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 100)
		for i, id := range []string{"subnet-1", "subnet-2", "subnet-3"} {
			w.cloud.AddSubnet(id, "zone-a", []string{"10.1.0.0/23", "10.2.0.0/23", "10.3.0.0/23"}[i], map[string]string{"for": "pods"})
			for range 512 - 5 - 400 { // of others
				if _, err := w.cloud.CreateENI(t.Context(), cloud.CreateENI{SubnetID: id}); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.cloud.ResetCalls()
		w.cloud.SetLatency("", 100*time.Millisecond)
		p := w.operator(w.cloud)
		s := settings(11, 0)
		s.SubnetTags = map[string]string{"for": "pods"}
		for _, o := range w.objects {
			p.set(t, o, s)
		}
		pass(5 * minute)
		p.stop()
		for _, c := range w.cloud.Calls() {
			if c.Op == "CreateENI" && c.Err != nil {
				t.Errorf("a create failed: %v", c.Err)
			}
		}
		short := 0
		for _, o := range w.objects {
			short += 11 - o.available()
		}
		// Two more ENIs than nodes take two addresses for themselves.
		if n := w.cloud.Count("CreateENI"); short != 2 || n != 102 {
			t.Errorf("%d addresses are missing and %d ENIs were made; want 2 and 102", short, n)
		}
		subnets, err := w.cloud.Subnets(t.Context(), cloud.SubnetFilter{Tags: s.SubnetTags})
		if err != nil {
			t.Fatal(err)
		}
		for _, sn := range subnets {
			if sn.Free != 0 {
				t.Errorf("%s has %d addresses left", sn.ID, sn.Free)
			}
		}
	})
}

func TestJoinsShareCalls(t *testing.T) {
	for _, c := range []struct {
		name  string
		every time.Duration
		most  int
	}{{"at once", 0, 2}, {"within a second", 10 * time.Millisecond, 6}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 100)
				w.cloud.SetLatency("", 50*time.Millisecond)
				p := w.operator(w.cloud)
				for _, o := range w.objects {
					p.set(t, o, settings(0, 8))
					pass(c.every)
				}
				pass(20 * time.Second)
				p.stop()
				if n := w.cloud.Count("ENIs", "Instances", "Instance"); n > c.most {
					t.Errorf("%d describe calls, want at most %d", n, c.most)
				}
				if n := w.cloud.Count("Subnets"); n > 2 {
					t.Errorf("%d DescribeSubnets", n)
				}
				w.agree()
			})
		})
	}
}

func TestVanishedInstanceIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		p := w.operator(w.cloud)
		var nodes []*writer
		for _, o := range w.objects {
			nodes = append(nodes, p.set(t, o, settings(0, 8)))
		}
		pass(10 * time.Second)
		w.cloud.Terminate("i-000")
		pass(5 * minute)
		if s := nodes[0].last(); !s.Vanished || !strings.Contains(s.LastError, "i-000") {
			t.Errorf("status of the terminated: %+v", s)
		}
		if s := nodes[1].last(); s.Vanished || s.LastError != "" {
			t.Errorf("status of the other: %+v", s)
		}
		before := w.cloud.Count("Instances")
		nodes[0].start()
		p.Kick("node-000")
		pass(5 * minute)
		if n := w.cloud.Count("Instances") - before; n != 0 {
			t.Errorf("%d calls for a vanished instance", n)
		}
		w.cloud.AddInstance("i-000", "m5.xlarge", "subnet-home")
		pass(5 * minute)
		if s := nodes[0].last(); s.Vanished || s.LastError != "" || nodes[0].available() < 8 {
			t.Errorf("after it came back: %+v with %d addresses", s, nodes[0].available())
		}
		p.stop()
	})
}

func TestBadSettingsConcernOneNodeAndHeal(t *testing.T) {
	for _, c := range []struct {
		name, want string
		class      cloud.Class
		spoil      func(*eni.Settings)
	}{
		{"security group tags", "team=nobody", cloud.Gone, func(s *eni.Settings) { s.GroupTags = map[string]string{"team": "nobody"} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 2)
				p := w.operator(w.cloud)
				good, bad := settings(0, 8), settings(0, 8)
				c.spoil(&bad)
				ill, well := p.set(t, w.objects[0], bad), p.set(t, w.objects[1], good)
				pass(minute)
				if s := ill.last(); s.Class != c.class || !strings.Contains(s.LastError, c.want) || s.NextTry.IsZero() {
					t.Errorf("status: %+v", s)
				}
				if s := well.last(); s.LastError != "" || s.Available != 8 || s.Needed != 0 {
					t.Errorf("status of the other: %+v", s)
				}
				if err := p.Set("node-000", "i-000", good, eni.Inventory{}, ill); err != nil {
					t.Fatal(err)
				}
				pass(5 * time.Second)
				if s := ill.last(); s.LastError != "" || s.Available != 8 {
					t.Errorf("once corrected: %+v", s)
				}
				p.stop()
				w.agree()
			})
		})
	}
}

// A node that needs nothing calls nothing: that its instance was stopped, and
// that it runs again, shows when somebody suspects it, at one call each.
func TestSuspectedInstanceIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		var state atomic.Value
		state.Store("running")
		var asked atomic.Int32
		cl := &api{Cloud: w.cloud, instances: func(ids []string) ([]cloud.Instance, error) {
			asked.Add(int32(len(ids)))
			return []cloud.Instance{{ID: ids[0], Type: "m5.xlarge", State: state.Load().(string)}}, nil
		}}
		p := w.operator(cl)
		n, other := p.set(t, w.objects[0], settings(0, 8)), p.set(t, w.objects[1], settings(0, 8))
		pass(minute)
		before := asked.Load()
		state.Store("stopped")
		pass(minute)
		if s := n.last(); s.LastError != "" || asked.Load() != before {
			t.Fatalf("%d calls for nothing: %+v", asked.Load()-before, s)
		}
		p.CheckInstance(n.name)
		pass(5 * time.Second)
		if s := n.last(); s.Class != cloud.Conflict || !strings.Contains(s.LastError, "stopped") || asked.Load() != before+1 {
			t.Errorf("after %d calls: %+v", asked.Load()-before, s)
		}
		state.Store("running")
		p.CheckInstance(n.name) // long before it is asked for again by itself
		pass(5 * time.Second)
		if s := n.last(); s.LastError != "" || asked.Load() != before+2 {
			t.Errorf("once it runs, after %d calls: %+v", asked.Load()-before, s)
		}
		if s := other.last(); s.LastError != "" {
			t.Errorf("the other: %+v", s)
		}
		p.stop()
	})
}

func TestStoppedInstanceIsNotChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		var state atomic.Value
		state.Store("stopped")
		cl := &api{Cloud: w.cloud, instances: func(ids []string) ([]cloud.Instance, error) {
			return []cloud.Instance{{ID: ids[0], Type: "m5.xlarge", State: state.Load().(string)}}, nil
		}}
		w.cloud.Inject(cloudfake.Fault{Op: "AttachENI", Times: 1, Err: cloudfake.Err(cloud.Conflict, "IncorrectState")})
		p := w.operator(cl)
		n := p.set(t, w.objects[0], settings(0, 8))
		pass(10 * time.Second)
		before := w.cloud.Count("CreateENI", "AttachENI", "DeleteENI")
		n.start()
		p.Kick(n.name)
		pass(20 * time.Second)
		if s := n.last(); !strings.Contains(s.LastError, "stopped") || w.cloud.Count("CreateENI", "AttachENI", "DeleteENI") != before {
			t.Errorf("status %+v; calls %v", s, w.cloud.Calls())
		}
		state.Store("running")
		pass(3 * minute)
		if s := n.last(); s.LastError != "" || s.Available < 8 {
			t.Errorf("running again: %+v", s)
		}
		p.stop()
	})
}

// Settings that are set again as they were, as with every change of an object,
// do not have a person's trouble tried again.
func TestSetAgainIsNoRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.cloud.Inject(cloudfake.Fault{Op: "CreateENI", Err: cloudfake.Err(cloud.Permission, "UnauthorizedOperation")})
		p := w.operator(w.cloud)
		n := p.set(t, w.objects[0], settings(0, 8))
		for range 100 {
			pass(100 * time.Millisecond)
			if err := p.Set(n.name, n.instance, settings(0, 8), eni.Inventory{}, n); err != nil {
				t.Fatal(err)
			}
		}
		if got := w.cloud.Count("CreateENI"); got != 1 {
			t.Errorf("%d creates in 10 s of Set", got)
		}
		w.cloud.ClearFaults()
		pass(3 * minute)
		p.stop()
		w.agree()
	})
}

// One node's API trouble stops no other, and its own growth neither.
func TestPublishFailureStopsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		p := w.operator(w.cloud)
		for i, o := range w.objects {
			n := p.set(t, o, settings(0, 8))
			if i == 0 {
				n.mu.Lock()
				n.failed = errors.New("API server down")
				n.mu.Unlock()
			}
		}
		pass(10 * time.Second)
		for _, o := range w.objects[1:] {
			if o.available() != 8 {
				t.Errorf("%s has %d addresses", o.name, o.available())
			}
		}
		n := p.writers["node-000"]
		n.mu.Lock()
		n.failed = nil
		n.mu.Unlock()
		pass(3 * minute)
		p.stop()
		w.agree()
	})
}

// An address that was taken off by someone else is not published again by who
// gave it a moment ago.
func TestDoubtObservesBeforePublishing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.operator(w.cloud)
		o := w.objects[0]
		p.set(t, o, settings(0, 8))
		pass(time.Second)
		o.mu.Lock()
		var e eni.ENI
		stolen := o.inv.ENIs[1].Addresses[0]
		o.inv.ENIs = slices.Clone(o.inv.ENIs)
		e = o.inv.ENIs[1]
		o.inv.ENIs[1].Addresses = e.Addresses[1:]
		o.version++ // another operator released it, and published that
		o.mu.Unlock()
		if err := w.cloud.UnassignAddresses(t.Context(), e.ID, cloud.HostPrefixes(e.Addresses[:1])); err != nil {
			t.Fatal(err)
		}
		o.start()
		p.Kick(o.name)
		pass(10 * time.Second)
		p.stop()
		o.mu.Lock()
		for _, x := range o.inv.ENIs {
			for _, a := range x.Addresses {
				if a == stolen {
					t.Errorf("%v was published again", a)
				}
			}
		}
		o.mu.Unlock()
		w.agree()
	})
}

func TestUsePrimaryAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.operator(w.cloud)
		s := settings(0, 8)
		s.UsePrimaryAddress = true
		n := p.set(t, w.objects[0], s)
		pass(10 * time.Second)
		if st := n.last(); st.Available != 8 {
			t.Errorf("status %+v", st)
		}
		for _, c := range w.cloud.Calls() {
			if c.Op == "CreateENI" && c.N != 7 {
				t.Errorf("asked for %d addresses besides the ENI's own, want 7", c.N)
			}
		}
		// All excess but the primary address goes; that goes with the ENI alone.
		s.Policy.PreAllocate = 1
		n.start()
		if err := p.Set(n.name, n.instance, s, eni.Inventory{}, n); err != nil {
			t.Fatal(err)
		}
		pass(10 * minute)
		if st := n.last(); st.Available != 2 || st.LastError != "" {
			t.Errorf("after shrinking: %+v", st)
		}
		p.stop()
	})
}

func TestRemoveTouchesNothingMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.cloud.SetLatency("CreateENI", time.Second)
		p := w.operator(w.cloud)
		n := p.set(t, w.objects[0], settings(0, 8))
		pass(500 * time.Millisecond) // in the middle of the create
		version := n.published()
		p.Remove(n.name)
		pass(10 * minute)
		if n.published() != version || w.cloud.Count("AttachENI") != 0 {
			t.Errorf("published %d times more, attached %d times", n.published()-version, w.cloud.Count("AttachENI"))
		}
		p.set(t, w.objects[0], settings(0, 8)) // the next full listing shows the ENI that was left
		pass(3 * minute)
		p.stop()
		if n.available() != 8 {
			t.Errorf("%d addresses", n.available())
		}
		w.agree()
	})
}

// EC2's answer may trail what made somebody suspect an instance: one that shows
// no change is asked for once more, when it must show.
func TestSuspicionOutlivesATrailingAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		var state atomic.Value
		state.Store("running")
		var asked atomic.Int32
		cl := &api{Cloud: w.cloud, instances: func(ids []string) ([]cloud.Instance, error) {
			asked.Add(1)
			return []cloud.Instance{{ID: ids[0], Type: "m5.xlarge", State: state.Load().(string)}}, nil
		}}
		p := w.operator(cl)
		n := p.set(t, w.objects[0], settings(0, 8))
		pass(minute)
		for _, next := range []string{"stopped", "running"} {
			before := asked.Load()
			p.CheckInstance(n.name)
			pass(time.Second)
			state.Store(next)
			pass(10 * time.Second)
			if s := n.last(); (s.Class == cloud.Conflict) != (next == "stopped") || asked.Load() != before+2 {
				t.Errorf("%s: after %d calls %+v; want 2", next, asked.Load()-before, s)
			}
		}
		before := asked.Load()
		p.CheckInstance(n.name) // for nothing
		pass(10 * time.Second)
		if got := asked.Load() - before; got != 2 {
			t.Errorf("%d calls, want 2", got)
		}
		p.stop()
	})
}
