package cloud

import (
	"context"
	"errors"
	"fmt"
)

// Class classifies failed calls by the required reaction.
type Class int

// The classes, and the reaction to each.
const (
	// Unknown: not an error of the cloud. Treated as Transient.
	Unknown Class = iota
	// Throttled: too many calls. Wait for the limiter and make the same call again.
	Throttled
	// SubnetFull: the subnet has too few free addresses, no free aligned prefix, or no block of the family.
	// Try another subnet or a smaller unit, and this one again later.
	SubnetFull
	// LimitReached: a limit of the instance, ENI or account is exhausted. Describe it again before planning.
	LimitReached
	// Gone: a resource in the request does not exist, or no longer. Observe again.
	Gone
	// Conflict: the state of the resource currently forbids the call (attaching, in use). Observe again,
	// then retry.
	Conflict
	// Transient: the call may or may not have taken effect (timeout, 5xx, lost reply). Observe before
	// repeating a call that is not idempotent.
	Transient
	// Permission: credentials are missing, expired or lack the action. Report it and retry slowly.
	Permission
	// Bug: the request itself was invalid. Report it and retry slowly.
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
	Code    string // the cloud's error code, such as RequestLimitExceeded; empty without a reply
	Message string
	Err     error // the SDK's error
}

// Error returns text such as "EC2 AttachNetworkInterface: AttachmentLimitExceeded: text".
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

// Unwrap returns the SDK's error.
func (e *Error) Unwrap() error { return e.Err }

// ClassOf returns the class of the *Error in err's chain, Transient for a canceled or expired context, and
// Unknown for nil and all other errors.
func ClassOf(err error) Class {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return Transient
	}
	return Unknown
}
