package cni

import (
	"errors"
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

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

// failed is a call that failed: what the daemon says of it, or that it said nothing.
func (n network) failed(err error) *types.Error {
	st := grpcstatus.Convert(err)
	for _, d := range st.Details() {
		if f, ok := d.(*wire.Failure); ok && f.GetCode() != 0 {
			return types.NewError(uint(f.GetCode()), f.GetMessage(), f.GetDetails())
		}
	}
	switch st.Code() {
	case codes.DeadlineExceeded:
		return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("berthd at %s did not finish within %v; look at its log, or raise timeout in the network configuration", n.Socket, n.timeout()), st.Message())
	case codes.Unavailable, codes.Canceled:
		return types.NewError(types.ErrTryAgainLater, "berthd at "+n.Socket+" ended during the call; it is being restarted, or look at its log", st.Message())
	case codes.Unimplemented:
		return types.NewError(types.ErrInternal, "berthd at "+n.Socket+" does not know this call; it is older than the plugin", st.Message())
	}
	return types.NewError(types.ErrInternal, "berthd at "+n.Socket+" failed", st.Message())
}

// notAvailable is STATUS's code for the same failure.
func (n network) notAvailable(e *types.Error) *types.Error {
	return types.NewError(types.ErrPluginNotAvailable, e.Msg, e.Details)
}
