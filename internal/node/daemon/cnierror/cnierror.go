package daemon

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berthnet/berth/internal/rpc"
)

// CNI error codes of Berth's own (CNI specification 1.1, "Error": 100 and
// above are the plugin's). The rest are the specification's, from the types package.
const (
	// CodeMismatch: CHECK found that kernel or record differ from the result.
	CodeMismatch uint = 100
	// CodeKernel: the kernel refused a step of ADD or DEL.
	CodeKernel uint = 101
	// CodeRecord: the attachment's record could not be written.
	CodeRecord uint = 102
)

// Failure is an error as the runtime gets to see it.
type Failure struct {
	Code    uint   // CNI's or Berth's own
	Reason  string // a short word for metrics, such as subnet-full
	Message string // what happened and what to do
	Details string // what else helps, may be empty
	Err     error  // what is behind it, may be nil
	// Ending: this daemon ends, nothing was done, and the next one is to be asked.
	Ending bool
}

// Error is the message with the details.
func (f *Failure) Error() string {
	if f.Details == "" {
		return f.Message
	}
	return f.Message + ": " + f.Details
}

// Unwrap gives the error behind it.
func (f *Failure) Unwrap() error { return f.Err }

// GRPCStatus carries the failure to the plugin as a status detail. The plugin makes
// some calls again that were Unavailable.
func (f *Failure) GRPCStatus() *status.Status {
	code := grpcCode(f.Code)
	if f.Ending {
		code = codes.Unavailable
	}
	st := status.New(code, f.Error())
	with, err := st.WithDetails(&rpc.Failure{Code: uint32(f.Code), Message: f.Message, Details: f.Details})
	if err != nil {
		return st
	}
	return with
}

// grpcCode is never Unavailable, which means that there is no daemon any more.
func grpcCode(cni uint) codes.Code {
	switch cni {
	case types.ErrTryAgainLater:
		return codes.ResourceExhausted
	case types.ErrUnknownContainer:
		return codes.NotFound
	case types.ErrInvalidEnvironmentVariables, types.ErrInvalidNetworkConfig, types.ErrInvalidNetNS:
		return codes.InvalidArgument
	case types.ErrPluginNotAvailable, CodeMismatch:
		return codes.FailedPrecondition
	default:
		return codes.Internal
	}
}

func failf(code uint, reason, format string, args ...any) *Failure {
	return &Failure{Code: code, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// failureOf makes any error a Failure. What is none yet is internal.
func failureOf(err error) *Failure {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f
	}
	switch {
	case errors.Is(err, context.Canceled):
		return failf(types.ErrTryAgainLater, "cancelled", "the caller went away")
	case errors.Is(err, context.DeadlineExceeded):
		return failf(types.ErrTryAgainLater, "deadline", "not done in time; try again")
	}
	return &Failure{Code: types.ErrInternal, Reason: "internal", Message: "internal error of berthd", Details: err.Error(), Err: err}
}
