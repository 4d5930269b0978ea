package vpcport

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Class sorts the failure of a call by what is to be done about it (PolicyOf).
type Class int

// The classes.
const (
	// Unknown: no error of a provider. Treated as Transient.
	Unknown Class = iota
	// Transient: the call may or may not have taken effect (time-outs, 5xx, lost
	// replies). Look before repeating what is not idempotent.
	Transient
	// Throttled: too many calls; this one had no effect.
	Throttled
	// Unauthorized: the credentials are missing, wrong, or expired and cannot be
	// renewed.
	Unauthorized
	// Forbidden: the credentials are right and may not do this.
	Forbidden
	// Invalid: the request asks for what cannot be, such as an address outside its
	// subnet.
	Invalid
	// NetworkGone: there is no such network.
	NetworkGone
	// ReferenceGone: there is no such subnet or security group.
	ReferenceGone
	// PortGone: there is no such port (any more).
	PortGone
	// SubnetFull: the subnet has no free address.
	SubnetFull
	// AddressTaken: another port has the address that was asked for.
	AddressTaken
	// MACTaken: another port of the network has the MAC address that was asked for.
	MACTaken
	// OverQuota: the project has as many ports as it may have.
	OverQuota
	// Conflict: the port is in a state in which this is refused for now.
	Conflict
	// Stale: somebody changed the port since it was looked at.
	Stale
	// TooLarge: the request has too much at once.
	TooLarge
	// Bug: Berth asked, or the provider answered, what cannot be right.
	Bug

	classes // how many there are
)

var classNames = [classes]string{
	Unknown: "unknown", Transient: "transient", Throttled: "throttled", Unauthorized: "unauthorized", Forbidden: "forbidden",
	Invalid: "invalid", NetworkGone: "network-gone", ReferenceGone: "reference-gone", PortGone: "port-gone", SubnetFull: "subnet-full",
	AddressTaken: "address-taken", MACTaken: "mac-taken", OverQuota: "over-quota", Conflict: "conflict", Stale: "stale",
	TooLarge: "too-large", Bug: "bug",
}

// String returns the class as it appears in logs, metrics and messages.
func (c Class) String() string {
	if c >= 0 && c < classes {
		return classNames[c]
	}
	return fmt.Sprintf("class(%d)", int(c))
}

// Error is a failed call.
type Error struct {
	Class   Class
	Op      string // in the provider's words, such as "Neutron POST ports"
	Status  int    // of HTTP; 0 when no reply came
	Type    string // the provider's name for it, such as OverQuota; empty when it gave none
	Message string // the provider's, for people; bounded by whoever reads it
	// About is the ID or address of what it is about, such as a subnet's, as far as
	// the provider tells; of a request for several ports it tells which to leave out.
	About string
	// RetryAfter is how long the provider asked to wait; 0 when it did not.
	RetryAfter time.Duration
	Err        error // the cause, if there is one
}

// Error reads "Neutron POST ports: OverQuota (409): text".
func (e *Error) Error() string {
	text := e.Message
	if text == "" && e.Err != nil {
		text = e.Err.Error()
	}
	switch {
	case e.Type != "" && e.Status != 0:
		return fmt.Sprintf("%s: %s (%d): %s", e.Op, e.Type, e.Status, text)
	case e.Status != 0:
		return fmt.Sprintf("%s: HTTP %d: %s", e.Op, e.Status, text)
	default:
		return fmt.Sprintf("%s: %s", e.Op, text)
	}
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// ClassOf returns the class of err: that of the *Error in its chain, Transient for a
// context's end, Unknown for nil and everything else.
func ClassOf(err error) Class {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return Transient
	}
	return Unknown
}
