package fleet

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/test/harness/check"
)

// If new ENIs are configured for a VPC other than the instance's, even by mistake, full listings still include all
// ENIs of the node.
func TestListingsHaveNodesOfOtherVPCs(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		p := w.operator(w.cloud)
		s := settings(0, 8)
		s.VPCID = "vpc-other"
		o := p.set(t, w.objects[0], s)
		pass(minute)
		for range 5 * 600 {
			pass(100 * time.Millisecond)
			if s := o.last(); s.LastError != "" {
				t.Fatalf("status = %+v, want no error", s)
			}
		}
	})
}

// No ENI is created in a configured zone other than the instance's, because it could not be attached.
func TestNoENIInAnotherZone(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.cloud.State.AddSubnet("subnet-b", "zone-b", "10.1.0.0/24", nil)
		p := w.operator(w.cloud)
		s := settings(30, 8)
		s.Zone, s.AnySubnet, s.Policy.FirstInterfaceIndex = "zone-b", true, 1
		o := p.set(t, w.objects[0], s)
		pass(minute)
		if n := w.cloud.Front.Count("CreateENI"); n > 0 || o.last().Shortage != plan.ReasonSubnetFull {
			t.Errorf("%d ENIs created, status = %+v, want none and a subnet shortage", n, o.last())
		}
		s.Zone = ""
		o.configure(t, s)
		pass(10 * time.Second)
		p.stop()
		if o.available() < 30 {
			t.Errorf("%d addresses with the correct zone, want at least 30; status %+v", o.available(), o.last())
		}
	})
}

// Nodes that may use any subnet of their zone prefer subnets with the routes of their own subnet, and share calls for
// route tables.
func TestNewENIsPreferThePrimarysRoutes(t *testing.T) {
	bubble(t, 5, func(t *testing.T, w *world) {
		w.cloud.State.AddSubnet("subnet-far", "zone-a", "10.64.0.0/12", nil)
		w.cloud.State.AddRouteTable("rtb-far", "subnet-far")
		p := w.operator(w.cloud)
		s := settings(0, 8)
		s.AnySubnet = true
		p.setAll(s)
		pass(10 * time.Second)
		p.stop()
		for _, e := range w.attached() {
			if e.SubnetID == "subnet-far" {
				t.Errorf("%s of instance %s is in %s", e.ID, e.Attachment.InstanceID, e.SubnetID)
			}
		}
		if made, got := len(w.attached()), w.cloud.Front.Count("RouteTables"); made < 5 || got != 1 {
			t.Errorf("%d ENIs created and %d route table calls, want at least 5 and 1", made, got)
		}
	})
}

// Addresses freed by other clients are found within seconds, with shared calls for all starved nodes.
func TestStarvedNodesFindFreedAddressesTogether(t *testing.T) {
	bubble(t, 50, func(t *testing.T, w *world) {
		w.cloud.State.AddSubnet("subnet-1", "zone-a", "10.1.0.0/25", nil)
		var others []cloud.ENI
		for range 128 - 5 {
			e := check.Must(w.cloud.CreateENI(t.Context(), cloud.CreateENI{SubnetID: "subnet-1"}))(t)
			others = append(others, e)
		}
		p := w.operator(w.cloud)
		s := settings(1, 0)
		s.SubnetIDs, s.Policy.FirstInterfaceIndex = []string{"subnet-1"}, 1
		p.setAll(s)
		pass(2 * minute)
		w.cloud.Front.ResetCalls()
		pass(2 * minute)
		if n := w.cloud.Front.Count("Subnets"); n < 8 || n > 16 {
			t.Errorf("%d calls for free counts in 2 min, want 8 to 16", n)
		}
		for _, e := range others {
			check.OK(t, w.cloud.DeleteENI(t.Context(), e.ID))
		}
		pass(15 * time.Second)
		p.stop()
		for _, o := range w.objects {
			if o.available() < 1 {
				t.Errorf("%s has no address, status %+v", o.name, p.writers[o.name].last())
			}
		}
	})
}

