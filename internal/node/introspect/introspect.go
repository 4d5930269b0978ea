// Package introspect defines the documents that berthd serves (proposal for the Amazon VPC
// CNI, "Troubleshooting") and that berthctl and other tools read.
//
// Fields may be added. Readers must ignore unknown ones.
package introspect

import (
	"cmp"
	"net/netip"
	"time"
)

// DefaultURL is the URL of the document with default settings.
const DefaultURL = "http://localhost:6666" + Path

// Path is the path of the document on the introspection address.
const Path = "/ip-manager"

// Document describes a node's addresses at one moment. Lists are never null; they are sorted by address, ENIs
// by device index, pools and blocks by name, NICs by pod and interface, conditions by type. A node has
// either ENIs, or pools and blocks, or neither if its pods have only NICs.
type Document struct {
	InstanceID string    `json:"instanceID"`     // with address pools, the node's name
	Node       string    `json:"node"`           // in Kubernetes
	IPAM       string    `json:"ipam,omitempty"` // source of addresses: eni, eni-operator, pool, port or none
	Version    string    `json:"version"`        // of berthd
	Time       time.Time `json:"time"`           // when the document was created

	// Template is the NodeNetworkTemplate that applies to new ENIs, as KIND/NAME; empty: none.
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

	// LastError is the last problem with the cloud or, with address pools, with getting a block. It is empty
	// once the problem is resolved.
	LastError string `json:"lastError,omitempty"`
}

// Totals count addresses by state, except for Waiting. A dual-stack pair counts once.
type Totals struct {
	Allocated int `json:"allocated"` // held by pods
	Available int `json:"available"` // free
	Cooling   int `json:"cooling"`   // released less than the cooling period ago
	NotReady  int `json:"notReady"`  // assigned to the node, but the data path is not programmed yet
	Withdrawn int `json:"withdrawn"` // being released to the cloud or the pool
	Capacity  int `json:"capacity"`  // of the attached ENIs or the node's blocks
	Waiting   int `json:"waiting"`   // ADDs that wait for an address
}

