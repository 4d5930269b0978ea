package daemon

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// What waits on the plugin's socket takes up one of its connections. These bounds
// leave some for calls that are done at once, such as a DEL and a STATUS.

const (
	// maxWaiting is how many ADDs wait at a time, for an address, for another call
	// about their container, or for the daemon to start. The kubelet tries those
	// again that are refused.
	maxWaiting = pluginConnections * 3 / 4
	// crowdedWait is how long an ADD beyond them may take until it asks for an
	// address, which it gets then if there is one.
	crowdedWait = 100 * time.Millisecond
)

// waitingADDs counts the ADDs that are at work or wait, and bounds how long those
// beyond maxWaiting may.
type waitingADDs struct{ count atomic.Int64 }

// errCrowded refuses an ADD that would wait beside too many others.
var errCrowded = failf(types.ErrTryAgainLater, "crowded", "%d ADDs wait already on this node; try again", maxWaiting)

// enter returns the context in which an ADD may wait. leave must be called once.
func (w *waitingADDs) enter(ctx context.Context) (_ context.Context, leave func()) {
	if w.count.Add(1) <= maxWaiting {
		return ctx, func() { w.count.Add(-1) }
	}
	ctx, cancel := context.WithTimeoutCause(ctx, crowdedWait, errCrowded)
	return ctx, func() {
		w.count.Add(-1)
		cancel()
	}
}
