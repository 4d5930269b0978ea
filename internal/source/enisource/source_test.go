package enisource

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ipam"
)

func bubble(t *testing.T, itype string, p ipam.Policy, run func(t *testing.T, n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { run(t, newNode(t, itype, p)) })
}

func TestWarmFromTheStart(t *testing.T) {
	bubble(t, "t3.small", ipam.DefaultAWS(), func(t *testing.T, n *node) {
		n.start()
		n.settle(time.Second)
		n.wantLayout("3")
		if err := n.Ready(); err != nil {
			t.Errorf("not ready: %v", err)
		}
		for i := range 5 {
			n.add(i, time.Minute)
		}
		n.settle(time.Minute)
		n.wantLayout("3,3,3")
		n.check()
	})
}

// A burst is one call per ENI touched, for as many addresses as it needs.
func TestBurstIsOneCallPerENI(t *testing.T) {
	bubble(t, "m5.4xlarge", ipam.Policy{WarmIP: 1}, func(t *testing.T, n *node) {
		n.cloud.Front.SetLatency("", 100*time.Millisecond)
		n.cloud.State.SetAttachTime(3 * time.Second)
		n.start()
		n.settle(time.Second)
		n.wantLayout("1")
		n.cloud.Front.ResetCalls()
		begin := time.Now()
		n.addAll(0, 100, 45*time.Second)
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("100 pods took %v", took)
		}
		n.settle(time.Second)
		n.wantLayout("29,29,29,14")
		if got := n.cloud.Front.Count("AssignAddresses"); got != 1 {
			t.Errorf("%d assign calls for the one ENI that was there", got)
		}
		if got := n.cloud.Front.Count(changes...); got != 1+3*3 {
			t.Errorf("%d changes at EC2, want 1 assign and 3 for each of 3 new ENIs", got)
		}
		if got := len(n.cloud.Front.Calls()); got > 1+3*5 {
			t.Errorf("%d EC2 calls for 3 new ENIs, want at most 5 each", got)
		}
		n.check()
	})
}

func TestWaitersAreServedInOrder(t *testing.T) {
	bubble(t, "t3.small", ipam.Policy{MinimumIP: 3, MaxENI: 1}, func(t *testing.T, n *node) {
		n.start()
		for i := range 3 {
			n.add(i, time.Second)
		}
		order := make(chan int, 3)
		for i := 10; i < 13; i++ {
			go func() { n.add(i, time.Minute); order <- i }()
			synctest.Wait()
		}
		for i := range 3 {
			n.del(i)
			n.settle(time.Millisecond)
		}
		if got := n.Snapshot().Waiting; got != 3 {
			t.Fatalf("%d wait while all addresses cool, want 3", got)
		}
		n.settle(ipam.DefaultCooling)
		for want := 10; want < 13; want++ {
			if got := <-order; got != want {
				t.Errorf("pod %d was served, want %d", got, want)
			}
		}
		n.check()
	})
}

func TestGivingUpLeavesNoWaiter(t *testing.T) {
	bubble(t, "t3.small", ipam.Policy{MinimumIP: 3, MaxENI: 1}, func(t *testing.T, n *node) {
		n.start()
		for i := range 3 {
			n.add(i, time.Second)
		}
		if err := n.fails(9, 45*time.Second, "eni-limit"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %#v, want that of the deadline", err)
		}
		n.del(0)
		_ = n.fails(9, time.Second, "cooling")
		if got := n.Snapshot().Waiting; got != 0 {
			t.Errorf("%d waiters left", got)
		}
		n.settle(time.Minute)
		if l, err := n.try(9, time.Millisecond); err != nil {
			t.Errorf("after cooling: %v %v", l, err)
		}
	})
}

func TestAcquireTwiceGivesTheSameLease(t *testing.T) {
	bubble(t, "t3.small", ipam.DefaultAWS(), func(t *testing.T, n *node) {
		n.start()
		if a, b := n.add(1, time.Second), n.add(1, time.Second); a != b {
			t.Errorf("%v then %v", a, b)
		}
		first := n.add(2, time.Second)
		n.Cancel(key(2))
		if again := n.add(3, time.Second); again != first {
			t.Errorf("after a cancel %v, want %v", again, first)
		}
	})
}

