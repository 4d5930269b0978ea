package scale

import (
	"context"

	"github.com/berthnet/berth/internal/cloud/pace"
)

// throttled is the action of which a workload's first call is refused.
var throttled = map[Workload]pace.Call{
	ThrottledCreate: pace.CreateENI,
	ThrottledAssign: pace.Assign,
}

// runThrottled fills nodes, of which one call is throttled once.
func runThrottled(ctx context.Context, o Order) (Outcome, error) {
	w := want{policy: onPrimary()}
	if o.Workload == ThrottledCreate {
		w.policy.FirstInterfaceIndex = 1
	}
	c, err := newCluster(o, w)
	if err != nil {
		return Outcome{}, err
	}
	if !o.Calm {
		action := throttled[o.Workload].Action
		c.ec2.refuse.Store(&action)
	}
	return c.fill(ctx, o)
}
