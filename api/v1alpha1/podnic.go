package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PodNIC is one NIC of a pod, backed by a port of a VPC. The operator makes one for
// each NIC that a pod's annotations ask for; it goes with the pod. One that a user makes
// and a pod's annotation names outlives the pod, and keeps its addresses and its MAC
// address for the next.
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

// PodNICSpec is what is asked for. Written by the operator or a person: by a person for
// a NIC that outlives pods. But for the security groups it cannot be changed.
//
// +kubebuilder:validation:XValidation:rule="!has(self.portID) || !has(self.addresses) && !has(self.securityGroups)",fieldPath=".portID",message="portID excludes addresses and securityGroups, which the port has already"
// +kubebuilder:validation:XValidation:rule="!has(self.pod) || has(self.interface)",fieldPath=".interface",message="interface must be set where pod is"
// +kubebuilder:validation:XValidation:rule="has(self.pod) == has(oldSelf.pod) && (!has(self.pod) || self.pod == oldSelf.pod)",fieldPath=".pod",message="pod cannot be changed; the NIC of another pod is another PodNIC"
// +kubebuilder:validation:XValidation:rule="has(self.interface) == has(oldSelf.interface) && (!has(self.interface) || self.interface == oldSelf.interface)",fieldPath=".interface",message="interface cannot be changed; make another PodNIC"
// +kubebuilder:validation:XValidation:rule="has(self.portID) == has(oldSelf.portID) && (!has(self.portID) || self.portID == oldSelf.portID)",fieldPath=".portID",message="portID cannot be changed; make another PodNIC"
// +kubebuilder:validation:XValidation:rule="!has(self.tap) || has(self.binding) && self.binding == 'tap'",fieldPath=".tap",message="tap is what a tap device is like, and needs binding tap"
// +kubebuilder:validation:XValidation:rule="has(self.binding) == has(oldSelf.binding) && (!has(self.binding) || self.binding == oldSelf.binding)",fieldPath=".binding",message="binding cannot be changed; make another PodNIC"
// +kubebuilder:validation:XValidation:rule="has(self.tap) == has(oldSelf.tap) && (!has(self.tap) || self.tap == oldSelf.tap)",fieldPath=".tap",message="tap cannot be changed; make another PodNIC"
// +kubebuilder:validation:XValidation:rule="has(self.addresses) == has(oldSelf.addresses) && (!has(self.addresses) || self.addresses == oldSelf.addresses)",fieldPath=".addresses",message="addresses cannot be changed; make another PodNIC"
type PodNICSpec struct {
	// VPC is the VPC whose port it is.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="vpc cannot be changed; make another PodNIC"
	VPC string `json:"vpc"`

	// Pod is the one pod that it is for. Not set: for any pod of the namespace whose
	// annotation names it, one at a time.
	// +optional
	Pod *PodReference `json:"pod,omitempty"`

	// Interface is its name in the pod. Not set: as the pod's annotation says.
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9][A-Za-z0-9_.-]*$') && !(self in ['lo', 'all', 'default'])",message="interface must be a name such as eth0: 1 to 15 letters, digits, dots, hyphens and underscores, and not lo, all or default"
	// +optional
	Interface string `json:"interface,omitempty"`

	// Addresses are its subnets, and its addresses there: one, or one of each family.
	// Not set: in the default subnets of the VPC.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:XValidation:rule="self.all(a, !has(a.ip) || !isIP(a.ip) || self.exists_one(b, has(b.ip) && isIP(b.ip) && ip(b.ip).family() == ip(a.ip).family()))",message="addresses must have one ip of a family at most"
	// +optional
	Addresses []NICAddress `json:"addresses,omitempty"`

	// SecurityGroups are the IDs of its groups. Not set: those of the VPC.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +optional
	SecurityGroups []string `json:"securityGroups,omitempty"`

	// PortID is a port that is there already, and whose tag names the namespace. It is
	// bound and unbound, and never deleted. Not set: a port is made.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9A-Za-z][0-9A-Za-z-]{10,}$')",message="portID must be the ID of a port, such as a2815656-76f7-46d4-9d11-057063db1a14"
	// +optional
	PortID string `json:"portID,omitempty"`

	// Binding is how a virtual machine in the pod gets it, in KubeVirt's words: bridge,
	// an interface that the machine's runtime takes to a bridge of its own; or tap, a
	// tap device in the place of the interface, with the port's MAC address, that the
	// runtime opens. Not set: it is an interface of the pod's containers.
	// +optional
	Binding NICBinding `json:"binding,omitempty"`

	// Tap is what the tap device is like, with binding tap.
	// +optional
	Tap *TapDevice `json:"tap,omitempty"`
}

