package fleet

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/test/harness/check"
)

// Three subnets have 400 free addresses each, and 100 nodes need 11 addresses each and one for their ENI: exactly 1,200.
// The last node is served from the remainders of all three.
func TestSubnetsAreFilledWithoutOneFailedCreate(t *testing.T) {
	bubble(t, 100, func(t *testing.T, w *world) {
		for i, id := range []string{"subnet-1", "subnet-2", "subnet-3"} {
			w.cloud.State.AddSubnet(id, "zone-a", []string{"10.1.0.0/23", "10.2.0.0/23", "10.3.0.0/23"}[i], map[string]string{"for": "pods"})
			for range 512 - 5 - 400 { // addresses of other ENIs
				if _, err := w.cloud.CreateENI(t.Context(), cloud.CreateENI{SubnetID: id}); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.cloud.Front.ResetCalls()
		w.cloud.Front.SetLatency("", 100*time.Millisecond)
		p := w.operator(w.cloud)
		s := settings(11, 0)
		s.SubnetTags = map[string]string{"for": "pods"}
		p.setAll(s)
		pass(5 * minute)
		p.stop()
		for _, c := range w.cloud.Front.Calls() {
			if c.Op == "CreateENI" && c.Err != nil {
				t.Errorf("CreateENI() failed: %v", c.Err)
			}
		}
		short := 0
		for _, o := range w.objects {
			short += 11 - o.available()
		}
		// There are two more ENIs than nodes, and each of the two occupies an address itself.
		if n := w.cloud.Front.Count("CreateENI"); short != 2 || n != 102 {
			t.Errorf("%d addresses missing and %d ENIs created, want 2 and 102", short, n)
		}
		subnets := check.Must(w.cloud.Subnets(t.Context(), cloud.SubnetFilter{Tags: s.SubnetTags}))(t)
		for _, sn := range subnets {
			check.Equal(t, sn.Free, 0, "%s: free addresses", sn.ID)
		}
	})
}

func TestJoinsShareCalls(t *testing.T) {
	for _, c := range []struct {
		name  string
		every time.Duration
		most  int
	}{{"simultaneously", 0, 2}, {"within a second", 10 * time.Millisecond, 6}} {
		t.Run(c.name, inBubble(100, func(t *testing.T, w *world) {
			w.cloud.Front.SetLatency("", 50*time.Millisecond)
			p := w.operator(w.cloud)
			for _, o := range w.objects {
				p.set(t, o, settings(0, 8))
				pass(c.every)
			}
			pass(20 * time.Second)
			p.stop()
			check.AtMost(t, w.cloud.Front.Count("ENIs", "Instances", "Instance"), c.most, "describe calls")
			check.AtMost(t, w.cloud.Front.Count("Subnets"), 2, "DescribeSubnets")
		}))
	}
}

func TestInvalidSettingsAffectOneNode(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		p := w.operator(w.cloud)
		bad := settings(0, 8)
		bad.GroupTags = map[string]string{"team": "nobody"}
		ill, well := p.set(t, w.objects[0], bad), p.set(t, w.objects[1], settings(0, 8))
		pass(minute)
		if s := ill.last(); s.Class != cloud.Gone || !strings.Contains(s.LastError, "team=nobody") || s.NextTry.IsZero() {
			t.Errorf("status = %+v, want an error about the tag, and a time of the next try", s)
		}
		if s := well.last(); s.LastError != "" || s.Available != 8 || s.Needed != 0 {
			t.Errorf("status of the other node = %+v, want 8 available addresses and no error", s)
		}
		ill.configure(t, settings(0, 8))
		pass(5 * time.Second)
		if s := ill.last(); s.LastError != "" || s.Available != 8 {
			t.Errorf("status after the correction = %+v, want 8 available addresses and no error", s)
		}
	})
}

// Setting the same settings again, as happens on every change of an object, does not retry a step that needs human
// intervention.
func TestSettingSameSettingsDoesNotRetry(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.cloud.Front.Inject(cloudfake.Fault{Op: "CreateENI", Err: cloudfake.Err(cloud.Permission, "UnauthorizedOperation")})
		n := w.operator(w.cloud).set(t, w.objects[0], settings(0, 8))
		for range 100 {
			pass(100 * time.Millisecond)
			n.configure(t, settings(0, 8))
		}
		check.Equal(t, w.cloud.Front.Count("CreateENI"), 1, "CreateENI calls while the same settings were set for 10 s")
		w.cloud.Front.ClearFaults()
		pass(3 * minute)
	})
}

// A node's failure to publish to the API server stops neither other nodes nor its own growth.
func TestPublishFailureAffectsOneNode(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		p := w.operator(w.cloud)
		p.setAll(settings(0, 8))
		n := p.writers["node-000"]
		n.fail(errors.New("API server down"))
		pass(10 * time.Second)
		for _, o := range w.objects[1:] {
			check.Equal(t, o.available(), 8, "%s: addresses", o.name)
		}
		n.fail(nil)
		pass(3 * minute)
	})
}

