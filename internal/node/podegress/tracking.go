package podegress

import (
	"context"
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/kernel/egressgateway"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
)

// A gateway has no permission to write Events, so its node reports a full connection table.

// trackingInterval is the interval between checks of the node's gateways.
const trackingInterval = 10 * time.Second

// Full is called with a message while the connection table of a gateway on this node rejects new
// connections.
type Full func(rec attachment.Record, message string)

// tracker compares the connection counts of the node's gateways with the previous ones.
type tracker struct {
	clients *Clients
	before  map[attachment.Key]egressgateway.Tracked
}

// run checks the gateways until ctx ends.
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
	return fmt.Sprintf("the connection table of this gateway is full: it tracks %d of %d connections, and dropped %d packets of new connections in the last %s or so",
		now.Count, now.Limit, now.Refused-was.Refused, trackingInterval)
}
