package heartbeat

import (
	"context"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// retry is how often a daemon that is not good yet looks whether it is: one
// that is killed soon after has left a heartbeat too.
const retry = 100 * time.Millisecond

// Run is the daemon's side: it renews the heartbeat of a socket while good
// says so, removes it while not, and reports to failed what goes wrong, once until
// it works again. It returns when ctx ends and then leaves the heartbeat, for a successor to take
// over.
func Run(ctx context.Context, socket string, clk clock.Clock, good func() bool, failed func(error)) {
	failing := false
	for {
		var err error
		next := retry
		if good() {
			err = Beat(socket, clk.Boot())
			next = Interval
		} else {
			err = Stop(socket)
		}
		if err != nil && !failing {
			failed(err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-clk.After(next):
		}
	}
}
