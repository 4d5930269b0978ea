// Package introspect is the document that berthd serves at /ip-manager
// (document 000, "Troubleshooting") and that berthctl reads: the types and
// nothing else, so that both ends and other tools share them.
//
// Fields may be added. A reader must not mind ones that it does not know.
package introspect

import (
	"net/netip"
	"time"
)

// DefaultURL is where a daemon with default settings serves the document.
const DefaultURL = "http://localhost:6666" + Path

// Path of the document on the introspection address.
const Path = "/ip-manager"

// Document is one node's addresses at one moment. Lists are sorted by address,
// ENIs by device index, conditions by type, and are never null.
type Document struct {
	InstanceID string    `json:"instanceID"`
	Node       string    `json:"node"`
	IPAM       string    `json:"ipam,omitempty"` // who gets the addresses: eni (this daemon) or eni-operator
	Time       time.Time `json:"time"`           // when the document was made

	Totals     Totals      `json:"totals"`
	Allocated  []Allocated `json:"allocated"`
	Available  []Available `json:"available"`
	Cooling    []Cooling   `json:"cooling"`
	ENIs       []ENI       `json:"enis"`
	Conditions []Condition `json:"conditions"`

	// LastError is the last trouble with the cloud; empty once it is over.
	LastError string `json:"lastError,omitempty"`
}

// Totals are numbers of addresses, except Waiting. An address is counted in
// one state only.
type Totals struct {
	Allocated int `json:"allocated"` // held by pods
	Available int `json:"available"` // can be handed out now
	Cooling   int `json:"cooling"`   // released less than the cooling period ago
	NotReady  int `json:"notReady"`  // assigned by the cloud, data path not programmed yet
	Withdrawn int `json:"withdrawn"` // on their way back to the cloud
	Capacity  int `json:"capacity"`  // what the attached ENIs could hold
	Waiting   int `json:"waiting"`   // ADDs that wait for an address
}

// Allocated is an address that a pod holds. Pod, Namespace and UID are empty
// outside Kubernetes. Of DeviceIndex, ENI, Block and Pool those are set that
// the address source knows.
type Allocated struct {
	Address     netip.Addr `json:"address"`
	IPv6        netip.Addr `json:"ipv6,omitzero"` // the other one of a dual-stack pod
	Namespace   string     `json:"namespace"`
	Pod         string     `json:"pod"`
	UID         string     `json:"uid,omitempty"`
	ContainerID string     `json:"containerID"`
	Network     string     `json:"network"`
	Interface   string     `json:"interface"` // in the sandbox
	ENI         string     `json:"eni,omitempty"`
	DeviceIndex int        `json:"deviceIndex"`
	Pool        string     `json:"pool,omitempty"`
	Block       string     `json:"block,omitempty"`
	Since       time.Time  `json:"since"` // of the ADD
}

// Available is an address that the next pod can get.
type Available struct {
	Address netip.Addr   `json:"address"`
	ENI     string       `json:"eni"`
	Prefix  netip.Prefix `json:"prefix,omitzero"` // the delegated prefix that it is of
}

// Cooling is an address that is kept from new pods for a while.
type Cooling struct {
	Address          netip.Addr `json:"address"`
	ENI              string     `json:"eni"`
	Since            time.Time  `json:"since"`            // of the release
	Until            time.Time  `json:"until"`            // when it becomes available
	RemainingSeconds float64    `json:"remainingSeconds"` // until then, at Document.Time; not below 0
}

// ENI is one interface of the node. Capacity counts usable addresses, which
// the primary address of an ENI is not.
type ENI struct {
	ID          string `json:"id"`
	DeviceIndex int    `json:"deviceIndex"`
	Primary     bool   `json:"primary"`
	MAC         string `json:"mac"`
	Subnet      string `json:"subnet"`
	Ready       bool   `json:"ready"`
	Reason      string `json:"reason,omitempty"` // why it is not ready
	Capacity    int    `json:"capacity"`
	Used        int    `json:"used"`     // addresses held by pods
	Prefixes    int    `json:"prefixes"` // delegated /28 prefixes
}

// The statuses of a Condition, as in Kubernetes.
const (
	True    = "True"
	False   = "False"
	Unknown = "Unknown"
)

// Condition is one thing that a person may need to act on. True is healthy for
// every type.
type Condition struct {
	Type    string    `json:"type"`
	Status  string    `json:"status"`
	Reason  string    `json:"reason"` // a word in CamelCase
	Message string    `json:"message"`
	Since   time.Time `json:"since"` // of the last change of Status
}
