package enisource

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/confirm"
	"github.com/berthnet/berth/test/harness/check"
)

// A throttled call is repeated as it was: no other ENI, no other action.
func TestThrottledCallIsRepeated(t *testing.T) {
	for _, op := range []string{"AssignAddresses", "CreateENI", "AttachENI", "SetDeleteOnTermination", "Instance", "ENIs"} {
		t.Run(op, inBubble("m5.xlarge", ipam.Policy{WarmIP: 1}, func(t *testing.T, n *node) {
			if op != "Instance" && op != "ENIs" {
				n.start()
				n.settle(2 * time.Minute) // free counts are old: they will be asked for
			}
			n.cloud.Front.ResetCalls()
			n.cloud.Front.Inject(cloudfake.Fault{Op: op, Times: 4, Err: cloudfake.Err(cloud.Throttled, "RequestLimitExceeded")})
			if n.Source == nil {
				n.start()
			}
			n.addAll(0, 20, 45*time.Second)
			n.settle(time.Minute)
			n.wantLayout("14,7")
			n.check()
			var last *cloudfake.Call
			throttled := 0
			for _, c := range n.cloud.Front.Calls() {
				// A listing that was throttled is begun again from its start.
				if last != nil && c.Op != "ENIs" && last.Op != "ENIs" && (c.Op != last.Op || c.ENI != last.ENI || c.N != last.N) {
					t.Errorf("after a throttled %s %s %d came %s %s %d", last.Op, last.ENI, last.N, c.Op, c.ENI, c.N)
				}
				last = nil
				if cloud.ClassOf(c.Err) == cloud.Throttled {
					throttled++
					last = &c
				}
			}
			check.Equal(t, throttled, 4, "throttled calls")
		}))
	}
}

// A call that took effect although its reply was lost neither leaks nor is done twice, also while
// listings trail.
func TestLostReplies(t *testing.T) {
	for _, op := range []string{"AssignAddresses", "CreateENI", "AttachENI", "SetDeleteOnTermination", "UnassignAddresses", "DetachENI", "DeleteENI"} {
		for _, lag := range []time.Duration{0, 3 * time.Second} {
			t.Run(op+"/lag="+lag.String(), inBubble("m5.xlarge", ipam.Policy{WarmIP: 1}, func(t *testing.T, n *node) {
				n.cloud.State.SetLag(lag)
				n.cloud.State.SetAttachTime(time.Second)
				n.startAndSettle(10 * time.Second)
				n.cloud.Front.Inject(cloudfake.Fault{Op: op, Times: 1, Err: cloudfake.Err(cloud.Transient, ""), After: true})
				n.addAll(0, 20, 45*time.Second)
				n.settle(5 * time.Second)
				n.wantLayout("14,7")
				n.check()
				n.delAll(0, 20)
				n.settle(6 * time.Minute)
				n.wantLayout("1")
				n.check()
				check.Equal(t, n.cloud.Front.Count("CreateENI")-failures(n, "CreateENI"), 1, "ENIs were created")
			}))
		}
	}
}

func failures(n *node, op string) (failed int) {
	for _, c := range n.cloud.Front.Calls() {
		if c.Op == op && c.Err != nil {
			failed++
		}
	}
	return failed
}

func TestListingsThatTrailBringNothingBack(t *testing.T) {
	bubble(t, "m5.xlarge", ipam.Policy{WarmIP: 2}, func(t *testing.T, n *node) {
		n.cloud.State.SetLag(20 * time.Second)
		n.tune = func(c *eni.Config) { c.ListingInterval = 2 * time.Second; c.ShrinkDelay = 5 * time.Second }
		n.startAndSettle(time.Second)
		for round := range 8 {
			n.burst(round*20, round*20+20, 45*time.Second)
			n.check()
			for i := range 20 {
				n.del(round*20 + i)
			}
			for range 12 {
				n.settle(5 * time.Second)
				n.check()
			}
		}
	})
}

