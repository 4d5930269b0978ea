package enisource

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness/check"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

var throttled = cloudfake.Err(cloud.Throttled, "RequestLimitExceeded")

// Throttled calls that are not for growth keep no pod waiting: listings are for repair, free counts are
// optional, and releases can wait.
func TestGrowthWaitsForNothingElse(t *testing.T) {
	for _, op := range []string{"ENIs", "Subnets", "UnassignAddresses", "DetachENI", "DeleteENI", "SetDeleteOnTermination"} {
		t.Run(op, inBubble("m5.xlarge", ipam.Policy{WarmIP: 1}, func(t *testing.T, n *node) {
			n.startAndSettle(time.Second)
			if op == "SetDeleteOnTermination" {
				n.cloud.Front.Inject(cloudfake.Fault{Op: op, Err: throttled})
			}
			n.burst(0, 20, time.Second)
			n.cloud.Front.Inject(cloudfake.Fault{Op: op, Err: throttled})
			n.delAll(0, 20)
			n.settle(3 * time.Minute)
			n.cloud.Front.ResetCalls()
			pods := 50 // on four ENIs, with what was about to leave
			if op == "ENIs" {
				pods = 40 // on three: nobody can see that the fourth has gone
			}
			n.addAll(100, 100+pods, time.Second)
			n.check()
			n.cloud.Front.ClearFaults()
			n.settle(10 * time.Minute)
			n.finalCheck()
		}))
	}
}

// A listing restores an ENI to the node while its detachment is throttled. When the detachment is
// retried, pods may use the ENI.
func TestThrottledDetachmentSparesAnENIInUseAgain(t *testing.T) {
	bubble(t, "m5.xlarge", ipam.Policy{WarmIP: 1, MaxENI: 2}, func(t *testing.T, n *node) {
		n.tune = func(c *eni.Config) { c.ListingInterval = time.Second }
		n.start()
		n.burst(0, 20, time.Second)
		n.cloud.Front.Inject(cloudfake.Fault{Op: "DetachENI", Err: throttled})
		n.delAll(0, 20)
		for i := 100; i < 128; i++ { // two ENIs full
			for range 30 {
				if n.settle(time.Second); n.cloud.Front.Count("DetachENI") > 0 {
					if _, err := n.try(i, time.Millisecond); err == nil {
						break
					}
				}
			}
		}
		n.cloud.Front.ClearFaults()
		n.settle(time.Minute)
		n.check()
		if len(n.leases) < 15 {
			t.Fatalf("only %d pods run: the second ENI was never used", len(n.leases))
		}
		check.Equal(t, n.cloud.Front.Count("DetachENI")-failures(n, "DetachENI"), 0, "detachments of the ENI under its pods")
	})
}

// Someone attached an ENI at the device index that was planned for the next one.
func TestIndexTakenSinceTheLastListing(t *testing.T) {
	bubble(t, "m5.xlarge", ipam.Policy{WarmIP: 1}, func(t *testing.T, n *node) {
		n.tune = func(c *eni.Config) { c.ListingInterval = time.Hour }
		n.startAndSettle(time.Second)
		n.cloud.State.AddENI(instance, 1, cloud.InterfaceOrdinary, nil)
		n.addAll(0, 20, 10*time.Second)
		n.wantLayout("14,0,7")
	})
}

// The daemon died after it deleted ENIs that are leaving according to the file. None of them may count
// as the primary, whose subnet and groups new ENIs get.
func TestLeavingENIsThatAreGone(t *testing.T) {
	bubble(t, "t3.small", ipam.Policy{MinimumIP: 9}, func(t *testing.T, n *node) {
		n.store.inv, n.store.saved = eni.Inventory{InstanceID: instance, At: time.Now()}, true
		for i := range 20 {
			n.store.inv.Leaving = append(n.store.inv.Leaving, eni.Leave{ENI: fmt.Sprint("eni-gone-", i), DeviceIndex: 5, Since: time.Now()})
		}
		n.startAndSettle(5 * time.Minute)
		n.wantLayout("3,3,3")
		for _, e := range n.cloud.State.Truth() {
			check.Equal(t, e.Groups, []string{"sg-1"}, "%s at index %d has the groups", e.ID, index(e))
		}
	})
}

// A file from the future does not outrank EC2 until then.
func TestClockSetBackBetweenRuns(t *testing.T) {
	bubble(t, "t3.small", ipam.Policy{MinimumIP: 3}, func(t *testing.T, n *node) {
		n.startAndSettle(time.Second)
		n.kill()
		lost := n.store.inv.ENIs[0].Addresses[0]
		n.store.inv.At = n.store.inv.At.Add(24 * time.Hour)
		n.cloud.State.Steal(n.store.inv.ENIs[0].ID, lost)
		n.startAndSettle(3 * time.Minute)
		n.check()
	})
}

