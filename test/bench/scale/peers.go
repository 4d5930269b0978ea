package scale

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/pace"
)

// callsOfPeer is how many ENIs each peer creates: enough for its limiter to
// settle, as the limiters of many nodes do over all that they have to call.
const callsOfPeer = 500

// runPeers has as many processes as there are nodes, which draw on the same
// buckets and do not know of each other, as daemons in node mode do.
func runPeers(ctx context.Context, o Order) (Outcome, error) {
	e, err := newEC2(o, nil)
	if err != nil {
		return Outcome{}, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if o.Limits.Foreign > 0 {
		go e.greed(ctx, o.Limits.Foreign, o.Limits.Seed)
		time.Sleep(time.Minute) //nolint:forbidigo // virtual time, in a synctest bubble
	}
	begin := time.Now()
	var all sync.WaitGroup
	failed, took := make(chan error, o.Nodes*callsOfPeer), make(chan time.Duration, o.Nodes*callsOfPeer)
	for peer := range o.Nodes {
		api := pace.Cloud(e, pace.NewSet(pace.Options{Peers: true, Observer: e}))
		for n := range callsOfPeer {
			all.Go(func() {
				q := cloud.CreateENI{SubnetID: primaries, ClientToken: fmt.Sprintf("%d-%d", peer, n)}
				_, err := api.CreateENI(ctx, q)
				for cloud.ClassOf(err) == cloud.Throttled && ctx.Err() == nil {
					_, err = api.CreateENI(ctx, q)
				}
				if err != nil {
					failed <- err
				}
				took <- time.Since(begin)
			})
		}
	}
	all.Wait()
	close(failed)
	if err := <-failed; err != nil {
		return Outcome{}, fmt.Errorf("create an ENI: %w", err)
	}
	var at []time.Duration
	for range o.Nodes * callsOfPeer {
		at = append(at, <-took)
	}
	slices.Sort(at)
	out := e.outcome()
	out.Last, out.Median = at[len(at)-1], at[len(at)/2]
	out.Bound = o.Limits.bound(out.Calls)
	if o.Limits.Foreign > 0 {
		out.Bound = o.Limits.share(out.Calls)
	}
	return out, nil
}