// NICBinding is how a virtual machine gets a NIC of its pod.
//
// +kubebuilder:validation:Enum=bridge;tap
type NICBinding string

// The bindings that there are.
const (
	BindingBridge NICBinding = "bridge"
	BindingTap    NICBinding = "tap"
)

// TapDevice says who may open a tap device, and how.
type TapDevice struct {
	// Owner is the number of the user that may open it. Not set: 107, as KubeVirt's
	// virtual machines run.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967294
	// +optional
	Owner *int64 `json:"owner,omitempty"`

	// Group is the number of the group that it must be in. Not set: that of owner.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967294
	// +optional
	Group *int64 `json:"group,omitempty"`

	// MultiQueue has it opened with several queues (IFF_MULTI_QUEUE): it must be
	// opened so then, and cannot be otherwise.
	// +optional
	MultiQueue bool `json:"multiQueue,omitempty"`
}

// DefaultTapOwner is the user and group of a tap device without any: the one that
// KubeVirt's virtual machines run as (its util.NonRootUID).
const DefaultTapOwner = 107

// PodReference names one pod, and not another of the same name.
type PodReference struct {
	// Name is its name, in the namespace of the PodNIC.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// UID is the pod's.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`
}

// NICAddress is an address that is asked for.
//
// +kubebuilder:validation:XValidation:rule="has(self.subnet) || has(self.ip)",message="an address must have a subnet, an ip or both"
type NICAddress struct {
	// Subnet is the ID of a subnet of the VPC, or its name if it is the only one of
	// that name. Not set: the one that has the ip.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +optional
	Subnet string `json:"subnet,omitempty"`

	// IP is an address of the subnet. Not set: as the provider chooses.
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip(self).isGlobalUnicast()",message="ip must be the address of one host, such as 192.168.0.12"
	// +optional
	IP string `json:"ip,omitempty"`
}

// PodNICStatus is what has become of it. Written by the operator, but for node, which
// the daemon of the node writes.
type PodNICStatus struct {
	// Phase is how far it has come.
	// +optional
	Phase PodNICPhase `json:"phase,omitempty"`

	// Pod is the pod that has it.
	// +optional
	Pod *PodReference `json:"pod,omitempty"`

	// Interface is its name in that pod.
	// +kubebuilder:validation:MaxLength=15
	// +optional
	Interface string `json:"interface,omitempty"`

	// DefaultRoute tells that the pod's packets to elsewhere leave by it.
	// +optional
	DefaultRoute bool `json:"defaultRoute,omitempty"`

	// NodeName is the node of that pod, whose daemon plugs it.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	NodeName string `json:"nodeName,omitempty"`

	// PortID is the port.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	PortID string `json:"portID,omitempty"`

	// Made tells that Berth made the port, and deletes it.
	// +optional
	Made bool `json:"made,omitempty"`

	// Host is the host that the port is bound to, in the provider's words.
	// +kubebuilder:validation:MaxLength=255
	// +optional
	Host string `json:"host,omitempty"`

	// MAC is the port's MAC address.
	// +kubebuilder:validation:MaxLength=17
	// +optional
	MAC string `json:"mac,omitempty"`

	// Addresses are the port's.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Addresses []PortAddress `json:"addresses,omitempty"`

	// Routes are those of the port's subnets besides that to the gateway.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Routes []PortRoute `json:"routes,omitempty"`

	// MTU is the network's, in bytes.
	// +optional
	MTU int32 `json:"mtu,omitempty"`

	// Plug says how the node connects the port.
	// +optional
	Plug *PortPlug `json:"plug,omitempty"`

	// Conditions are PortReady, Bound, once the node has said something, Plugged, and
	// Allowed, which is False, while the VPC would not allow the NIC any more.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Node is what the daemon of status.nodeName says of it. Written by the daemon.
	// +optional
	Node *PodNICNode `json:"node,omitempty"`
}

// PodNICPhase is how far a NIC has come.
//
// +kubebuilder:validation:Enum=Pending;Created;Bound;Active;Failed;Releasing
type PodNICPhase string

// The phases, in the order in which they come but for Failed.
const (
	PhasePending   PodNICPhase = "Pending"   // there is no port yet
	PhaseCreated   PodNICPhase = "Created"   // there is, bound to no host
	PhaseBound     PodNICPhase = "Bound"     // it is bound to the pod's node, which may plug it
	PhaseActive    PodNICPhase = "Active"    // and carries packets, as the provider says
	PhaseFailed    PodNICPhase = "Failed"    // somebody has to change something; conditions say what
	PhaseReleasing PodNICPhase = "Releasing" // its pod gives it up: the node unplugs it, then the port is given back
)

