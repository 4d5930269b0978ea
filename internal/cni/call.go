package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/heartbeat"
	"github.com/berthnet/berth/internal/rpc/unary"
	"github.com/berthnet/berth/internal/rpc/wire"
)

const (
	service = "/berth.v1.Node/"

	// statusTimeout bounds a STATUS, which asks for nothing but memory.
	statusTimeout = 5 * time.Second
)

// call makes a call to the daemon, again if it is being restarted, and returns
// its answer. The error, if any, is a *types.Error.
func (n network) call(verb string, message []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), n.timeout())
	defer cancel()
	reply, err := repeated(ctx, clock.Real{}, n.restarting, func(ctx context.Context) ([]byte, error) {
		return n.attempt(ctx, verb, message)
	})
	return n.outcome(reply, err)
}

// callOnce makes a call that must not be made again.
func (n network) callOnce(verb string, message []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), n.timeout())
	defer cancel()
	return n.outcome(n.attempt(ctx, verb, message))
}

// attempt dials the daemon and asks it. The error is the dial's, or a *unary.Error.
func (n network) attempt(ctx context.Context, verb string, message []byte) ([]byte, error) {
	conn, err := n.dial(ctx)
	if err != nil {
		return nil, err
	}
	return unary.Call(ctx, conn, service+verb, message)
}

// outcome is a call's for the runtime.
func (n network) outcome(reply []byte, err error) ([]byte, error) {
	if err != nil {
		return nil, n.failed(err, n.timeout())
	}
	return reply, nil
}

func (n network) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", n.Socket)
}

func (n network) restarting() bool { return heartbeat.Recent(n.Socket, clock.Real{}.Boot()) }

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

func failf(code uint, format string, args ...any) *types.Error {
	return types.NewError(code, fmt.Sprintf(format, args...), "")
}

// unreachable is a daemon that could not be connected to.
func (n network) unreachable(err error) *types.Error {
	switch {
	case errors.Is(err, os.ErrPermission):
		return types.NewError(types.ErrIOFailure, "not permitted to reach berthd at "+n.Socket+"; the plugin must run as the socket's owner (root)", err.Error())
	case errors.Is(err, os.ErrNotExist):
		return types.NewError(types.ErrTryAgainLater, "berthd has made no socket at "+n.Socket+"; is its pod running on this node, and is the path the same in its --socket and in the network configuration's socket?", err.Error())
	}
	return types.NewError(types.ErrTryAgainLater, "berthd does not answer at "+n.Socket+"; look at its pod on this node", err.Error())
}

// failed is a call that failed: that the daemon could not be reached, what it says
// of the call, or that it said nothing, within the time that the call had.
func (n network) failed(err error, within time.Duration) *types.Error {
	var status *unary.Error
	if !errors.As(err, &status) {
		return n.unreachable(err)
	}
	if f, ok := failureIn(err); ok {
		return types.NewError(uint(f.Code), f.Message, f.Details)
	}
	switch unary.CodeOf(err) {
	case unary.DeadlineExceeded:
		text := "berthd at %s did not finish within %v; look at its log"
		if within == n.timeout() {
			text = "berthd at %s did not finish within %v; look at its log, or raise timeout in the network configuration"
		}
		return types.NewError(types.ErrTryAgainLater, fmt.Sprintf(text, n.Socket, within), err.Error())
	case unary.Unavailable, unary.Canceled:
		return types.NewError(types.ErrTryAgainLater, "berthd at "+n.Socket+" ended during the call; look at its log if it is not back soon", err.Error())
	case unary.Unimplemented:
		return types.NewError(types.ErrInternal, "berthd at "+n.Socket+" does not know this call; it is older than the plugin", err.Error())
	}
	return types.NewError(types.ErrInternal, "berthd at "+n.Socket+" failed", err.Error())
}

// failureIn finds what the daemon put beside the status for the runtime.
func failureIn(err error) (f wire.Failure, ok bool) {
	var e *unary.Error
	if !errors.As(err, &e) {
		return f, false
	}
	for _, d := range e.Details {
		if d.Type == wire.FailureType && f.Decode(d.Value) == nil && f.Code != 0 {
			return f, true
		}
	}
	return f, false
}

// notAvailable is STATUS's code for the same failure.
func (n network) notAvailable(e *types.Error) *types.Error {
	return types.NewError(types.ErrPluginNotAvailable, e.Msg, e.Details)
}