// A listing for repair yields to all other calls and may take minutes; a node that joins meanwhile does not wait
// for it.
func TestJoinDoesNotWaitForRepair(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		var slow, under atomic.Bool
		p := w.operator(&api{Cloud: w.cloud, listing: func(f cloud.ENIFilter) {
			if slow.Load() && len(f.InstanceIDs)+len(f.IDs) == 0 {
				under.Store(true)
				time.Sleep(2 * minute) //nolint:forbidigo // the bubble's clock
			}
		}})
		p.set(t, w.objects[0], settings(0, 8))
		pass(5 * time.Second)
		slow.Store(true)
		for range 180 {
			if pass(time.Second); under.Load() {
				break
			}
		}
		o := p.set(t, w.objects[1], settings(0, 8))
		pass(5 * time.Second)
		if !under.Load() || o.available() < 8 {
			t.Errorf("listing in flight = %v, %d addresses, want at least 8 during the listing; status %+v", under.Load(), o.available(), o.last())
		}
	})
}

// The first full listing of a large cluster takes minutes. A node that has no free address does not wait for it; the others do.
// Such a node uses the detached ENI that an earlier operator left behind. A node whose free addresses do not suffice any longer
// stops waiting.
func TestNodeWithoutAddressesDoesNotWaitForTheFirstListing(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		first, both := w.objects[0], w.objects[1]
		before := w.operator(&api{Cloud: w.cloud})
		before.set(t, both, settings(0, 8))
		pass(time.Minute)
		before.stop()
		left := w.leftBehind("test", first.instance, time.Now().Add(-time.Hour))
		w.cloud.Front.ResetCalls()

		single, listed := map[string]bool{}, make(chan struct{})
		p := w.operator(&api{Cloud: w.cloud, listing: func(f cloud.ENIFilter) {
			for _, id := range f.InstanceIDs {
				single[id] = true
			}
			if len(f.InstanceIDs)+len(f.IDs) == 0 && f.Status == "" {
				<-listed
			}
		}})
		p.set(t, both, settings(0, 8))
		p.set(t, first, settings(0, 8))
		pass(firstPatience + 2*time.Second)
		if first.available() < 8 {
			t.Errorf("%d addresses, want at least 8 during the listing; status %+v", first.available(), p.writers[first.name].last())
		}
		if made := w.cloud.Front.Count("CreateENI"); made != 0 || len(first.inventory().ENIs) != 2 || first.inventory().ENIs[1].ID != left.ID {
			t.Errorf("%d ENIs created, inventory %+v, want %s to be attached", made, first.inventory(), left.ID)
		}
		if len(single) != 1 || !single[first.instance] {
			t.Errorf("instances %v were described, want %s alone", single, first.instance)
		}
		p.writers[both.name].runFor(9, firstPatience+2*time.Second)
		p.writers[both.name].wantPods(t, 9)
		close(listed)
		pass(minute)
	})
}

// An operator that takes over nodes that lack nothing observes them as soon as their ENIs are listed. It describes their instances
// meanwhile, if the listing takes long, and keeps no description for later.
func TestFirstListingObservesAllNodes(t *testing.T) {
	for name, long := range map[string]time.Duration{"long": 10 * time.Second, "short": 500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) { firstListing(t, long) })
	}
}

func firstListing(t *testing.T, long time.Duration) {
	bubble(t, 20, func(t *testing.T, w *world) {
		before := w.operator(w.cloud)
		before.setAll(settings(0, 8))
		pass(time.Minute)
		before.stop()
		w.cloud.Front.ResetCalls()
		listed := make(chan struct{})
		p := w.operator(&api{Cloud: w.cloud, listing: func(cloud.ENIFilter) { <-listed }})
		p.setAll(settings(0, 8))
		pass(long)
		rest, removed := w.objects[1:], w.objects[0]
		p.Kick(rest[0].name) // it waits for the listing again
		p.Remove(removed.name)
		described := w.cloud.Front.Count("Instances")
		close(listed)
		pass(3 * time.Second)
		if all := w.cloud.Front.Count("Instances"); all != 1 || (described == 1) != (long > nodeSpacing) {
			t.Errorf("%d calls described instances during the listing of %v and %d in all, want one in all", described, long, all)
		}
		for _, o := range rest {
			if s := p.writers[o.name].last(); !s.Confirmed {
				t.Errorf("%s is not observed: %+v", o.name, s)
			}
		}
		if n := w.cloud.Front.Count("ENIs"); n > 2 { // the regular listing may follow when the nodes join later than it looks for them
			t.Errorf("%d listings, want at most 2", n)
		}
		pass(2 * time.Minute)
		if typ, kept := p.observatory.instances.take(removed.instance); kept {
			t.Errorf("type %s is kept for a node that does not exist", typ)
		}
	})
}
