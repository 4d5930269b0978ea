// Package introspect is the document that berthd serves at /ip-manager
// (proposal for the Amazon VPC CNI, "Troubleshooting") and that berthctl reads: the types and
// nothing else, so that both ends and other tools share them.
//
// Fields may be added. A reader must not mind ones that it does not know.
package introspect

import (
	"cmp"
	"net/netip"
	"time"
)

// DefaultURL is where a daemon with default settings serves the document.
const DefaultURL = "http://localhost:6666" + Path

// Path of the document on the introspection address.
const Path = "/ip-manager"

// Document is one node's addresses at one moment. Lists are sorted by address,
// ENIs by device index, pools and blocks by name, NICs by pod and interface,
// conditions by type, and are never null. A node has ENIs, or pools and blocks, or
// neither, where pods have no addresses but those of their NICs.
type Document struct {
	InstanceID string    `json:"instanceID"`     // the node's name where addresses are of pools
	Node       string    `json:"node"`           // in Kubernetes
	IPAM       string    `json:"ipam,omitempty"` // where addresses come from: eni (this daemon gets them), eni-operator, pool, port or none
	Version    string    `json:"version"`        // of berthd; empty before it was told
	Time       time.Time `json:"time"`           // when the document was made

	// Template is the NodeNetworkTemplate whose settings new ENIs have, as KIND/NAME;
	// empty: none has any for this node.
	Template string `json:"template,omitempty"`

	Totals     Totals      `json:"totals"`
	Allocated  []Allocated `json:"allocated"`
	Available  []Available `json:"available"`
	Cooling    []Cooling   `json:"cooling"`
	ENIs       []ENI       `json:"enis"`
	Pools      []Pool      `json:"pools"`
	Blocks     []Block     `json:"blocks"`
	NICs       []NIC       `json:"nics"`
	Conditions []Condition `json:"conditions"`

	// LastError is the last trouble with the cloud or, where addresses are of
	// pools, with getting a block; empty once it is over.
	LastError string `json:"lastError,omitempty"`
}

// Totals are numbers of addresses, except Waiting. An address is counted in
// one state only, and a dual-stack pair of a block once.
type Totals struct {
	Allocated int `json:"allocated"` // held by pods
	Available int `json:"available"` // can be handed out now
	Cooling   int `json:"cooling"`   // released less than the cooling period ago
	NotReady  int `json:"notReady"`  // the node's, data path not programmed yet
	Withdrawn int `json:"withdrawn"` // on their way back to the cloud or the pool
	Capacity  int `json:"capacity"`  // what the attached ENIs could hold, or the node's blocks
	Waiting   int `json:"waiting"`   // ADDs that wait for an address
}

// Allocated is an address that a pod holds. Pod, Namespace and UID are empty
// outside Kubernetes. DeviceIndex is the number of the uplink, where it has one.
type Allocated struct {
	Address netip.Addr `json:"address"`
	IPv6    netip.Addr `json:"ipv6,omitzero"` // the other one of a dual-stack pod
	// NodeLocal is of the family that the pod has no address of: by it the pod reaches
	// the world of that family as its node; only the node reaches the pod by it.
	NodeLocal   netip.Addr `json:"nodeLocal,omitzero"`
	Namespace   string     `json:"namespace"`
	Pod         string     `json:"pod"`
	UID         string     `json:"uid,omitempty"`
	ContainerID string     `json:"containerID"`
	Network     string     `json:"network"`
	Interface   string     `json:"interface"` // in the sandbox
	Origin
	DeviceIndex int       `json:"deviceIndex"`
	Since       time.Time `json:"since"` // of the ADD
}

// Available is an address that the next pod can get. Of a dual-stack block it is
// the IPv4 one; of a block of more than 256 addresses those that no pod had yet
// are counted in Totals and Block only.
type Available struct {
	Address netip.Addr `json:"address"`
	Origin
	Prefix netip.Prefix `json:"prefix,omitzero"` // the delegated prefix that it is of
}

