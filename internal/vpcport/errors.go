package vpcport

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Class groups failed calls by the reaction that they require (PolicyOf).
type Class int

// The classes.
const (
	// Unknown: not a provider error. Treated as Transient.
	Unknown Class = iota
	// Transient: the call may or may not have taken effect (timeouts, 5xx, lost replies). Read the state before repeating a call that is
	// not idempotent.
	Transient
	// Throttled: too many calls; this one had no effect.
	Throttled
	// Unauthorized: the credentials are missing, wrong, or expired and not renewable.
	Unauthorized
	// Forbidden: the credentials are valid but lack the permission.
	Forbidden
	// Invalid: the request is impossible, for example for an address outside its subnet.
	Invalid
	// NetworkGone: the network does not exist.
	NetworkGone
	// ReferenceGone: a subnet or security group does not exist.
	ReferenceGone
	// PortGone: the port does not exist.
	PortGone
	// SubnetFull: the subnet has no free address.
	SubnetFull
	// AddressTaken: another port has the requested address.
	AddressTaken
	// MACTaken: another port of the network has the requested MAC address.
	MACTaken
	// OverQuota: the project has reached its port quota.
	OverQuota
	// Conflict: the call is refused in the port's current state.
	Conflict
	// Stale: another client has changed the port since it was read.
	Stale
	// TooLarge: the request is too large.
	TooLarge
	// Bug: Berth's request or the provider's reply is invalid.
	Bug

	classes // the number of classes
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
	Op      string // the operation, such as "Neutron POST ports"
	Status  int    // HTTP status; 0 without a reply
	Type    string // the provider's name for the error, such as OverQuota; empty if it gave none
	Message string // the provider's message for people; of bounded length
	// About is the ID or address that caused the error, such as a full subnet's; empty: unknown. The caller can repeat a request for
	// several ports without it.
	About string
	// RetryAfter is how long the provider asked the client to wait; 0: it did not ask.
	RetryAfter time.Duration
	Err        error // the cause; may be nil
}

// Error returns a text such as "Neutron POST ports: OverQuota (409): text".
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

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ClassOf returns the class of the *Error in err's chain. It returns Transient if a context ended, and Unknown for nil and all other errors.
func ClassOf(err error) Class {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return Transient
	}
	return Unknown
}

// Scope is the set of calls that a failure affects.
type Scope int

// The scopes, from the narrowest to the widest.
const (
	ScopeNIC    Scope = iota // one NIC
	ScopeSubnet              // NICs that need an address of the same subnet
	ScopeVPC                 // new ports of the VPC, or the whole VPC if no call can succeed
	ScopeCaller              // all calls with the same credentials
)

// Policy is the reaction to a failure.
type Policy struct {
	Scope Scope
	// First and Last bound the backoff, which doubles with each attempt; both 0: retry immediately.
	First, Last time.Duration
	// Look: read the actual state before repeating the request.
	Look bool
	// Edit: a person has to change something. The backoff covers changes about which Berth is not notified.
	Edit bool
	// Reason is the reason of the Kubernetes condition, in CamelCase.
	Reason string
}

var policies = [classes]Policy{
	Unknown:       {Scope: ScopeNIC, First: 500 * time.Millisecond, Last: 30 * time.Second, Look: true, Reason: "ProviderFailed"},
	Transient:     {Scope: ScopeNIC, First: 500 * time.Millisecond, Last: 30 * time.Second, Look: true, Reason: "ProviderFailed"},
	Throttled:     {Scope: ScopeCaller, First: time.Second, Last: time.Minute, Reason: "Throttled"},
	Unauthorized:  {Scope: ScopeCaller, First: 10 * time.Second, Last: 5 * time.Minute, Edit: true, Reason: "CredentialsRefused"},
	Forbidden:     {Scope: ScopeVPC, First: 30 * time.Second, Last: 5 * time.Minute, Edit: true, Reason: "Forbidden"},
	Invalid:       {Scope: ScopeNIC, First: time.Minute, Last: 10 * time.Minute, Edit: true, Reason: "Invalid"},
	NetworkGone:   {Scope: ScopeVPC, First: 10 * time.Second, Last: 5 * time.Minute, Edit: true, Reason: "NetworkNotFound"},
	ReferenceGone: {Scope: ScopeNIC, First: 10 * time.Second, Last: 5 * time.Minute, Edit: true, Reason: "NotFound"},
	PortGone:      {Scope: ScopeNIC, Look: true, Reason: "PortDeleted"},
	SubnetFull:    {Scope: ScopeSubnet, First: 2 * time.Second, Last: time.Minute, Reason: "SubnetFull"},
	AddressTaken:  {Scope: ScopeNIC, First: 2 * time.Second, Last: time.Minute, Look: true, Reason: "AddressTaken"},
	MACTaken:      {Scope: ScopeNIC, Look: true, Reason: "MACTaken"},
	OverQuota:     {Scope: ScopeVPC, First: 5 * time.Second, Last: 2 * time.Minute, Reason: "OverQuota"},
	Conflict:      {Scope: ScopeNIC, First: time.Second, Last: 30 * time.Second, Look: true, Reason: "Conflict"},
	Stale:         {Scope: ScopeNIC, Look: true, Reason: "Conflict"},
	TooLarge:      {Scope: ScopeCaller, Reason: "TooLarge"},
	Bug:           {Scope: ScopeNIC, First: time.Minute, Last: 10 * time.Minute, Look: true, Reason: "UnexpectedAnswer"},
}

// PolicyOf returns the reaction to failures of a class.
func PolicyOf(c Class) Policy {
	if c >= 0 && c < classes {
		return policies[c]
	}
	return policies[Unknown]
}
