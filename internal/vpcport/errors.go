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

// Scope is what a failure holds up.
type Scope int

// The scopes, the narrowest first.
const (
	ScopeNIC    Scope = iota // the one NIC
	ScopeSubnet              // NICs that are to get an address of the same subnet
	ScopeVPC                 // new ports of the VPC; or, where no call would get through, all of it
	ScopeCaller              // all calls with the same credentials
)

// Policy is what is to be done after a failure.
type Policy struct {
	Scope Scope
	// First and Last bound the time until the next attempt, which doubles; both 0: at
	// once.
	First, Last time.Duration
	// Look tells that the provider is asked what there is before anything is asked for
	// again.
	Look bool
	// Edit tells that somebody has to change something: the time is that of a look
	// whether it was changed where Berth does not see it.
	Edit bool
	// Reason is that of the condition, as Kubernetes has them: a word in CamelCase.
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

// PolicyOf is what is to be done about a class.
func PolicyOf(c Class) Policy {
	if c >= 0 && c < classes {
		return policies[c]
	}
	return policies[Unknown]
}