// Origin tells where an address is of: an ENI, or a block and its pool as far as
// the node has it. Of its fields those are set that the address source knows. Records
// of attachments have it too, under the same names.
type Origin struct {
	ENI   string `json:"eni,omitempty"` // its ID
	Pool  string `json:"pool,omitempty"`
	Block string `json:"block,omitempty"`
}

// Group names the ENI or the block; empty where neither is known. It is not String,
// which each struct with an Origin in it would have too, and be printed by.
func (o Origin) Group() string { return cmp.Or(o.ENI, o.Block) }

// Cooling is an address that is kept from new pods for a while.
type Cooling struct {
	Address netip.Addr `json:"address"`
	Origin
	Since            time.Time `json:"since"`            // of the release
	Until            time.Time `json:"until"`            // when it becomes available
	RemainingSeconds float64   `json:"remainingSeconds"` // until then, at Document.Time; not below 0
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

// Pool is one address pool as this node has it. Numbers are of addresses, where
// nothing else is said, and a dual-stack pair is one.
type Pool struct {
	Name      string `json:"name"`
	Blocks    int    `json:"blocks"`   // of it that the node has
	Draining  int    `json:"draining"` // of those, blocks on their way back
	Used      int    `json:"used"`
	Cooling   int    `json:"cooling"`
	Free      int    `json:"free"`             // can be handed out now
	Waiting   int    `json:"waiting"`          // ADDs that wait for an address of it
	Requests  int    `json:"requests"`         // for blocks, without an answer yet
	Failed    string `json:"failed,omitempty"` // why requests fail, a word such as PoolExhausted
	Exhausted bool   `json:"exhausted"`        // no block of the pool is free
}

// Block is one address block of the node. A dual-stack pair counts once: Used,
// Cooling and Free add up to Capacity.
type Block struct {
	Name     string         `json:"name"`
	Pool     string         `json:"pool"`
	Prefixes []netip.Prefix `json:"prefixes"` // IPv4 first
	Ready    bool           `json:"ready"`    // its free addresses can be handed out
	Reason   string         `json:"reason,omitempty"`
	Capacity int            `json:"capacity"` // addresses
	Used     int            `json:"used"`     // held by pods
	Cooling  int            `json:"cooling"`
	Withheld int            `json:"withheld,omitempty"` // of a Node or Services: no pod gets them
	Free     int            `json:"free"`               // none of these, whether or not the block is ready
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

// PodPath answers about one pod of the node, given by its namespace and name as
// the query's "namespace" and "name". To ask changes nothing.
const PodPath = Path + "/pod"

// Pod is what a node knows of one of its pods. Lists are never null; both are
// empty for a pod that the runtime has not asked an address for, or not here.
type Pod struct {
	Namespace   string       `json:"namespace"`
	Name        string       `json:"name"`
	Node        string       `json:"node"`        // in Kubernetes
	Time        time.Time    `json:"time"`        // of the answer
	Attachments []Attachment `json:"attachments"` // oldest first; one a sandbox and interface
	Waiting     []Waiting    `json:"waiting"`     // ADDs that wait for an address, NICs or egress, oldest first
}

// Attachment is an address of a pod with the path to it, which was compared with
// the kernel as CHECK does. Where the pod's own interface is a NIC, the address is that
// NIC's.
type Attachment struct {
	Allocated
	NICs     []NIC   `json:"nics"`             // all that are ports of a VPC
	Egress   *Egress `json:"egress,omitempty"` // none for a pod that has nothing of it
	State    string  `json:"state"`            // pending (half made), ready, releasing (half removed)
	HostLink string  `json:"hostLink"`         // on the node; empty where the pod's own interface is a NIC without one
	MTU      int     `json:"mtu"`              // bytes
	Checked  bool    `json:"checked"`          // the kernel was looked at
	Fault    string  `json:"fault,omitempty"`
	// Rules are the node's policy rules that the pod's packets meet, by priority,
	// as the kernel has them.
	Rules []string `json:"rules"`
}

// Waiting is an ADD that waits for an address, NICs or egress.
type Waiting struct {
	ContainerID string    `json:"containerID"`
	Interface   string    `json:"interface"`
	Since       time.Time `json:"since"`
	// Reason is a short word for why, of those that Events of Pods have in brackets, and
	// Message says it to a person. Both are empty where it has them by now.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// NIC is an interface of a pod that is a port of a VPC. Addresses of two NICs may be the
// same: they are of the port's network.
type NIC struct {
	Namespace    string         `json:"namespace"`
	Pod          string         `json:"pod"`
	ContainerID  string         `json:"containerID"`
	Network      string         `json:"network"`   // of the runtime's configuration
	Interface    string         `json:"interface"` // in the sandbox
	PodNIC       string         `json:"podNIC"`    // the object's name, in the pod's namespace
	Port         string         `json:"port"`      // its ID at the provider
	MAC          string         `json:"mac"`
	Addresses    []netip.Prefix `json:"addresses"`
	MTU          int            `json:"mtu"` // bytes
	DefaultRoute bool           `json:"defaultRoute,omitempty"`
	Plug         string         `json:"plug"`               // how it is connected: OVS, OVSHybrid, Netns or VLAN
	HostLink     string         `json:"hostLink,omitempty"` // on the node, where there is one
	State        string         `json:"state,omitempty"`    // plugging or changing, while a running pod gets it or its addresses change
	Binding      string         `json:"binding,omitempty"`  // of a virtual machine's: bridge or tap
}

// Egress is how a pod reaches networks outside besides its own interface, as recorded on
// its node.
type Egress struct {
	Egresses []UsedEgress `json:"egresses"`          // that the pod is a client of; never null
	Forward  bool         `json:"forward,omitempty"` // the pod is a gateway, whose own namespace forwards packets
	State    string       `json:"state,omitempty"`   // changing, while it is being set up anew
}

// UsedEgress is an Egress as a client's node has it.
type UsedEgress struct {
	Namespace       string          `json:"namespace"`
	Name            string          `json:"name"`
	Destinations    []netip.Prefix  `json:"destinations"`
	Gateways        []EgressGateway `json:"gateways"`          // never null
	Service         []netip.Addr    `json:"service,omitempty"` // where tunnels lead there and not to gateways
	SourcePortAuto  bool            `json:"sourcePortAuto,omitempty"`
	OriginatingOnly bool            `json:"originatingOnly,omitempty"`
}

// EgressGateway is a gateway of an Egress, as a client's node has it.
type EgressGateway struct {
	ID        int          `json:"id,omitempty"` // in the pod's kernel: its part of the mark, and its table
	UID       string       `json:"uid"`          // of the gateway's pod
	Addresses []netip.Addr `json:"addresses"`
	Ending    bool         `json:"ending,omitempty"` // it serves the connections that it has
	Chosen    bool         `json:"chosen,omitempty"` // new connections may take it
}

// SettingsPath is where programs serve their settings from their first moment: berthd
// on its introspection address, berth-operator where it listens at a loopback address.
const SettingsPath = "/settings"

// Settings are those that a program runs with.
type Settings struct {
	Version  string    `json:"version"`
	Settings []Setting `json:"settings"` // all there are, in the order of the reference
	// Unknown are environment variables that begin with BERTH_ and mean nothing.
	Unknown []string `json:"unknown,omitempty"`
}

// Setting is one, as it was given. Passwords in it are taken out.
type Setting struct {
	Name  string `json:"name"`  // of its flag, without dashes
	Value string `json:"value"` // empty: not set
	From  string `json:"from"`  // the flag or variable, or that it is the default
}

// Get returns a setting's value.
func (s Settings) Get(name string) (string, bool) {
	for _, one := range s.Settings {
		if one.Name == name {
			return one.Value, true
		}
	}
	return "", false
}
