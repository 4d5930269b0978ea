package podegress

import (
	"context"
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/kernel/egressgateway"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
)

// A gateway's token writes nothing, so its node tells of it that its connections have no room.

// trackingInterval is how often gateways of the node are looked at.
const trackingInterval = 10 * time.Second

// Full hears that new connections found no room in the table of a gateway on this node: what it says
// is for a person, and is said again as long as that goes on.
type Full func(rec attachment.Record, message string)

// tracker compares the connection counts of the node's gateways with those of before.
type tracker struct {
	clients *Clients
	before  map[attachment.Key]egressgateway.Tracked
}

// run looks at the gateways until ctx ends.
func (t tracker) run(ctx context.Context) {
	c := t.clients
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.clock.After(retry.Jitter(trackingInterval)):
		}
		c.mu.Lock()
		gateways := c.observed.pods.gateways()
		c.mu.Unlock()
		now := map[attachment.Key]egressgateway.Tracked{}
		for _, rec := range gateways {
			tracked, err := c.cfg.Kernel.Tracked(rec.Netns.Path)
			if err != nil {
				c.log.Debug("connections of a gateway not counted", "pod", nameOf(rec.Pod).String(), "err", err)
				continue
			}
			now[rec.Key] = tracked
			if was, known := t.before[rec.Key]; known && tracked.Refused > was.Refused {
				c.cfg.Full(rec, fullMessage(was, tracked))
			}
		}
		t.before = now
	}
}

func fullMessage(was, now egressgateway.Tracked) string {
	return fmt.Sprintf("new connections find no room in this gateway: it tracks %d of %d connections, and dropped %d packets that began others since it was looked at before, about %s ago",
		now.Count, now.Limit, now.Refused-was.Refused, trackingInterval)
}
