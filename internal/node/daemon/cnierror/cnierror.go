// Package cnierror defines the errors that a container runtime gets: with a code of the CNI specification or
// of Berth, and a reason for metrics.
package cnierror

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berthnet/berth/internal/rpc"
)

// CNI error codes of Berth (CNI specification 1.1, "Error": codes from 100 are
// plugin-specific). The others are the specification's, from the types package.
const (
	// CodeMismatch: CHECK found that the kernel or the record differs from the result.
	CodeMismatch uint = 100
	// CodeKernel: the kernel rejected a step of ADD or DEL.
	CodeKernel uint = 101
	// CodeRecord: the attachment's record could not be written.
	CodeRecord uint = 102
)

// Failure is an error in the form that the runtime gets.
type Failure struct {
	Code    uint   // code of CNI or of Berth
	Reason  string // a short word for metrics, such as subnet-full
	Message string // what happened, and what to do
	Details string // further details, may be empty
	Err     error  // the underlying error, may be nil
	// Ending: this daemon is shutting down and did nothing; its successor can serve the call.
	Ending bool
}

// New returns a Failure without details.
func New(code uint, reason, format string, args ...any) *Failure {
	return &Failure{Code: code, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Because returns a Failure with err as its cause and details.
func Because(err error, code uint, reason, message string) *Failure {
	return &Failure{Code: code, Reason: reason, Message: message, Details: err.Error(), Err: err}
}

// Of returns the Failure in an error's chain. An error without one becomes an internal error.
func Of(err error) *Failure {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f
	}
	switch {
	case errors.Is(err, context.Canceled):
		return &Failure{Code: types.ErrTryAgainLater, Reason: "cancelled", Message: "the caller went away"}
	case errors.Is(err, context.DeadlineExceeded):
		return &Failure{Code: types.ErrTryAgainLater, Reason: "deadline", Message: "not done in time; try again"}
	}
	return &Failure{Code: types.ErrInternal, Reason: "internal", Message: "internal error of berthd", Details: err.Error(), Err: err}
}

// Error returns the message with the details.
func (f *Failure) Error() string {
	if f.Details == "" {
		return f.Message
	}
	return f.Message + ": " + f.Details
}

// Unwrap returns the underlying error.
func (f *Failure) Unwrap() error { return f.Err }

// GRPCStatus carries the failure to the plugin as a status detail. The plugin retries
// some calls that fail with Unavailable.
func (f *Failure) GRPCStatus() *status.Status {
	code := f.grpcCode()
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

// grpcCode never returns Unavailable, which means that no daemon is running.
func (f *Failure) grpcCode() codes.Code {
	switch f.Code {
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
