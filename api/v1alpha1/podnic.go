package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PodNIC is a NIC of a pod, backed by a port of a VPC. The operator creates one for each NIC that a
// pod's annotations ask for, and deletes it with the pod. A PodNIC that a user creates and a pod's
// annotation names outlives the pod, and keeps its IP addresses and its MAC address for the next
// pod.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=pnic,categories=berth
// +kubebuilder:selectablefield:JSONPath=`.status.nodeName`
// +kubebuilder:printcolumn:name="VPC",type=string,JSONPath=`.spec.vpc`
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.status.pod.name`
// +kubebuilder:printcolumn:name="Interface",type=string,JSONPath=`.status.interface`
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.status.addresses[*].cidr`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.nodeName`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Port",type=string,JSONPath=`.status.portID`,priority=1
// +kubebuilder:printcolumn:name="MAC",type=string,JSONPath=`.status.mac`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PodNIC struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   PodNICSpec   `json:"spec"`
	Status PodNICStatus `json:"status,omitzero"`
}

// PodNICList is a list of PodNICs.
//
// +kubebuilder:object:root=true
type PodNICList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PodNIC `json:"items"`
}

// PodNICSpec is the desired NIC. Written by the operator or a person: by a person for a NIC that
// outlives pods. Only the security groups can be changed.
//
// +kubebuilder:validation:XValidation:rule="!has(self.portID) || !has(self.addresses) && !has(self.securityGroups)",fieldPath=".portID",message="portID cannot be combined with addresses and securityGroups, which an existing port already has"
// +kubebuilder:validation:XValidation:rule="!has(self.pod) || has(self.interface)",fieldPath=".interface",message="interface must be set if pod is set"
// +kubebuilder:validation:XValidation:rule="has(self.pod) == has(oldSelf.pod) && (!has(self.pod) || self.pod == oldSelf.pod)",fieldPath=".pod",message="pod cannot be changed; make another PodNIC for another pod"
// +kubebuilder:validation:XValidation:rule="has(self.interface) == has(oldSelf.interface) && (!has(self.interface) || self.interface == oldSelf.interface)",fieldPath=".interface",message="interface cannot be changed; make another PodNIC"
// +kubebuilder:validation:XValidation:rule="has(self.portID) == has(oldSelf.portID) && (!has(self.portID) || self.portID == oldSelf.portID)",fieldPath=".portID",message="portID cannot be changed; make another PodNIC"
// +kubebuilder:validation:XValidation:rule="!has(self.tap) || has(self.binding) && self.binding == 'tap'",fieldPath=".tap",message="tap requires binding tap"
// +kubebuilder:validation:XValidation:rule="has(self.binding) == has(oldSelf.binding) && (!has(self.binding) || self.binding == oldSelf.binding)",fieldPath=".binding",message="binding cannot be changed; make another PodNIC"
// +kubebuilder:validation:XValidation:rule="has(self.tap) == has(oldSelf.tap) && (!has(self.tap) || self.tap == oldSelf.tap)",fieldPath=".tap",message="tap cannot be changed; make another PodNIC"
// +kubebuilder:validation:XValidation:rule="has(self.addresses) == has(oldSelf.addresses) && (!has(self.addresses) || self.addresses == oldSelf.addresses)",fieldPath=".addresses",message="addresses cannot be changed; make another PodNIC"
type PodNICSpec struct {
	// VPC is the VPC of the port.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="vpc cannot be changed; make another PodNIC"
	VPC string `json:"vpc"`

	// Pod is the only pod that may use the NIC. If unset, any pod of the namespace whose annotation
	// names the NIC may use it, one at a time.
	// +optional
	Pod *PodReference `json:"pod,omitempty"`

	// Interface is the name of the interface in the pod. If unset, the pod's annotation sets it.
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9][A-Za-z0-9_.-]*$') && !(self in ['lo', 'all', 'default'])",message="interface must be a name such as eth0: 1 to 15 letters, digits, dots, hyphens and underscores, and not lo, all or default"
	// +optional
	Interface string `json:"interface,omitempty"`

	// Addresses are the subnets of the NIC and its addresses in them: one, or one per family. If
	// unset, the default subnets of the VPC apply.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:XValidation:rule="self.all(a, !has(a.ip) || !isIP(a.ip) || self.exists_one(b, has(b.ip) && isIP(b.ip) && ip(b.ip).family() == ip(a.ip).family()))",message="addresses must have at most one ip per family"
	// +optional
	Addresses []NICAddress `json:"addresses,omitempty"`

	// SecurityGroups are the IDs of the security groups of the NIC. If unset, the VPC's defaults
	// apply.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +optional
	SecurityGroups []string `json:"securityGroups,omitempty"`

	// PortID is the ID of an existing port whose tag names the namespace. Berth binds and unbinds
	// the port, but never deletes it. If unset, Berth creates a port.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9A-Za-z][0-9A-Za-z-]{10,}$')",message="portID must be the ID of a port, such as a2815656-76f7-46d4-9d11-057063db1a14"
	// +optional
	PortID string `json:"portID,omitempty"`

	// Binding is how a virtual machine in the pod is connected, in KubeVirt's terms. With bridge,
	// the machine's runtime attaches the interface to its own bridge. With tap, a tap device with
	// the port's MAC address replaces the interface, and the runtime opens it. If unset, the NIC is
	// a plain interface for the pod's containers.
	// +optional
	Binding NICBinding `json:"binding,omitempty"`

	// Tap configures the tap device of binding tap.
	// +optional
	Tap *TapDevice `json:"tap,omitempty"`
}

// NICBinding is how a virtual machine is connected to a NIC of its pod.
//
// +kubebuilder:validation:Enum=bridge;tap
type NICBinding string

// The bindings.
const (
	BindingBridge NICBinding = "bridge"
	BindingTap    NICBinding = "tap"
)

// TapDevice sets who may open a tap device, and how.
type TapDevice struct {
	// Owner is the numeric ID of the user that may open the device. If unset, 107, the user of
	// KubeVirt's virtual machines.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967294
	// +optional
	Owner *int64 `json:"owner,omitempty"`

	// Group is the numeric ID of the group whose members may open the device. If unset, the same
	// number as owner.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967294
	// +optional
	Group *int64 `json:"group,omitempty"`

	// MultiQueue creates the device with several queues (IFF_MULTI_QUEUE). The runtime must then
	// open it with this flag, and must not otherwise.
	// +optional
	MultiQueue bool `json:"multiQueue,omitempty"`
}

// DefaultTapOwner is the default user and group of a tap device: those of KubeVirt's virtual
// machines (util.NonRootUID in KubeVirt).
const DefaultTapOwner = 107

// PodReference identifies a pod. The UID tells it from a later pod of the same name.
type PodReference struct {
	// Name is the name of the pod, in the namespace of the PodNIC.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// UID is the UID of the pod.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`
}

