package cni

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/rpc/unary"
	"github.com/berthnet/berth/internal/rpc/wire"
)

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