// Allocated is an address that a pod holds. Pod, Namespace and UID are empty outside Kubernetes.
// DeviceIndex is the number of the uplink, if it has one.
type Allocated struct {
	Address netip.Addr `json:"address"`
	IPv6    netip.Addr `json:"ipv6,omitzero"` // second address of a dual-stack pod
	// NodeLocal is an address of the family that the pod lacks, through which it reaches networks of that
	// family by NAT. Only the node can reach it.
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

// Available is a free address; for a dual-stack pair, the IPv4 address. In a block of more than
// 256 addresses, addresses that were never used count in Totals and Block only.
type Available struct {
	Address netip.Addr `json:"address"`
	Origin
	Prefix netip.Prefix `json:"prefix,omitzero"` // its delegated prefix
}

// Origin is the origin of an address: an ENI, or a block and its pool, as far as the source knows
// it. Records of attachments use the same names.
type Origin struct {
	ENI   string `json:"eni,omitempty"` // its ID
	Pool  string `json:"pool,omitempty"`
	Block string `json:"block,omitempty"`
}

// Group returns the ENI or the block, or "". It is not named String, because every struct that embeds an
// Origin would then be printed as its origin.
func (o Origin) Group() string { return cmp.Or(o.ENI, o.Block) }

// Cooling is a released address that is temporarily withheld from new pods.
type Cooling struct {
	Address netip.Addr `json:"address"`
	Origin
	Since            time.Time `json:"since"`            // of the release
	Until            time.Time `json:"until"`            // when it becomes available
	RemainingSeconds float64   `json:"remainingSeconds"` // until then, at Document.Time; not below 0
}

// ENI is one interface of the node. Capacity counts usable addresses, without primary addresses.
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

// Pool is one address pool on this node. Numbers count addresses unless documented otherwise; a
// dual-stack pair counts once.
type Pool struct {
	Name      string `json:"name"`
	Blocks    int    `json:"blocks"`   // of the pool on the node
	Draining  int    `json:"draining"` // blocks that are being released
	Used      int    `json:"used"`
	Cooling   int    `json:"cooling"`
	Free      int    `json:"free"`             // free
	Waiting   int    `json:"waiting"`          // ADDs that wait for an address of it
	Requests  int    `json:"requests"`         // pending requests for blocks
	Failed    string `json:"failed,omitempty"` // why requests fail, such as PoolExhausted
	Exhausted bool   `json:"exhausted"`        // the pool has no free block
}

// Block is one address block of the node. A dual-stack pair counts once. Used, Cooling and Free add up
// to Capacity.
type Block struct {
	Name     string         `json:"name"`
	Pool     string         `json:"pool"`
	Prefixes []netip.Prefix `json:"prefixes"` // IPv4 first
	Ready    bool           `json:"ready"`    // its free addresses can be leased
	Reason   string         `json:"reason,omitempty"`
	Capacity int            `json:"capacity"` // addresses
	Used     int            `json:"used"`     // held by pods
	Cooling  int            `json:"cooling"`
	Withheld int            `json:"withheld,omitempty"` // addresses of Nodes or Services, withheld from pods
	Free     int            `json:"free"`               // whether or not the block is ready
}

// The statuses of a Condition, as in Kubernetes.
const (
	True    = "True"
	False   = "False"
	Unknown = "Unknown"
)

// Condition is one aspect of the node that may require action. True is always healthy.
type Condition struct {
	Type    string    `json:"type"`
	Status  string    `json:"status"`
	Reason  string    `json:"reason"` // a word in CamelCase
	Message string    `json:"message"`
	Since   time.Time `json:"since"` // of the last change of Status
}

// PodPath is the path of the document about one pod, with query parameters "namespace" and "name".
const PodPath = Path + "/pod"

// Pod is a node's view of one of its pods. Lists are never null. Both are empty for a pod without
// ADDs on this node.
type Pod struct {
	Namespace   string       `json:"namespace"`
	Name        string       `json:"name"`
	Node        string       `json:"node"`        // in Kubernetes
	Time        time.Time    `json:"time"`        // of the answer
	Attachments []Attachment `json:"attachments"` // oldest first; one per sandbox and interface
	Waiting     []Waiting    `json:"waiting"`     // ADDs that wait for an address, NICs or egress, oldest first
}

// Attachment is one interface of a pod, compared with the kernel as in CHECK. If the interface is a
// NIC, the address is the NIC's.
type Attachment struct {
	Allocated
	NICs     []NIC   `json:"nics"`             // all interfaces that are ports of a VPC
	Egress   *Egress `json:"egress,omitempty"` // nil without egress
	State    string  `json:"state"`            // pending, ready or releasing
	HostLink string  `json:"hostLink"`         // on the node; empty if the pod's own interface is a NIC without one
	MTU      int     `json:"mtu"`              // bytes
	Checked  bool    `json:"checked"`          // compared with the kernel
	Fault    string  `json:"fault,omitempty"`
	// Rules are the node's policy rules for the pod's packets, by priority, as in the kernel.
	Rules []string `json:"rules"`
}

// Waiting is an ADD that waits for an address, NICs or egress.
type Waiting struct {
	ContainerID string    `json:"containerID"`
	Interface   string    `json:"interface"`
	Since       time.Time `json:"since"`
	// Reason is a cause as in Events on pods, and Message its description. Both are empty if the ADD
	// is no longer waiting.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// NIC is an interface of a pod that is a port of a VPC. NICs of different VPCs may have the same
// addresses.
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
	HostLink     string         `json:"hostLink,omitempty"` // on the node, if there is one
	State        string         `json:"state,omitempty"`    // plugging or changing, while a NIC of a running pod is added or changed
	Binding      string         `json:"binding,omitempty"`  // for a virtual machine: bridge or tap
}

// Egress is the recorded egress of a pod.
type Egress struct {
	Egresses []UsedEgress `json:"egresses"`          // Egresses that the pod is a client of; never null
	Forward  bool         `json:"forward,omitempty"` // the pod is a gateway
	State    string       `json:"state,omitempty"`   // changing, while it is being changed
}

// UsedEgress is an Egress of a pod.
type UsedEgress struct {
	Namespace       string          `json:"namespace"`
	Name            string          `json:"name"`
	Destinations    []netip.Prefix  `json:"destinations"`
	Gateways        []EgressGateway `json:"gateways"`          // never null
	Service         []netip.Addr    `json:"service,omitempty"` // addresses of the Service if tunnels lead to it instead of to gateways
	SourcePortAuto  bool            `json:"sourcePortAuto,omitempty"`
	OriginatingOnly bool            `json:"originatingOnly,omitempty"`
}

// EgressGateway is a gateway of an Egress.
type EgressGateway struct {
	ID        int          `json:"id,omitempty"` // in the pod's packet marks and tables
	UID       string       `json:"uid"`          // of the gateway's pod
	Addresses []netip.Addr `json:"addresses"`
	Ending    bool         `json:"ending,omitempty"` // it serves existing connections only
	Chosen    bool         `json:"chosen,omitempty"` // new connections may use it
}

// SettingsPath is the path of a program's settings, served from its start: by berthd on its
// introspection address, by berth-operator on loopback addresses.
const SettingsPath = "/settings"

// Settings are the settings of a running program.
type Settings struct {
	Version  string    `json:"version"`
	Settings []Setting `json:"settings"` // all settings, in the order of the reference
	// Unknown are environment variables with the prefix BERTH_ that are not settings.
	Unknown []string `json:"unknown,omitempty"`
}

// Setting is one setting as it was given, without passwords.
type Setting struct {
	Name  string `json:"name"`  // of its flag, without dashes
	Value string `json:"value"` // empty: not set
	From  string `json:"from"`  // the flag or variable, or "default of --flag"
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
