package fleet

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/test/harness/check"
)

// If new ENIs are configured for a VPC other than the instance's, even by mistake, full listings still
// have all ENIs of the node.
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
				t.Fatalf("the node: %+v", s)
			}
		}
	})
}

// No ENI is created in a configured zone that is not the instance's: it could not be attached.
func TestNoENIInAnotherZone(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.cloud.State.AddSubnet("subnet-b", "zone-b", "10.1.0.0/24", nil)
		p := w.operator(w.cloud)
		s := settings(30, 8)
		s.Zone, s.AnySubnet, s.Policy.FirstInterfaceIndex = "zone-b", true, 1
		o := p.set(t, w.objects[0], s)
		pass(minute)
		if n := w.cloud.Front.Count("CreateENI"); n > 0 || o.last().Shortage != plan.ReasonSubnetFull {
			t.Errorf("%d ENIs made: %+v", n, o.last())
		}
		s.Zone = ""
		o.configure(t, s)
		pass(10 * time.Second)
		p.stop()
		if o.available() < 30 {
			t.Errorf("%d addresses once the zone is right: %+v", o.available(), o.last())
		}
	})
}

// Nodes that may use any subnet of their zone first use those with the routes of their own, and share
// calls for route tables.
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
				t.Errorf("%s of %s is in %s", e.ID, e.Attachment.InstanceID, e.SubnetID)
			}
		}
		if made, got := len(w.attached()), w.cloud.Front.Count("RouteTables"); made < 5 || got != 1 {
			t.Errorf("%d ENIs made, %d calls for route tables", made, got)
		}
	})
}

// Addresses that others free are found within seconds, by one call for all nodes that lack some.
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
			t.Errorf("%d calls for free counts in 2 min", n)
		}
		for _, e := range others {
			check.OK(t, w.cloud.DeleteENI(t.Context(), e.ID))
		}
		pass(15 * time.Second)
		p.stop()
		for _, o := range w.objects {
			if o.available() < 1 {
				t.Errorf("%s has no address: %+v", o.name, p.writers[o.name].last())
			}
		}
	})
}

// A listing for repair yields to everything else and may take minutes: a node that joins meanwhile does
// not wait for it.
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
			t.Errorf("listing under way: %v; %d addresses: %+v", under.Load(), o.available(), o.last())
		}
	})
}
