package scale

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

// callsOfPeer is how many ENIs each peer creates: enough for its limiter to
// settle, as the limiters of many nodes do over all that they have to call.
const callsOfPeer = 500

// runPeers has as many processes as there are nodes, which draw on the same
// buckets and do not know of each other, as daemons in node mode do.
func runPeers(ctx context.Context, o Order) (Outcome, error) {
	e := newEC2(o, nil)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	e.besides(ctx, o.Limits)
	begin := time.Now()
	var all errgroup.Group
	at := make([]time.Duration, o.Nodes*callsOfPeer) // when each call had passed
	for peer := range o.Nodes {
		api := pace.Cloud(e, pace.Options{Peers: true, Observer: e})
		for n := range callsOfPeer {
			all.Go(func() error {
				q := cloud.CreateENI{SubnetID: primaries, ClientToken: fmt.Sprintf("%d-%d", peer, n)}
				_, err := api.CreateENI(ctx, q)
				for cloud.ClassOf(err) == cloud.Throttled && ctx.Err() == nil {
					_, err = api.CreateENI(ctx, q)
				}
				at[peer*callsOfPeer+n] = time.Since(begin)
				return err
			})
		}
	}
	if err := all.Wait(); err != nil {
		return Outcome{}, fmt.Errorf("create an ENI: %w", err)
	}
	slices.Sort(at)
	out := e.outcome()
	out.Last, out.Median = at[len(at)-1], at[len(at)/2]
	out.Bound = o.Limits.Forces(out.Calls)
	return out, nil
}
