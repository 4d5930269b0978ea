// Package confirm bounds how long a source waits, after a start, for the
// authority on what the node has. What it stored may be old: others may have
// taken addresses while no daemon ran. So nothing is handed out before the
// authority has told what is there, or has failed to, or has had Timeout to do so.
package confirm

import (
	"context"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// Timeout is how long the authority has.
const Timeout = 3 * time.Second

// Await calls expired once Timeout is over, unless ctx ends before. Expired does
// nothing if the authority has been heard of.
func Await(ctx context.Context, c clock.Clock, expired func()) {
	select {
	case <-ctx.Done():
	case <-c.After(Timeout):
		expired()
	}
}
