// Package confirm bounds how long a source waits, after a start, until the API server or EC2 confirms what the node has. What
// the source stored may be stale: addresses may have been taken away while no daemon ran. So nothing is handed out before
// the confirmation, or an error, or Timeout.
package confirm

import (
	"context"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// Timeout is how long a source waits for the confirmation.
const Timeout = 3 * time.Second

// Await calls expired after Timeout, unless ctx ends before.
func Await(ctx context.Context, c clock.Clock, expired func()) {
	select {
	case <-ctx.Done():
	case <-c.After(Timeout):
		expired()
	}
}