// No address of an ENI is warm before its link is there; a link event makes it
// so at once.
func TestAddressesWaitForTheLink(t *testing.T) {
	bubble(t, "t3.small", ipam.Policy{MinimumIP: 4}, func(t *testing.T, n *node) {
		n.links.auto = false
		n.start()
		n.settle(20 * time.Second)
		n.wantLayout("3,1")
		for i := range 3 {
			n.add(i, time.Millisecond)
		}
		n.settle(time.Second)
		_ = n.fails(3, 100*time.Millisecond, "not-ready")
		n.links.mu.Lock()
		n.links.auto = true
		n.links.mu.Unlock()
		n.Kick()
		synctest.Wait()
		n.add(3, time.Millisecond)
		n.check()
	})
}

func TestScaleDownReturnsENIs(t *testing.T) {
	bubble(t, "m5.xlarge", ipam.DefaultAWS(), func(t *testing.T, n *node) {
		n.cloud.State.SetAttachTime(4 * time.Second)
		n.start()
		n.addAll(0, 50, 45*time.Second)
		n.settle(time.Second)
		n.wantLayout("14,14,14,14")
		n.delAll(3, 50)
		n.settle(25 * time.Second)
		n.wantLayout("14,14,14,14") // nothing goes while it cools
		n.settle(5 * time.Minute)
		n.check()
		gone := 0
		for _, e := range n.cloud.State.Truth() {
			if e.Attachment == nil {
				t.Errorf("%s is detached and was not deleted", e.ID)
			}
			gone++
		}
		if gone > 3 { // three pods may sit on as many ENIs; one more would be surplus
			t.Errorf("%d ENIs remain: %s", gone, n.layout())
		}
	})
}

// Cooling is no supply for pods that wait and is for the warm target.
func TestMassDeleteNeitherStarvesNorOverAllocates(t *testing.T) {
	bubble(t, "m5.xlarge", ipam.Policy{WarmIP: 5}, func(t *testing.T, n *node) {
		n.start()
		n.burst(0, 10, time.Minute)
		n.settle(time.Second)
		n.wantLayout("14,1")
		n.cloud.Front.ResetCalls()
		n.delAll(0, 10)
		n.settle(20 * time.Second)
		if got := n.cloud.Front.Count(changes...); got != 0 {
			t.Errorf("%d changes at EC2 after a mass delete", got)
		}
		n.addAll(100, 110, 5*time.Second)
		n.check()
	})
}

func TestTroubleIsNamed(t *testing.T) {
	for _, c := range []struct {
		reason string
		fault  cloudfake.Fault
	}{
		{"throttled", cloudfake.Fault{Op: "AssignAddresses", Err: cloudfake.Err(cloud.Throttled, "RequestLimitExceeded")}},
		{"permission", cloudfake.Fault{Op: "AssignAddresses", Err: cloudfake.Err(cloud.Permission, "UnauthorizedOperation")}},
		{"unreachable", cloudfake.Fault{Err: cloudfake.Err(cloud.Transient, "")}},
		{"subnet-full", cloudfake.Fault{Op: "AssignAddresses", Err: cloudfake.Err(cloud.SubnetFull, "InsufficientFreeAddressesInSubnet")}},
		{"refused", cloudfake.Fault{Op: "AssignAddresses", Err: cloudfake.Err(cloud.Bug, "InvalidParameterValue")}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			bubble(t, "t3.small", ipam.Policy{WarmIP: 1}, func(t *testing.T, n *node) {
				n.cloud.Front.Inject(c.fault)
				n.start()
				_ = n.fails(1, 45*time.Second, c.reason)
				if n.Snapshot().LastError == "" {
					t.Error("the snapshot shows no trouble")
				}
				n.cloud.Front.ClearFaults()
				n.add(1, 2*time.Minute)
				n.settle(2 * time.Minute)
				if got := n.Snapshot().LastError; got != "" {
					t.Errorf("healed, but the snapshot says %s", got)
				}
				n.check()
			})
		})
	}
}