// A process that assigned an address does not publish it again after another process released it.
func TestReleasedAddressIsNotPublishedAgain(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		p := w.operator(w.cloud)
		o := p.set(t, w.objects[0], settings(0, 8))
		pass(time.Second)
		o.mu.Lock()
		o.inv.ENIs = slices.Clone(o.inv.ENIs)
		e := o.inv.ENIs[1]
		stolen := e.Addresses[0]
		o.inv.ENIs[1].Addresses = e.Addresses[1:]
		o.version++ // another operator released the address and published that
		o.mu.Unlock()
		check.OK(t, w.cloud.UnassignAddresses(t.Context(), e.ID, cloud.HostPrefixes(e.Addresses[:1])))
		o.runFor(1, 10*time.Second)
		p.stop()
		for _, x := range o.inventory().ENIs {
			if slices.Contains(x.Addresses, stolen) {
				t.Errorf("released address %v was published again", stolen)
			}
		}
	})
}

// After Invalidate and an observation of the node, an ENI that someone detached is no longer published, long before
// the next full listing.
func TestInvalidateFindsDetachedENIs(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		p := w.operator(w.cloud)
		n := p.set(t, w.objects[0], settings(0, 4))
		n.runFor(1, 130*time.Second)
		w.apart = true // the pod loses its address
		looked := 0
		for _, e := range w.attached() {
			looked++
			// Otherwise the operator, if it observes meanwhile, attaches it again.
			w.cloud.Front.Inject(cloudfake.Fault{Op: "AttachENI", Err: cloudfake.Err(cloud.Transient, "")})
			check.OK(t, w.cloud.DetachENI(t.Context(), e.Attachment.ID))
			pass(3 * time.Second)
			check.OK(t, w.cloud.DeleteENI(t.Context(), e.ID))
			w.cloud.Front.ClearFaults()
			p.Invalidate(n.name)
			n.runFor(0, 5*time.Second)
			if slices.ContainsFunc(n.inventory().ENIs, func(x eni.ENI) bool { return x.ID == e.ID }) {
				t.Errorf("%s is still published", e.ID)
			}
		}
		if looked == 0 {
			t.Fatal("the node has no ENI to detach")
		}
	})
}

func TestUsePrimaryAddress(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		p := w.operator(w.cloud)
		s := settings(0, 8)
		s.UsePrimaryAddress, w.usePrimary = true, true
		n := p.set(t, w.objects[0], s)
		pass(10 * time.Second)
		check.Equal(t, n.last().Available, 8, "available addresses")
		for _, c := range w.cloud.Front.Calls() {
			if c.Op == "CreateENI" && c.N != 7 {
				t.Errorf("ENI created with %d secondary addresses, want 7", c.N)
			}
		}
		// All excess is released except the primary address, which is only released with the ENI.
		s.Policy.PreAllocate = 1
		n.start()
		n.configure(t, s)
		pass(10 * minute)
		if st := n.last(); st.Available != 2 || st.LastError != "" {
			t.Errorf("status after shrinking = %+v, want 2 available addresses and no error", st)
		}
	})
}

func TestRemovedNodeIsNotChanged(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.cloud.Front.SetLatency("CreateENI", time.Second)
		p := w.operator(w.cloud)
		n := p.set(t, w.objects[0], settings(0, 8))
		pass(500 * time.Millisecond) // during CreateENI
		version := n.published()
		p.Remove(n.name)
		pass(10 * minute)
		if n.published() != version || w.cloud.Front.Count("AttachENI") != 0 {
			t.Errorf("published %d more times and attached %d times, want neither", n.published()-version, w.cloud.Front.Count("AttachENI"))
		}
		p.set(t, w.objects[0], settings(0, 8)) // the next full listing shows the ENI left behind
		pass(3 * minute)
		p.stop()
		check.Equal(t, n.available(), 8, "addresses")
	})
}

// A call that waits for the rate limit does not hide a failure that needs human intervention.
func TestRateLimitHidesNoFailure(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.cloud.Front.Inject(cloudfake.Fault{Op: "CreateENI", Err: cloudfake.Err(cloud.Permission, "UnauthorizedOperation")})
		f := w.operator(pace.Cloud(w.cloud, pace.Options{Ceilings: map[string]pace.Limit{pace.CreateENI.Action: {Rate: 0.0001, Burst: 1}}}))
		n := f.set(t, w.objects[0], settings(0, 1))
		pass(20 * time.Second)
		check.Equal(t, n.last().Class, cloud.Permission, "class of the failure")
		pass(time.Hour)
		check.Equal(t, n.last().Class, cloud.Permission, "class of the failure while its retry waits")
		check.Equal(t, w.cloud.Front.Count("CreateENI"), 1, "calls")
	})
}

// A call that waits for the rate limit is reported, but without a next attempt.
func TestRateLimitedCallHasNoNextTry(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		ec2 := pace.Cloud(w.cloud, pace.Options{Ceilings: map[string]pace.Limit{pace.CreateENI.Action: {Rate: 0.01, Burst: 1}}})
		f := w.operator(ec2)
		nodes := []*writer{f.set(t, w.objects[0], settings(0, 1)), f.set(t, w.objects[1], settings(0, 1))}
		pass(20 * time.Second)
		waiting := 0
		for _, n := range nodes {
			if s := n.last(); s.Class == cloud.Throttled && s.LastError != "" {
				waiting++
				check.Equal(t, s.NextTry, time.Time{}, "next try of %q", s.LastError)
			}
		}
		check.Equal(t, waiting, 1, "nodes that wait for the rate limit")
	})
}
