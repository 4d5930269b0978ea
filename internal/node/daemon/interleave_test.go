package daemon

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
)

// TestInterleavings runs ADDs, DELs, GCs, CHECKs and sweeps of a few containers in random
// interleavings, and cancels ADDs at random moments. No address or port ever has two holders, and in
// the end records, kernel and source agree.
func TestInterleavings(t *testing.T) {
	t.Run("addresses alone", func(t *testing.T) { interleavings(t, newNode) })
	t.Run("with NICs", func(t *testing.T) { interleavings(t, newPortNode) })
}

func interleavings(t *testing.T, newNode func(t *testing.T, addrs ...string) *node) {
	const rounds, workers, calls = 20, 8, 25
	var addrs []string
	for i := range 9 {
		addrs = append(addrs, fmt.Sprint("10.0.0.", i+1))
	}
	n := newNode(t, addrs...)
	n.warmWait = 2 * time.Millisecond
	r := n.restart(nil)
	quit := make(chan struct{})
	var clock, wg sync.WaitGroup
	clock.Go(func() { // cooling ends now and then
		for {
			select {
			case <-quit:
				return
			case <-time.After(time.Millisecond):
				n.clock.Advance(100 * time.Millisecond)
			}
		}
	})
	defer clock.Wait()
	defer close(quit)
	n.kernel.onEnter("AddPod", runtime.Gosched)

	netns := map[string]string{}
	var keys []attachment.Key
	for c := range 4 {
		for _, ifname := range []string{"eth0", "net1"} {
			k := keyFor(fmt.Sprint("c", c))
			k.IfName = ifname
			keys = append(keys, k)
		}
		netns[fmt.Sprint("c", c)] = n.newNetns(fmt.Sprint("c", c))
		if r.nics != nil && c > 0 { // both attachments of a container want the same port
			r.nics.bind(fmt.Sprint("c", c), testNIC("eth1", fmt.Sprint("p-", c)))
		}
	}
	seed := rand.Uint64()
	t.Log("seed", seed)
	for round := range rounds {
		for w := range workers {
			rnd := rand.New(rand.NewPCG(seed, uint64(round*workers+w)))
			wg.Go(func() {
				for range calls {
					key := keys[rnd.IntN(len(keys))]
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rnd.IntN(3000))*time.Microsecond+time.Microsecond)
					if rnd.IntN(3) > 0 {
						ctx, cancel = context.WithTimeout(context.Background(), time.Minute)
					}
					switch rnd.IntN(10) {
					case 0, 1, 2, 3, 4:
						want := attachment.Record{Key: key, Netns: attachment.Netns{Path: netns[key.ContainerID]}, Pod: attachment.Pod{Name: key.ContainerID}}
						_, err := r.attachments.add(ctx, want, attachment.PodOptions{})
						// An address that another has is refused by the records or by the kernel.
						if err != nil && cnierror.Of(err).Code != types.ErrTryAgainLater {
							t.Errorf("ADD %s: %v", key, err)
						}
					case 5, 6, 7:
						if err := r.attachments.del(context.Background(), key); err != nil {
							t.Errorf("DEL %s: %v", key, err)
						}
					case 8:
						_ = r.attachments.check(ctx, key, netns[key.ContainerID], nil)
					case 9:
						if _, err := r.attachments.gc(context.Background(), key.Network, keys[:4]); err != nil {
							t.Errorf("GC: %v", err)
						}
						r.sweeper.sweep(ctx)
					}
					cancel()
				}
			})
		}
		wg.Wait()
		waitFor(t, func() bool { return r.reaper.count() == 0 })
		atRest(t, n, r, len(addrs))
		if t.Failed() {
			t.Fatalf("round %d", round)
		}
	}
	for _, k := range keys {
		if err := r.attachments.del(within(t), k); err != nil {
			t.Errorf("DEL %s: %v", k, err)
		}
	}
	waitFor(t, func() bool { return r.reaper.count() == 0 })
	n.wantKernel(t, 0, 0)
	if n.board != nil {
		n.board.want(t)
	}
	waitFor(t, func() bool {
		return r.inspector.document().Totals.Available == len(addrs) && len(r.Store.CoolingRecords()) == 0
	})
}

// atRest compares records, kernel and source.
func atRest(t *testing.T, n *node, r *running, addrs int) {
	t.Helper()
	links, routes := n.kernel.all.State()
	records := r.Store.Records()
	if len(links) != len(records) || len(routes) != len(records) {
		t.Errorf("records %v, links %v, routes %v", records, links, routes)
	}
	var ports []string
	for _, rec := range records {
		for _, nic := range rec.NICs {
			ports = append(ports, nic.Port)
		}
		if rec.State != attachment.Ready {
			t.Errorf("%s is %s", rec.Key, rec.State)
		}
		if !slices.Contains(routes, rec.Lease.IPv4.String()+" "+rec.HostLink) {
			t.Errorf("%s does not lead to %s, routes are %v", rec.Lease.IPv4, rec.HostLink, routes)
		}
		if _, cools := r.Store.Cooling(rec.Lease.IPv4); cools {
			t.Errorf("%s of %s cools", rec.Lease.IPv4, rec.Key)
		}
	}
	if n.board != nil {
		slices.Sort(ports)
		n.board.want(t, ports...)
	}
	if d := r.inspector.document().Totals; d.Allocated != len(records) || d.Allocated+d.Cooling+d.Available != addrs {
		t.Errorf("totals %+v with %d records", d, len(records))
	}
}