// NICAddress is a requested address.
//
// +kubebuilder:validation:XValidation:rule="has(self.subnet) || has(self.ip)",message="an address must have a subnet, an ip or both"
type NICAddress struct {
	// Subnet is the ID of a subnet of the VPC, or its name if the name is unique. If unset, the
	// subnet that contains ip.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +optional
	Subnet string `json:"subnet,omitempty"`

	// IP is an address of the subnet. If unset, the provider chooses one.
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip(self).isGlobalUnicast()",message="ip must be a single IP address, such as 192.168.0.12"
	// +optional
	IP string `json:"ip,omitempty"`
}

// PodNICStatus is the observed state of the NIC. Written by the operator, except for node, which
// the daemon of the node writes.
type PodNICStatus struct {
	// Phase is the current phase of the NIC.
	// +optional
	Phase PodNICPhase `json:"phase,omitempty"`

	// Pod is the pod that uses the NIC.
	// +optional
	Pod *PodReference `json:"pod,omitempty"`

	// Interface is the name of the interface in that pod.
	// +kubebuilder:validation:MaxLength=15
	// +optional
	Interface string `json:"interface,omitempty"`

	// DefaultRoute is true if the pod's default route uses the NIC.
	// +optional
	DefaultRoute bool `json:"defaultRoute,omitempty"`

	// NodeName is the node of that pod, whose daemon plugs the NIC.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	NodeName string `json:"nodeName,omitempty"`

	// PortID is the ID of the port.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	PortID string `json:"portID,omitempty"`

	// Made is true if Berth created the port and will delete it.
	// +optional
	Made bool `json:"made,omitempty"`

	// Host is the host that the port is bound to, by the provider's name for it.
	// +kubebuilder:validation:MaxLength=255
	// +optional
	Host string `json:"host,omitempty"`

	// MAC is the MAC address of the port.
	// +kubebuilder:validation:MaxLength=17
	// +optional
	MAC string `json:"mac,omitempty"`

	// Addresses are the addresses of the port.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Addresses []PortAddress `json:"addresses,omitempty"`

	// Routes are the routes of the port's subnets, except the default route.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Routes []PortRoute `json:"routes,omitempty"`

	// MTU is the MTU of the network, in bytes.
	// +optional
	MTU int32 `json:"mtu,omitempty"`

	// Plug tells the node how to connect the port.
	// +optional
	Plug *PortPlug `json:"plug,omitempty"`

	// Conditions are PortReady, Bound, Plugged and Allowed. Plugged is set after the node's first
	// report. Allowed is set, to False, only while the VPC would no longer allow the NIC.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Node is the report of the daemon of status.nodeName. Written by the daemon.
	// +optional
	Node *PodNICNode `json:"node,omitempty"`
}

// PodNICPhase is a phase in the life of a NIC.
//
// +kubebuilder:validation:Enum=Pending;Created;Bound;Active;Failed;Releasing
type PodNICPhase string