func TestEC2AwayAtStart(t *testing.T) {
	bubble(t, "t3.small", ipam.DefaultAWS(), func(t *testing.T, n *node) {
		n.start()
		l := n.add(1, time.Second)
		n.settle(time.Minute)
		n.kill()
		n.cloud.Front.Inject(cloudfake.Fault{Err: cloudfake.Err(cloud.Transient, "")})
		n.start()
		if err := n.Ready(); err != nil {
			t.Errorf("after a restart without EC2: %v", err)
		}
		if other := n.add(2, time.Millisecond); other.IPv4 == l.IPv4 {
			t.Errorf("%v was handed out twice", l.IPv4)
		}
		n.settle(10 * time.Minute)
		n.check()
		n.cloud.Front.ClearFaults()
		n.settle(time.Minute)
		check.Equal(t, n.Snapshot().LastError, "", "EC2 is back, but")
	})
}

// The file is old: an address was unassigned while no daemon ran. EC2 is asked before the file is
// served, unless EC2 does not answer.
func TestEC2OutranksTheFile(t *testing.T) {
	for _, silent := range []bool{false, true} {
		bubble(t, "t3.small", ipam.DefaultAWS(), func(t *testing.T, n *node) {
			n.startAndSettle(5 * time.Minute)
			n.kill()
			n.settle(5 * time.Minute)
			first := n.Snapshot().Addresses[0]
			n.cloud.State.Steal(first.ENI, first.Addr)
			n.cloud.Front.SetLatency("", 300*time.Millisecond)
			if silent {
				n.cloud.Front.SetLatency("", time.Hour)
			}
			n.start()
			begin := time.Now()
			l := n.add(1, 45*time.Second)
			took := time.Since(begin)
			if !silent && l.IPv4 == first.Addr {
				t.Errorf("%v was given, which EC2 no longer assigns", l.IPv4)
			}
			if silent && took != confirm.Timeout {
				t.Errorf("with EC2 silent the pod waited %v, want %v", took, confirm.Timeout)
			}
		})
	}
}

func TestInventoryOfAnotherInstanceIsNotUsed(t *testing.T) {
	bubble(t, "t3.small", ipam.DefaultAWS(), func(t *testing.T, n *node) {
		n.store.inv = eni.Inventory{InstanceID: "i-other", Usable: true, ENIs: []eni.ENI{{ID: "eni-x", Serves: true, Addresses: []netip.Addr{netip.MustParseAddr("10.9.9.9")}}}}
		n.store.saved = true
		n.cloud.Front.Inject(cloudfake.Fault{Err: cloudfake.Err(cloud.Transient, "")})
		n.start()
		if l, err := n.try(1, time.Second); err == nil {
			t.Errorf("got %v of another instance's inventory", l)
		}
		if n.Ready() == nil {
			t.Error("ready by another instance's word")
		}
	})
}

// An address that EC2 no longer lists stays with its pod, and no other pod gets it.
func TestLostAddressStaysHeld(t *testing.T) {
	bubble(t, "t3.small", ipam.DefaultAWS(), func(t *testing.T, n *node) {
		n.start()
		l := n.add(1, time.Second)
		n.settle(2 * time.Minute)
		n.kill()
		n.cloud.State.Steal(l.ENI, l.IPv4)
		n.startAndSettle(time.Minute)
		for _, a := range n.Snapshot().Addresses {
			if a.Addr == l.IPv4 && (a.State != source.Used || a.ENI != "") {
				t.Errorf("the lost address shows as %+v", a)
			}
		}
		for i := 2; i < 10; i++ {
			if other, err := n.try(i, time.Second); err == nil && other.IPv4 == l.IPv4 {
				t.Fatalf("%v was reassigned", l.IPv4)
			}
		}
		n.del(1)
		n.settle(time.Minute)
		for _, a := range n.Snapshot().Addresses {
			if a.Addr == l.IPv4 && a.ENI == "" {
				t.Errorf("after its pod went and it cooled, %v still shows: %+v", l.IPv4, a)
			}
		}
	})
}