// A configured subnet is deleted while the daemon runs: the others serve.
func TestSubnetThatVanished(t *testing.T) {
	bubble(t, "m5.xlarge", ipam.Policy{WarmIP: 1}, func(t *testing.T, n *node) {
		n.cloud.State.AddSubnet("subnet-2", "zone-a", "10.1.0.0/20", nil)
		n.cloud.State.AddSubnet("subnet-3", "zone-a", "10.2.0.0/24", nil)
		n.tune = func(c *eni.Config) { c.SubnetIDs = []string{"subnet-2", "subnet-3"} }
		n.start()
		n.burst(0, 2, time.Second)
		n.cloud.State.RemoveSubnet("subnet-2")
		n.addAll(2, 20, 10*time.Second)
		n.wantLayout("14,7")
	})
}

// The subnet of the primary ENI is full, and another configured one is not.
func TestPrimarySubnetFull(t *testing.T) {
	bubble(t, "m5.xlarge", ipam.Policy{WarmIP: 1}, func(t *testing.T, n *node) {
		n.cloud.State.AddSubnet("subnet-2", "zone-a", "10.1.0.0/24", nil)
		n.cloud.Front.Inject(cloudfake.Fault{Op: "AssignAddresses", ENI: n.cloud.State.Truth()[0].ID, Err: cloudfake.Err(cloud.SubnetFull, "InsufficientFreeAddressesInSubnet")})
		n.tune = func(c *eni.Config) { c.SubnetIDs = []string{"subnet-2"} }
		n.start()
		n.addAll(0, 20, 5*time.Second)
		for _, e := range n.cloud.State.Truth() {
			if index(e) > 0 && e.SubnetID != "subnet-2" {
				t.Errorf("%s was made in %s", e.ID, e.SubnetID)
			}
		}
		n.check()
	})
}

// The machine rebooted in the middle of a creation: the intent is lost with the tmpfs, and only the
// tags show whose the detached ENI is.
func TestDetachedENIIsFoundByItsTags(t *testing.T) {
	bubble(t, "t3.small", ipam.Policy{WarmIP: 1}, func(t *testing.T, n *node) {
		restore := check.Must(failpoint.Set("eni.create.after=error@1"))(t)
		defer restore()
		n.arm()
		n.start()
		n.burst(0, 7, time.Second)
		if _, ok, _ := n.store.MemoryIntents.Load(); !ok {
			t.Fatal("the daemon did not die in the middle of a creation")
		}
		*n.store, n.leases = memStore{}, map[attachment.Key]source.Lease{}
		n.restartDead()
		n.settle(10 * time.Minute)
		n.finalCheck()
		n.wantLayout("1")
	})
}

// An orphan that EC2 refuses to delete does not keep the others from being deleted.
func TestOrphanThatCannotGo(t *testing.T) {
	bubble(t, "t3.small", ipam.DefaultAWS(), func(t *testing.T, n *node) {
		n.cloud.State.AddInstance("i-dead", "t3.small", "subnet-1")
		tags := map[string]string{eni.TagCluster: "test", eni.TagOwner: eni.Owner, eni.TagInstanceID: "i-dead", eni.TagCreatedAt: time.Now().UTC().Format(time.RFC3339)}
		stuck, free := n.cloud.State.AddENI("i-dead", 1, cloud.InterfaceOrdinary, tags), n.cloud.State.AddENI("i-dead", 2, cloud.InterfaceOrdinary, tags)
		n.cloud.State.Terminate("i-dead")
		n.cloud.Front.Inject(cloudfake.Fault{Op: "DeleteENI", ENI: stuck, Err: cloudfake.Err(cloud.Permission, "UnauthorizedOperation")})
		n.startAndSettle(time.Hour)
		if exists(n, free) || !exists(n, stuck) {
			t.Errorf("the ENI that may go exists: %v, the one that may not: %v", exists(n, free), exists(n, stuck))
		}
		if n.Snapshot().LastError == "" {
			t.Error("the refusal is not shown")
		}
		check.AtMost(t, n.cloud.Front.Count("DeleteENI"), 10, "deletions tried in an hour")
	})
}

// Deleting orphans may take long; this node's pods come first.
func TestPodsComeBeforeOrphans(t *testing.T) {
	bubble(t, "m5.xlarge", ipam.Policy{WarmIP: 1}, func(t *testing.T, n *node) {
		n.cloud.State.AddInstance("i-dead", "t3.small", "subnet-1")
		for i := range 40 {
			n.cloud.State.AddENI("i-dead", 1+i, cloud.InterfaceOrdinary, map[string]string{eni.TagCluster: "test", eni.TagOwner: eni.Owner,
				eni.TagInstanceID: "i-dead", eni.TagCreatedAt: time.Now().UTC().Format(time.RFC3339)})
		}
		n.cloud.State.Terminate("i-dead")
		n.cloud.Front.SetLatency("DeleteENI", time.Second)
		n.tune = func(c *eni.Config) { c.OrphanAge, c.CollectInterval = time.Second, time.Minute }
		n.start()
		for n.cloud.Front.Count("DeleteENI") == 0 {
			n.settle(time.Second)
		}
		n.addAll(0, 20, 3*time.Second)
		n.settle(5 * time.Minute)
		check.Equal(t, len(n.cloud.State.Truth()), 2, "ENIs remain")
	})
}