// The phases, in their usual order. Failed can follow any of them.
const (
	PhasePending   PodNICPhase = "Pending"   // no port exists yet
	PhaseCreated   PodNICPhase = "Created"   // the port exists, bound to no host
	PhaseBound     PodNICPhase = "Bound"     // the port is bound to the pod's node, which may plug it
	PhaseActive    PodNICPhase = "Active"    // the provider reports that the port carries packets
	PhaseFailed    PodNICPhase = "Failed"    // a person must change something; the conditions say what
	PhaseReleasing PodNICPhase = "Releasing" // the pod no longer uses the NIC: the node unplugs it, then the port is released
)

// PortAddress is an address of a port.
type PortAddress struct {
	// CIDR is the address with the prefix length of its subnet.
	// +kubebuilder:validation:MaxLength=49
	CIDR string `json:"cidr"`

	// Subnet is the ID of the subnet.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Subnet string `json:"subnet,omitempty"`

	// Gateway is the address of the subnet's router. Empty if it has none.
	// +kubebuilder:validation:MaxLength=45
	// +optional
	Gateway string `json:"gateway,omitempty"`
}

// PortRoute is a route of a subnet.
type PortRoute struct {
	// Destination is the destination in CIDR notation.
	// +kubebuilder:validation:MaxLength=49
	Destination string `json:"destination"`

	// Gateway is the address of the next hop.
	// +kubebuilder:validation:MaxLength=45
	Gateway string `json:"gateway"`
}

// PortPlug tells a node how to connect a port.
type PortPlug struct {
	// Type is OVS (directly on the integration bridge), OVSHybrid (through a Linux bridge that
	// filters), Netns (from a network namespace of the provider's agent), or VLAN (on a link of the
	// node).
	// +kubebuilder:validation:Enum=OVS;OVSHybrid;Netns;VLAN
	Type PlugType `json:"type"`

	// Bridge is the name of the integration bridge.
	// +kubebuilder:validation:MaxLength=15
	// +optional
	Bridge string `json:"bridge,omitempty"`

	// Netns is the name of the network namespace in which the agent puts the port's link.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Netns string `json:"netns,omitempty"`

	// OVN is true if the node's OVN reports when the port carries packets.
	// +optional
	OVN bool `json:"ovn,omitempty"`

	// TrunkMAC is the MAC address of the node's link that carries the VLAN.
	// +kubebuilder:validation:MaxLength=17
	// +optional
	TrunkMAC string `json:"trunkMAC,omitempty"`

	// VLAN is the VLAN ID of the port on that link.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4094
	// +optional
	VLAN int32 `json:"vlan,omitempty"`
}

// PlugType is a way to connect a port.
type PlugType string

// The plug types.
const (
	PlugOVS       PlugType = "OVS"
	PlugOVSHybrid PlugType = "OVSHybrid"
	PlugNetns     PlugType = "Netns"
	PlugVLAN      PlugType = "VLAN"
)

// PodNICNode is a daemon's report on a NIC of one of its pods. Written by the daemon of
// status.nodeName.
type PodNICNode struct {
	// State is Plugged, Unplugged or Failed.
	// +kubebuilder:validation:Enum=Plugged;Unplugged;Failed
	State NodeNICState `json:"state"`

	// PortID is the port that the report is about. A report about another port is stale.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[!-~]*$`
	PortID string `json:"portID"`

	// ContainerID is the ID of the sandbox that has the NIC.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[!-~]*$`
	// +optional
	ContainerID string `json:"containerID,omitempty"`

	// HostInterface is the name of the link on the node.
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[!-~]*$`
	// +optional
	HostInterface string `json:"hostInterface,omitempty"`

	// Reason is a CamelCase word that says why plugging failed, or how the plugged NIC differs from
	// the current port. It becomes the reason of the condition Plugged.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z]*$`
	// +optional
	Reason string `json:"reason,omitempty"`

	// Message is a human-readable explanation of the reason, with the remedy.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[ -~]*$`
	// +optional
	Message string `json:"message,omitempty"`

	// Since is when the NIC entered this state, by the node's clock.
	// +optional
	Since metav1.Time `json:"since,omitzero"`
}

// NodeNICState is the state of a NIC on its node.
type NodeNICState string

// The states of a NIC on its node.
const (
	NodePlugged   NodeNICState = "Plugged"
	NodeUnplugged NodeNICState = "Unplugged" // nothing of the NIC is left on the node
	NodeFailed    NodeNICState = "Failed"    // plugging failed and is retried
)

// The types of a PodNIC's conditions.
const (
	ConditionPortReady = "PortReady" // the port exists as desired
	ConditionBound     = "Bound"     // the port is bound to the pod's node
	ConditionPlugged   = "Plugged"   // the node has plugged the NIC, and it matches the port
	// ConditionAllowed is set, to False, only while a NIC has a port that its VPC would no longer
	// allow.
	ConditionAllowed = "Allowed"
)

const (
	// FinalizerPort keeps a PodNIC until its port is released.
	FinalizerPort = "berth.dev/port"
	// LabelPodUID is the label of a PodNIC created by the operator that holds the UID of its pod.
	LabelPodUID = "berth.dev/pod-uid"
)