func TestOwnership(t *testing.T) {
	bubble(t, "m5.xlarge", ipam.Policy{MinimumIP: 20}, func(t *testing.T, n *node) {
		mine := map[string]string{eni.TagCluster: "test", eni.TagOwner: eni.Owner, eni.TagInstanceID: "i-before"}
		foreign := n.cloud.State.AddENI(instance, 1, cloud.InterfaceOrdinary, nil)
		n.cloud.State.AddENI(instance, 3, cloud.InterfaceOrdinary, mine) // adopted
		n.startAndSettle(5 * time.Minute)
		n.wantLayout("14,0,6")
		for _, e := range n.cloud.State.Truth() {
			switch index(e) {
			case 1:
				if e.ID != foreign || e.Attachment.DeleteOnTermination || len(e.Tags) > 0 {
					t.Errorf("the foreign ENI was changed: %+v", e)
				}
			case 3:
				if !e.Attachment.DeleteOnTermination || e.Tags[eni.TagInstanceID] != instance {
					t.Errorf("the adopted ENI: deletion %v, tags %v", e.Attachment.DeleteOnTermination, e.Tags)
				}
			}
		}
		n.check()
	})
	for name, tags := range map[string]map[string]string{
		"unmanaged":       {eni.TagCluster: "test", eni.TagOwner: eni.Owner, eni.TagUnmanaged: "yes"},
		"another cluster": {eni.TagCluster: "other", eni.TagOwner: eni.Owner},
	} {
		bubble(t, "t3.small", ipam.Policy{MinimumIP: 9}, func(t *testing.T, n *node) {
			n.cloud.State.AddENI(instance, 2, cloud.InterfaceOrdinary, tags)
			n.startAndSettle(5 * time.Minute)
			check.Equal(t, n.layout(), "3,3,0", "%s: addresses per ENI", name)
		})
	}
}

func TestCreationTagsAndGroups(t *testing.T) {
	bubble(t, "t3.small", ipam.Policy{MinimumIP: 4}, func(t *testing.T, n *node) {
		n.startAndSettle(time.Second)
		for _, e := range n.cloud.State.Truth() {
			if index(e) != 1 {
				continue
			}
			_, err := time.Parse(time.RFC3339, e.Tags[eni.TagCreatedAt])
			if e.Tags[eni.TagCluster] != "test" || e.Tags[eni.TagInstanceID] != instance || e.Tags[eni.TagOwner] == "" || err != nil {
				t.Errorf("tags %v", e.Tags)
			}
			if !slices.Equal(e.Groups, []string{"sg-1"}) || e.Description != "Berth ("+instance+")" || !e.Attachment.DeleteOnTermination {
				t.Errorf("groups %v, description %q, attachment %+v", e.Groups, e.Description, e.Attachment)
			}
			return
		}
		t.Error("no ENI at device index 1")
	})
}

func TestFragmentedSubnet(t *testing.T) {
	bubble(t, "t3.small", ipam.Policy{PrefixDelegation: true, WarmPrefix: 1}, func(t *testing.T, n *node) {
		n.cloud.State.SetFragmented("subnet-1", true)
		n.start()
		n.addAll(0, 5, 45*time.Second)
		n.check()
		n.cloud.State.SetFragmented("subnet-1", false)
		n.settle(15 * time.Minute)
		singles, prefixes := 0, 0
		for _, e := range n.cloud.State.Truth() {
			singles += len(e.Addresses)
			prefixes += len(e.Prefixes)
		}
		if singles != 5 || prefixes != 1 {
			t.Errorf("recovered: %d single addresses and %d prefixes, want the 5 used and 1", singles, prefixes)
		}
		n.burst(5, 20, time.Second)
		n.check()
	})
}

