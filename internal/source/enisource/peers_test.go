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
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/test/harness/check"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

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
