package cni

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/rpc/unary"
)

// Which calls are made again when the daemon ends under them, or is away
// because it is being restarted, until their time is up:
//
//	ADD     yes. The daemon answers the same ADD again in the same way, and its
//	        next start undoes what was left half done. A failed one would cost
//	        the pod a new sandbox, for which the kubelet takes 15 to 20 s.
//	DEL     yes. It succeeds a second time too.
//	CHECK   yes. It changes nothing.
//	GC      no. Its list is of the moment at which the runtime made it: made
//	        again later, it would name an attachment stale that was added since.
//	        Nothing is lost: runtimes call GC again, and the daemon looks after
//	        vanished sandboxes by itself.
//	STATUS  no. It has to answer at once: see callStatus.
//
// No call is made again after an answer, whatever it says.

// The waits between two attempts: short, since a start takes tenths of a second,
// and growing, since many calls may wait on few CPUs.
const (
	firstWait = 20 * time.Millisecond
	mostWait  = 160 * time.Millisecond

	// mostEnds is under how many attempts of a call the daemon may end. After that
	// the call may be why it does, and every other call suffers from it.
	mostEnds = 5
)

// repeated makes attempts at a call for as long as they fail for want of a daemon
// that is being restarted, and ctx has not ended. The error is the last attempt's.
// One is being restarted when restarting says so, and when it was there for an
// earlier attempt.
func repeated(ctx context.Context, clk clock.Clock, restarting func() bool, attempt func(context.Context) ([]byte, error)) ([]byte, error) {
	wait, ends := firstWait, 0
	for {
		reply, err := attempt(ctx)
		switch {
		case ended(err) && ends < mostEnds-1:
			ends++
		case !nobodyListens(err) || ends == 0 && !restarting():
			return reply, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-clk.After(wait):
		}
		if ctx.Err() != nil {
			return nil, err
		}
		wait = min(2*wait, mostWait)
	}
}

// nobodyListens tells whether a dial failed for want of a daemon: no socket, a
// socket without a process, or one whose queue is full.
func nobodyListens(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EAGAIN)
}

// ended tells whether a daemon ended before it answered, or said that it does.
func ended(err error) bool {
	var e *unary.Error
	return errors.As(err, &e) && e.Code == unary.Unavailable
}
