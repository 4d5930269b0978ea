package vpcport

import "time"

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
