package enisource

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/test/harness/check"
)

func bubble(t *testing.T, itype string, p ipam.Policy, run func(t *testing.T, n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { run(t, newNode(t, itype, p)) })
}

// inBubble is bubble as a subtest.
func inBubble(itype string, p ipam.Policy, run func(t *testing.T, n *node)) func(*testing.T) {
	return func(t *testing.T) { bubble(t, itype, p, run) }
}

func TestWarmFromTheStart(t *testing.T) {
	bubble(t, "t3.small", ipam.DefaultAWS(), func(t *testing.T, n *node) {
		n.startAndSettle(time.Second)
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

// A burst of pods takes one call per ENI, for as many addresses as it needs.
func TestBurstIsOneCallPerENI(t *testing.T) {
	bubble(t, "m5.4xlarge", ipam.Policy{WarmIP: 1}, func(t *testing.T, n *node) {
		n.cloud.Front.SetLatency("", 100*time.Millisecond)
		n.cloud.State.SetAttachTime(3 * time.Second)
		n.startAndSettle(time.Second)
		n.wantLayout("1")
		n.cloud.Front.ResetCalls()
		begin := time.Now()
		n.addAll(0, 100, 45*time.Second)
		check.AtMost(t, time.Since(begin), 5*time.Second, "100 pods took")
		n.settle(time.Second)
		n.wantLayout("29,29,29,14")
		check.Equal(t, n.cloud.Front.Count("AssignAddresses"), 1, "assign calls for the one ENI that was there")
		check.Equal(t, n.cloud.Front.Count(changes...), 1+3*3, "changes at EC2")
		check.AtMost(t, len(n.cloud.Front.Calls()), 1+3*5, "EC2 calls for 3 new ENIs")
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
			check.Equal(t, <-order, want, "the pod served")
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
		check.Equal(t, n.Snapshot().Waiting, 0, "waiters left")
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
		check.Equal(t, n.add(3, time.Second), first, "after a cancel")
	})
}

// No address of an ENI is usable before its link exists; a link event makes it usable at once.
func TestAddressesWaitForTheLink(t *testing.T) {
	bubble(t, "t3.small", ipam.Policy{MinimumIP: 4}, func(t *testing.T, n *node) {
		n.links.auto = false
		n.startAndSettle(20 * time.Second)
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

// Cooling addresses are no supply for waiting pods, and are supply for the warm target.
func TestMassDeleteNeitherStarvesNorOverAllocates(t *testing.T) {
	bubble(t, "m5.xlarge", ipam.Policy{WarmIP: 5}, func(t *testing.T, n *node) {
		n.start()
		n.burst(0, 10, time.Minute)
		n.settle(time.Second)
		n.wantLayout("14,1")
		n.cloud.Front.ResetCalls()
		n.delAll(0, 10)
		n.settle(20 * time.Second)
		check.Equal(t, n.cloud.Front.Count(changes...), 0, "changes at EC2 after a mass delete")
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
		t.Run(c.reason, inBubble("t3.small", ipam.Policy{WarmIP: 1}, func(t *testing.T, n *node) {
			n.cloud.Front.Inject(c.fault)
			n.start()
			_ = n.fails(1, 45*time.Second, c.reason)
			if n.Snapshot().LastError == "" {
				t.Error("the snapshot shows no trouble")
			}
			n.cloud.Front.ClearFaults()
			n.add(1, 2*time.Minute)
			n.settle(2 * time.Minute)
			check.Equal(t, n.Snapshot().LastError, "", "healed, but the snapshot says")
			n.check()
		}))
	}
}

// Jobs that run each minute, the shortest period of a CronJob, reuse their addresses: with the default
// shrink delay they cause no change at EC2, with half of it several a minute. When they stop, the
// surplus is released within that delay.
func TestJobsOfEachMinuteKeepTheirAddresses(t *testing.T) {
	for delay, churns := range map[time.Duration]bool{0: false, 30 * time.Second: true} {
		bubble(t, "t3.small", ipam.Policy{WarmIP: 1, MinimumIP: 1}, func(t *testing.T, n *node) {
			n.tune = func(c *eni.Config) { c.ShrinkDelay = delay }
			n.start()
			wave := func() {
				n.addAll(0, 6, 30*time.Second)
				n.settle(10 * time.Second)
				n.delAll(0, 6)
				n.settle(50 * time.Second)
			}
			wave()
			n.cloud.Front.ResetCalls()
			const minutes = 10
			for range minutes {
				wave()
			}
			if got := n.cloud.Front.Count(changes...); (churns && got < 3*minutes) || churns != (got > 0) {
				t.Errorf("shrink delay %v: %d changes at EC2 in %d minutes", delay, got, minutes)
			}
			n.settle(12 * time.Second) // 62 s after the last pod ended
			n.wantLayout("1")
		})
	}
}

// A node that starts with nothing makes four calls before its first pods can have addresses: for its
// ENIs, for the subnet, for the limits of its type, and for addresses. The metadata service tells the
// rest. Its detached ENIs matter to new ENIs only, and are listed last.
func TestColdStartIsFourCalls(t *testing.T) {
	bubble(t, "t3.small", ipam.DefaultAWS(), func(t *testing.T, n *node) {
		n.tune = func(c *eni.Config) { c.InstanceType = "t3.small" }
		n.startAndSettle(time.Second)
		n.wantLayout("3")
		calls := n.cloud.Front.Calls()
		if len(calls) != 5 || calls[3].Op != "AssignAddresses" || n.cloud.Front.Count("ENIs") != 2 || n.cloud.Front.Count("Instance") != 0 {
			t.Errorf("%d calls, want the fourth to assign addresses: %+v", len(calls), calls)
		}
		n.add(0, time.Second)
		n.check()
	})
}

// A listing without the primary ENI, as of an instance that is new or does not exist, is not used: the
// instance is asked for.
func TestListingWithoutThePrimaryIsNotBelieved(t *testing.T) {
	bubble(t, "t3.small", ipam.DefaultAWS(), func(t *testing.T, n *node) {
		n.tune = func(c *eni.Config) { c.InstanceType = "t3.small" }
		n.cloud.State.Terminate(instance)
		n.startAndSettle(time.Minute)
		if err := n.Ready(); err == nil || n.cloud.Front.Count("Instance") == 0 || n.cloud.Front.Count(changes...) > 0 {
			t.Errorf("ready: %v, calls %+v", err, n.cloud.Front.Calls())
		}
		n.cloud.State.AddInstance(instance, "t3.small", "subnet-1")
		n.settle(time.Minute)
		n.wantLayout("3")
	})
}

// An instance that was stopped may run again as another type: the limits of its last inventory do not
// apply.
func TestAnotherTypeAfterAStop(t *testing.T) {
	bubble(t, "t3.small", ipam.DefaultAWS(), func(t *testing.T, n *node) {
		for _, itype := range []string{"t3.small", "m5.xlarge"} {
			n.tune = func(c *eni.Config) { c.InstanceType = itype }
			n.startAndSettle(time.Minute)
			n.kill()
			if inv := n.store.inv; inv.InstanceType != itype || inv.Limits != limitsOf(t, n, itype) {
				t.Errorf("%s: %s with %+v", itype, inv.InstanceType, inv.Limits)
			}
		}
		check.Equal(t, n.cloud.Front.Count("Instance"), 0, "calls for the instance")
	})
}

func limitsOf(t *testing.T, n *node, itype string) cloud.Limits {
	t.Helper()
	l := check.Must(n.cloud.Limits(t.Context(), itype))(t)
	return l
}

// The last of 49 pods runs on the second ENI, and is the last to end. The node's one warm prefix then
// moves to the first ENI, and the second is detached for good.
func TestIdleNodeKeepsNoSecondENI(t *testing.T) {
	bubble(t, "t3.small", ipam.Policy{PrefixDelegation: true, WarmIP: 1, MinimumIP: 1}, func(t *testing.T, n *node) {
		n.start()
		n.addAll(0, 49, time.Minute)
		n.settle(time.Second)
		n.wantLayout("48,16")
		last := -1
		for i := range 49 {
			if n.leases[key(i)].Uplink == 1 {
				last = i
			}
		}
		for i := range 49 {
			if i != last {
				n.del(i)
			}
		}
		n.settle(5 * time.Minute)
		n.wantLayout("0,16")
		n.del(last)
		n.settle(45 * time.Second) // cooling, and less than the patience after it
		n.wantLayout("0,16")
		n.settle(5 * time.Minute)
		n.wantLayout("16")
		n.check()
		n.cloud.Front.ResetCalls()
		n.settle(time.Hour)
		check.Equal(t, n.cloud.Front.Count(changes...), 0, "changes at EC2 within an hour of rest")
		check.Equal(t, n.add(100, time.Second).Uplink, 0, "the next pod got")
	})
}

// A daemon that starts with another subnet for new ENIs drains the old one. Running pods go on, and the
// old ENI is deleted after the last of them has cooled.
func TestDrainToAnotherSubnet(t *testing.T) {
	for name, p := range map[string]ipam.Policy{
		"addresses": {WarmIP: 2, FirstInterfaceIndex: 1},
		"prefixes":  {WarmIP: 2, FirstInterfaceIndex: 1, PrefixDelegation: true},
	} {
		t.Run(name, inBubble("t3.small", p, func(t *testing.T, n *node) {
			n.start()
			n.addAll(0, 2, time.Minute)
			n.settle(time.Minute)
			n.kill()
			n.cloud.State.AddSubnet("subnet-2", "zone-a", "10.1.0.0/24", nil)
			n.tune = func(c *eni.Config) { c.SubnetIDs, c.DrainOutdated = []string{"subnet-2"}, true }
			n.startAndSettle(5 * time.Minute)
			n.check()
			if name == "addresses" {
				n.wantLayout("0,2,2")
				check.Equal(t, n.add(2, time.Second).Uplink, 2, "a new pod got")
			}
			n.delAll(0, 2)
			n.settle(20 * time.Second)
			check.Equal(t, len(n.cloud.State.Truth()), 3, "ENIs while addresses cool")
			n.settle(5 * time.Minute)
			n.check()
			for _, e := range n.cloud.State.Truth() {
				if !primary(e) && e.SubnetID != "subnet-2" {
					t.Errorf("%s is left in %s", e.ID, e.SubnetID)
				}
			}
			check.Equal(t, len(n.cloud.State.Truth()), 2, "ENIs in the end")
		}))
	}
}

// Pods that wait while EC2 is away get addresses within seconds of its return, and the node does not
// call it all the time meanwhile. Lost assignments and lost creations are noticed in different ways.
func TestEC2ReturnsToWaitingPods(t *testing.T) {
	const away, most = 30 * time.Second, 6 * time.Second
	for name, pods := range map[string]int{"assign": 4, "create": 40} {
		t.Run(name, func(t *testing.T) {
			var sum, worst time.Duration
			const seeds = 20
			for seed := range uint64(seeds) {
				bubble(t, "m5.xlarge", ipam.Policy{WarmIP: 2}, func(t *testing.T, n *node) {
					n.tune = func(c *eni.Config) { c.Rand = rand.New(rand.NewPCG(seed, 0)) }
					n.startAndSettle(time.Second)
					if pods > 15 {
						n.burst(0, 14, time.Second) // as many as the first ENI takes
						n.settle(time.Minute)
					}
					n.cloud.Front.Inject(cloudfake.Fault{Err: cloudfake.Err(cloud.Transient, "")})
					n.cloud.Front.ResetCalls()
					failed := make(chan int)
					var took time.Duration
					begin := time.Now()
					go func() {
						f := n.burst(100, 100+pods, 2*time.Minute)
						took = time.Since(begin) - away
						failed <- f
					}()
					n.settle(away)
					check.AtMost(t, len(n.cloud.Front.Calls()), 25, "calls within %v in which all fail", away)
					n.cloud.Front.ClearFaults()
					check.Equal(t, <-failed, 0, "pods of %d without an address", pods)
					sum, worst = sum+took, max(worst, took)
				})
			}
			t.Logf("after %v on average, %v at worst", sum/seeds, worst)
			check.AtMost(t, worst, most, "the longest wait after EC2 was back")
		})
	}
}