// PortAddress is an address of a port.
type PortAddress struct {
	// CIDR is the address with the length of its subnet's prefix.
	// +kubebuilder:validation:MaxLength=49
	CIDR string `json:"cidr"`

	// Subnet is the ID of the subnet.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Subnet string `json:"subnet,omitempty"`

	// Gateway is the address of the subnet's router; empty without one.
	// +kubebuilder:validation:MaxLength=45
	// +optional
	Gateway string `json:"gateway,omitempty"`
}

// PortRoute is a route of a subnet.
type PortRoute struct {
	// Destination is a CIDR.
	// +kubebuilder:validation:MaxLength=49
	Destination string `json:"destination"`

	// Gateway is the next router.
	// +kubebuilder:validation:MaxLength=45
	Gateway string `json:"gateway"`
}

// PortPlug says how a node connects a port.
type PortPlug struct {
	// Type is OVS, straight on the integration bridge; OVSHybrid, by a bridge of Linux
	// in between that filters; Netns, from a network namespace of the provider's
	// agent; or VLAN, on a link of the node's.
	// +kubebuilder:validation:Enum=OVS;OVSHybrid;Netns;VLAN
	Type PlugType `json:"type"`

	// Bridge is the integration bridge.
	// +kubebuilder:validation:MaxLength=15
	// +optional
	Bridge string `json:"bridge,omitempty"`

	// Netns is the name of the namespace in which the agent puts the port's link.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Netns string `json:"netns,omitempty"`

	// OVN tells that the node's OVN says when the port carries packets.
	// +optional
	OVN bool `json:"ovn,omitempty"`

	// TrunkMAC is the MAC address of the node's link that carries the VLAN.
	// +kubebuilder:validation:MaxLength=17
	// +optional
	TrunkMAC string `json:"trunkMAC,omitempty"`

	// VLAN is the ID of the VLAN that is the port's there.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4094
	// +optional
	VLAN int32 `json:"vlan,omitempty"`
}

// PlugType is a way to connect a port.
type PlugType string

// The ways that there are.
const (
	PlugOVS       PlugType = "OVS"
	PlugOVSHybrid PlugType = "OVSHybrid"
	PlugNetns     PlugType = "Netns"
	PlugVLAN      PlugType = "VLAN"
)

// PodNICNode is what a node's daemon says of a NIC of one of its pods. Written by the
// daemon of status.nodeName.
type PodNICNode struct {
	// State is Plugged, Unplugged or Failed.
	// +kubebuilder:validation:Enum=Plugged;Unplugged;Failed
	State NodeNICState `json:"state"`

	// PortID is the port that it is about: it says nothing of another that took its
	// place.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[!-~]*$`
	PortID string `json:"portID"`

	// ContainerID is the sandbox that has it.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[!-~]*$`
	// +optional
	ContainerID string `json:"containerID,omitempty"`

	// HostInterface is the link on the node.
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[!-~]*$`
	// +optional
	HostInterface string `json:"hostInterface,omitempty"`

	// Reason says in a word why it failed, or why what is plugged is not as the port is
	// by now. It is that of the condition Plugged.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z]*$`
	// +optional
	Reason string `json:"reason,omitempty"`

	// Message says that for a person, and what to do.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[ -~]*$`
	// +optional
	Message string `json:"message,omitempty"`

	// Since is when it came to this state, by the node's clock.
	// +optional
	Since metav1.Time `json:"since,omitzero"`
}

// NodeNICState is what a node's daemon has done with a NIC.
type NodeNICState string

// What there is to say.
const (
	NodePlugged   NodeNICState = "Plugged"
	NodeUnplugged NodeNICState = "Unplugged" // nothing of it is left on the node
	NodeFailed    NodeNICState = "Failed"    // it is tried again
)

// The types of a PodNIC's conditions.
const (
	ConditionPortReady = "PortReady" // there is a port as it is asked for
	ConditionBound     = "Bound"     // it is bound to the pod's node
	ConditionPlugged   = "Plugged"   // the node has it plugged, as the port is
	// ConditionAllowed is there, False, while a NIC has a port that its VPC would not allow any more.
	ConditionAllowed = "Allowed"
)

const (
	// FinalizerPort keeps a PodNIC until its port is given back.
	FinalizerPort = "berth.dev/port"
	// LabelPodUID is the UID of the pod of a PodNIC that the operator made.
	LabelPodUID = "berth.dev/pod-uid"
)