func TestFullSubnetUsesWhatIsLeftAndRecovers(t *testing.T) {
	bubble(t, "m5.xlarge", ipam.Policy{WarmIP: 4}, func(t *testing.T, n *node) {
		n.cloud.State.AddSubnet("subnet-2", "zone-a", "10.1.0.0/28", nil) // 11 usable
		n.cloud.State.AddSubnet("subnet-3", "zone-b", "10.2.0.0/24", nil) // wrong zone
		n.tune = func(c *eni.Config) { c.SubnetIDs = []string{"subnet-2", "subnet-3"} }
		n.start()
		failed := n.burst(0, 40, 20*time.Second)
		n.wantLayout("14,10")
		check.Equal(t, failed, 16, "failed pods of 40")
		n.check()
	})
}

func TestPermissionToShrinkMissing(t *testing.T) {
	bubble(t, "t3.small", ipam.Policy{WarmIP: 1}, func(t *testing.T, n *node) {
		n.start()
		n.burst(0, 9, time.Minute)
		denied := cloudfake.Err(cloud.Permission, "UnauthorizedOperation")
		n.cloud.Front.Inject(cloudfake.Fault{Op: "DetachENI", Err: denied})
		n.cloud.Front.Inject(cloudfake.Fault{Op: "UnassignAddresses", Err: denied})
		n.delAll(0, 9)
		n.settle(10 * time.Minute)
		n.wantLayout("3,3,3")
		check.AtMost(t, len(n.cloud.Front.Calls()), 200, "calls in ten minutes of missing permission")
		if n.Snapshot().LastError == "" {
			t.Error("the missing permission is not shown")
		}
		if failed := n.burst(20, 29, time.Minute); failed > 0 { // all of it is still good to use
			t.Errorf("%d pods failed although nothing was given back", failed)
		}
		n.check()
	})
}

func TestOrphansOfVanishedInstances(t *testing.T) {
	bubble(t, "t3.small", ipam.DefaultAWS(), func(t *testing.T, n *node) {
		n.cloud.State.AddInstance("i-alive", "t3.small", "subnet-1")
		n.cloud.State.AddInstance("i-dead", "t3.small", "subnet-1")
		made := time.Now().UTC().Format(time.RFC3339)
		left := func(owner, cluster string) string {
			tags := map[string]string{eni.TagCluster: cluster, eni.TagOwner: eni.Owner, eni.TagInstanceID: owner, eni.TagCreatedAt: made}
			return n.cloud.State.AddENI("i-dead", 1, cloud.InterfaceOrdinary, tags)
		}
		gone, alive, other := left("i-dead", "test"), left("i-alive", "test"), left("i-dead", "other")
		n.cloud.State.Terminate("i-dead")
		n.startAndSettle(10 * time.Minute)
		if !exists(n, gone) {
			t.Error("an ENI was deleted before it was old enough")
		}
		n.settle(30 * time.Minute)
		if exists(n, gone) || !exists(n, alive) || !exists(n, other) {
			t.Errorf("vanished instance's ENI exists: %v (want false), living one's: %v, another cluster's: %v (want true)",
				exists(n, gone), exists(n, alive), exists(n, other))
		}
	})
}

func exists(n *node, id string) bool {
	return slices.ContainsFunc(n.cloud.State.Truth(), func(e cloud.ENI) bool { return e.ID == id })
}

// A quiet node makes two listings a minute and no other call.
func TestIdleCost(t *testing.T) {
	bubble(t, "m5.xlarge", ipam.DefaultAWS(), func(t *testing.T, n *node) {
		n.start()
		n.add(1, time.Second)
		n.settle(5 * time.Minute)
		n.cloud.Front.ResetCalls()
		n.settle(time.Hour)
		check.Equal(t, n.cloud.Front.Count(changes...), 0, "changes in an idle hour")
		check.AtMost(t, len(n.cloud.Front.Calls()), 140, "calls in an idle hour")
	})
}
