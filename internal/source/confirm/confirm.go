// Package confirm bounds how long a source waits, after a start, until the API server or EC2 confirms the node's addresses.
// The stored state may be stale: addresses may have been removed while no daemon ran. Therefore the source assigns none before
// the confirmation, an error, or Timeout.
package confirm

import (
	"context"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// Timeout is how long a source waits for the confirmation.
const Timeout = 3 * time.Second

// Await calls expired after Timeout, unless ctx ends first.
func Await(ctx context.Context, c clock.Clock, expired func()) {
	select {
	case <-ctx.Done():
	case <-c.After(Timeout):
		expired()
	}
}
