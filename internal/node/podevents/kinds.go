package podevents

import "slices"

// Kind is what kind of news it is.
type Kind int

// The kinds of news.
const (
	// WaitsForAddress: an ADD has waited for a while, as no address is free.
	WaitsForAddress Kind = iota
	// WaitsForNetwork: an ADD has waited for a while for something else.
	WaitsForNetwork
	// NoAddress: an ADD failed because no address became free.
	NoAddress
	// NetworkFailed: an ADD failed for another reason.
	NetworkFailed
	// Attached: an ADD worked.
	Attached
	// GatewayFull: a gateway of an Egress has no room for new connections.
	GatewayFull
	// CutOff: a running pod's network is gone.
	CutOff
	// Restored: it is back.
	Restored
	// AddressShared: something else has the address of a pod that runs.
	AddressShared
)

// What of an Event follows from the kind of news.
type form struct {
	reason  string // a word in CamelCase
	action  string // what was tried
	warning bool   // else Normal
}

// forms are the Events. Admission policies list the reasons (deploy).
var forms = map[Kind]form{
	WaitsForAddress: {"WaitingForAddress", "AssignAddress", true},
	WaitsForNetwork: {"WaitingForNetwork", "SetUpNetwork", true},
	NoAddress:       {"NoAddress", "AssignAddress", true},
	NetworkFailed:   {"NetworkNotSetUp", "SetUpNetwork", true},
	Attached:        {"AddressAssigned", "AssignAddress", false},
	GatewayFull:     {"ConnectionsFull", "ForwardPackets", true},
	CutOff:          {"NetworkLost", "ForwardPackets", true},
	Restored:        {"NetworkRestored", "ForwardPackets", false},
	AddressShared:   {"AddressShared", "AssignAddress", true},
}

// Reasons are those of all Events that a Teller writes, in order.
func Reasons() (reasons []string) {
	for _, f := range forms {
		reasons = append(reasons, f.reason)
	}
	slices.Sort(reasons)
	return reasons
}

// passing are causes of a wait that are over by themselves, usually: nobody is
// to be warned of them.
var passing = map[string]bool{"growing": true, "starting": true, "cooling": true, Busy: true}

// warns tells whether the Event of news is a Warning.
func warns(k Kind, cause string) bool {
	if k == WaitsForAddress || k == WaitsForNetwork {
		return !passing[cause]
	}
	return forms[k].warning
}