// coldNodes are nodes that start cold at once, each with a limiter of its own, on one bucket of the
// account, and one pod or more to serve.
type coldNodes struct {
	nodes, pods int
	bucket      cloudfake.Bucket
}

// times is when the last node had its first address, and when all nodes had their warm targets.
type times struct{ first, warm time.Duration }

func (h coldNodes) run(t *testing.T, seed uint64) (out times) {
	synctest.Test(t, func(t *testing.T) {
		c := cloudfake.New(cloudfake.Options{Clock: clock.Real{}, Latency: 100 * time.Millisecond, AttachTime: 2 * time.Second, Shared: &h.bucket})
		c.State.AddSubnet("subnet-1", "zone-a", "10.0.0.0/20", nil)
		begin, dice := time.Now(), rand.New(rand.NewPCG(seed, 1))
		var mu sync.Mutex
		var all sync.WaitGroup
		later := func(to *time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			*to = max(*to, time.Since(begin))
		}
		for i := range h.nodes {
			id, delay, r := fmt.Sprintf("i-%d", i), time.Duration(dice.Int64N(int64(time.Second))), rand.New(rand.NewPCG(seed, uint64(i+2)))
			c.State.AddInstance(id, "t3.small", "subnet-1")
			all.Go(func() {
				settle(delay)
				src, err := New(Options{InstanceID: id, Datapath: newLinks()}, eni.Config{
					Settings: eni.Settings{InstanceType: "t3.small", Policy: ipam.DefaultAWS()}, Cluster: "test",
					Cloud: pace.Cloud(c, pace.Options{Peers: true}), Rand: r,
				})
				if err != nil {
					t.Error(err)
					return
				}
				all.Go(func() { _ = src.Run(t.Context()) })
				var first sync.Once
				var pods sync.WaitGroup
				for p := range h.pods {
					pods.Go(func() {
						if _, err := sourcetest.Try(t, src, sourcetest.Request(p), 20*time.Minute); err != nil {
							t.Error(err)
						}
						first.Do(func() { later(&out.first) })
					})
				}
				pods.Wait()
				for len(src.Snapshot().Addresses) < h.pods+3 && time.Since(begin) < 20*time.Minute {
					settle(100 * time.Millisecond)
				}
				later(&out.warm)
			})
		}
		settle(20 * time.Minute)
	})
	return out
}

func settle(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // virtual time, in a synctest bubble
}

// When nodes start cold at once on an account's small rate, each has its first address before nodes
// that have one fill their warm targets, though they do not know of each other, and no call is repeated
// because another failed.
func TestFirstAddressesGoFirst(t *testing.T) {
	const firstCalls, allCalls = 4, 9 // of a node that is alone
	for _, h := range []coldNodes{
		{5, 1, cloudfake.Bucket{Rate: 0.5, Size: 10}},
		{5, 1, cloudfake.Bucket{Rate: 0.5, Size: 5}},
		{20, 1, cloudfake.Bucket{Rate: 5, Size: 50}},
	} {
		const seeds = 9
		var first, warm []time.Duration
		for seed := range uint64(seeds) {
			r := h.run(t, seed)
			first, warm = append(first, r.first), append(warm, r.warm)
		}
		slices.Sort(first)
		slices.Sort(warm)
		least := func(calls int) float64 { return (float64(calls*h.nodes) - h.bucket.Size) / h.bucket.Rate }
		ratio := func(l []time.Duration, calls int) float64 { return l[seeds/2].Seconds() / least(calls) }
		toFirst, toWarm := ratio(first, firstCalls), ratio(warm, allCalls)
		t.Logf("%+v: the last first address after %.1f times the least, %v; all warm after %.1f times, %v", h, toFirst, first, toWarm, warm)
		if toFirst > 2.5 || toWarm > 1.6 {
			t.Errorf("%+v: the last first address after %.1f times what the rate forces, want 2.5; all warm after %.1f times, want 1.6", h, toFirst, toWarm)
		}
	}
}

// After a refusal, calls for a warm target wait for other nodes, until a pod of the node needs them.
func TestPodNeedsWhatYielded(t *testing.T) {
	bubble(t, "t3.small", ipam.DefaultAWS(), func(t *testing.T, n *node) {
		n.tune = func(c *eni.Config) { c.Cloud = pace.Cloud(n.cloud, pace.Options{Peers: true}) }
		n.cloud.Front.Inject(cloudfake.Fault{Op: "CreateENI", Times: 1, Err: throttled})
		n.start()
		n.add(0, 5*time.Second)
		n.settle(3 * time.Second)
		check.Equal(t, n.cloud.Front.Count("CreateENI"), 1, "creations within 3 s")
		n.addAll(1, 6, 3*time.Second)
		n.check()
	})
}
