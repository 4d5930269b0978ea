package cloud

import (
	"context"
	"errors"
	"fmt"
)

// Class sorts failed calls by how to react.
type Class int

// The classes, with the reaction to each.
const (
	// Unknown: not an error of the cloud. Treated as Transient.
	Unknown Class = iota
	// Throttled: too many calls. Wait for the limiter and make the same call again.
	Throttled
	// SubnetFull: the subnet has not enough free addresses, no free aligned
	// prefix, or no block of the family. Try another subnet or smaller unit, and
	// again later.
	SubnetFull
	// LimitReached: the instance, ENI or account has no room for more. Describe it again before the next plan.
	LimitReached
	// Gone: a resource in the request does not exist (any more). Observe again.
	Gone
	// Conflict: the state of the resource forbids the call for now (attaching, in use). Observe again,
	// then retry.
	Conflict
	// Transient: the call may or may not have taken effect (timeouts, 5xx,
	// lost replies). Observe before repeating a call that is not idempotent.
	Transient
	// Permission: credentials are missing, expired or lack the action. Report
	// it; retry slowly.
	Permission
	// Bug: the request itself was wrong. Report it; retry slowly.
	Bug
)

var classNames = [...]string{"unknown", "throttled", "subnet-full", "limit-reached", "gone", "conflict", "transient", "permission", "bug"}

// String returns the class as it appears in logs, metrics and messages.
func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return fmt.Sprintf("class(%d)", int(c))
}

// Error is a failed cloud call.
type Error struct {
	Class   Class
	Op      string // the cloud's name for the action, such as AssignPrivateIpAddresses
	Code    string // the cloud's error code, such as RequestLimitExceeded; empty when no reply came
	Message string
	Err     error // the SDK's error
}

// Error reads "EC2 AttachNetworkInterface: AttachmentLimitExceeded: text".
func (e *Error) Error() string {
	switch {
	case e.Code != "":
		return fmt.Sprintf("EC2 %s: %s: %s", e.Op, e.Code, e.Message)
	case e.Err != nil:
		return fmt.Sprintf("EC2 %s: %v", e.Op, e.Err)
	default:
		return fmt.Sprintf("EC2 %s: %s", e.Op, e.Message)
	}
}

// Unwrap gives the SDK's error.
func (e *Error) Unwrap() error { return e.Err }

// ClassOf returns the class of the *Error in err's chain; Transient for the end of a context; Unknown
// for nil and for all other errors.
func ClassOf(err error) Class {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return Transient
	}
	return Unknown
}
