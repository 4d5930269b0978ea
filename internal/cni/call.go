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

	// statusTimeout bounds a STATUS, which the daemon answers from memory.
	statusTimeout = 5 * time.Second
)

// call makes a call to the daemon, repeats it while the daemon restarts, and returns the reply. The
// error is a *types.Error.
func (n network) call(verb string, message []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), n.timeout())
	defer cancel()
	reply, err := repeated(ctx, clock.Real{}, n.restarting, func(ctx context.Context) ([]byte, error) {
		return n.attempt(ctx, verb, message)
	})
	return n.outcome(reply, err)
}

// callOnce makes a call that must not be repeated.
func (n network) callOnce(verb string, message []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), n.timeout())
	defer cancel()
	return n.outcome(n.attempt(ctx, verb, message))
}

// attempt makes one call on a new connection. The error is that of dialing, or a *unary.Error.
func (n network) attempt(ctx context.Context, verb string, message []byte) ([]byte, error) {
	conn, err := n.dial(ctx)
	if err != nil {
		return nil, err
	}
	return unary.Call(ctx, conn, service+verb, message)
}

// outcome converts the error of a call.
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

// Calls that are repeated until their timeout when the daemon ends during the call,
// or does not listen because it restarts:
//
//	ADD     yes. Repeating an ADD gives the same reply, and the daemon's
//	        next start undoes an incomplete one. A failed ADD would cost
//	        the pod a new sandbox, for which the kubelet takes 15 to 20 s.
//	DEL     yes. It is idempotent.
//	CHECK   yes. It changes nothing.
//	GC      no. Its list is valid when the runtime makes the call: repeated
//	        later, it would release an attachment that was added since.
//	        Runtimes call GC again, and the daemon releases vanished
//	        sandboxes by itself.
//	STATUS  no. It must answer immediately: see callStatus.
//
// No call is repeated after a reply.

// Delays between attempts: short, since a start takes tenths of a second, and growing, since many
// calls may wait on few CPUs.
const (
	firstWait = 20 * time.Millisecond
	mostWait  = 160 * time.Millisecond

	// mostEnds bounds the attempts of a call during which the daemon ends. Beyond that, the call itself
	// may be the cause and affect all other calls.
	mostEnds = 5
)

// repeated repeats attempts while the daemon restarts, until ctx ends, and returns the last error. The
// daemon restarts when restarting returns true, or when it answered an earlier attempt.
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

// nobodyListens reports whether dialing failed because no daemon accepts: there is no socket, no
// process behind it, or its queue is full.
func nobodyListens(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EAGAIN)
}

// ended reports whether the daemon ended before it replied, or replied that it is shutting down.
func ended(err error) bool {
	var e *unary.Error
	return errors.As(err, &e) && e.Code == unary.Unavailable
}

func failf(code uint, format string, args ...any) *types.Error {
	return types.NewError(code, fmt.Sprintf(format, args...), "")
}

// unreachable is the error when the daemon cannot be reached.
func (n network) unreachable(err error) *types.Error {
	switch {
	case errors.Is(err, os.ErrPermission):
		return types.NewError(types.ErrIOFailure, "not permitted to reach berthd at "+n.Socket+"; the plugin must run as the socket's owner (root)", err.Error())
	case errors.Is(err, os.ErrNotExist):
		return types.NewError(types.ErrTryAgainLater, "berthd has not created the socket "+n.Socket+"; is its pod running on this node, and is the path the same in its --socket and in the network configuration's socket?", err.Error())
	}
	return types.NewError(types.ErrTryAgainLater, "berthd does not answer at "+n.Socket+"; look at its pod on this node", err.Error())
}

// failed is the error of a call: the daemon could not be reached, returned an error, or did not reply
// within the timeout.
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

// failureIn returns the CNI error in the status details.
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

// notAvailable is the error with the code of STATUS.
func (n network) notAvailable(e *types.Error) *types.Error {
	return types.NewError(types.ErrPluginNotAvailable, e.Msg, e.Details)
}
