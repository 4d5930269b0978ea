package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EgressClient says by which Egresses a pod is to reach the outside. The operator makes one
// for each pod that names an Egress or is selected by one, and for pods in a namespace of
// which an Egress selects some, so that the node need not guess; it goes with the pod. Its
// name is the pod's.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=berth
// +kubebuilder:selectablefield:JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Egresses",type=string,JSONPath=`.spec.egresses[*].name`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.status.node.addresses`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type EgressClient struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   EgressClientSpec   `json:"spec"`
	Status EgressClientStatus `json:"status,omitzero"`
}

// EgressClientList is a list of EgressClients.
//
// +kubebuilder:object:root=true
type EgressClientList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EgressClient `json:"items"`
}

// EgressClientSpec is what the node is to set up. Written by the operator.
type EgressClientSpec struct {
	// PodUID is the UID of the pod. Not of another of the same name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="podUID cannot be changed; another pod has another EgressClient"
	PodUID string `json:"podUID"`

	// NodeName is the pod's node, whose daemon sets its tunnels up.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="nodeName cannot be changed"
	NodeName string `json:"nodeName"`

	// Egresses are those that the pod is a client of; empty: none.
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Egresses []EgressReference `json:"egresses,omitempty"`

	// Selected are those of egresses, as namespace/name, that select the pod and that it does
	// not name. The node sets them up only while the pod's namespace lets them.
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=317
	// +optional
	Selected []string `json:"selected,omitempty"`

	// Refused are those that it would be a client of and may not, and why.
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Refused []EgressRefusal `json:"refused,omitempty"`
}

// EgressReference names an Egress, and not another of the same name.
type EgressReference struct {
	// Namespace is the Egress's.
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`

	// Name is the Egress's.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// UID is the Egress's.
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`
}

// EgressRefusal says why a pod is no client of an Egress.
type EgressRefusal struct {
	// Namespace is the Egress's.
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`

	// Name is the Egress's.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// Reason is a word in CamelCase: NotFound, NotAllowed, Overlaps.
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`

	// Message says it for a person, and what to do.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`

	// Named tells that the pod's annotation names the Egress: such a pod does not start
	// without it.
	// +optional
	Named bool `json:"named,omitempty"`
}

// The reasons of refusals.
const (
	EgressNotFound   = "NotFound"   // there is none of that name
	EgressNotAllowed = "NotAllowed" // it does not allow the pod's namespace
	EgressOverlaps   = "Overlaps"   // its destinations overlap those of another that the pod uses
	EgressInvalid    = "Invalid"    // the annotation cannot name any
)

// EgressClientStatus is how far it has come. Written by the operator, but for node, which the
// daemon of spec.nodeName writes.
type EgressClientStatus struct {
	// Conditions are Ready.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Node is what the daemon of spec.nodeName says. Written by the daemon.
	// +optional
	Node *EgressClientNode `json:"node,omitempty"`
}

// EgressClientNode is what a node's daemon says of a client: the addresses from which it
// sends, and what is set up.
type EgressClientNode struct {
	// State is SetUp, Failed or Gone.
	// +kubebuilder:validation:Enum=SetUp;Failed;Gone
	State EgressClientState `json:"state"`

	// ContainerID is the sandbox.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[!-~]*$`
	// +optional
	ContainerID string `json:"containerID,omitempty"`

	// Addresses are the pod's, one of a family.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a) && ip(a).isGlobalUnicast())",message="addresses must be addresses of one host each"
	// +optional
	Addresses []string `json:"addresses,omitempty"`

	// Egresses are those that are set up.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Egresses []EgressReference `json:"egresses,omitempty"`

	// Reason says in a word why it failed.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z]*$`
	// +optional
	Reason string `json:"reason,omitempty"`

	// Message says that for a person, and what to do.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[ -~]*$`
	// +optional
	Message string `json:"message,omitempty"`
}

// EgressClientState is what a node's daemon has done for a client.
type EgressClientState string

// What there is to say.
const (
	EgressClientSetUp  EgressClientState = "SetUp"
	EgressClientFailed EgressClientState = "Failed" // it is tried again
	EgressClientGone   EgressClientState = "Gone"   // the pod's sandbox is no more: its addresses may be another's
)

// EgressClientSlice tells gateways which addresses they serve. The operator makes as many as
// an Egress's clients need, in the Egress's namespace, with the label LabelEgress.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=berth
// +kubebuilder:printcolumn:name="Egress",type=string,JSONPath=`.metadata.labels.egress\.berth\.dev/name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type EgressClientSlice struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Clients are some of the Egress's, in no order. Written by the operator.
	// +listType=map
	// +listMapKey=uid
	// +kubebuilder:validation:MaxItems=100
	// +optional
	Clients []ServedClient `json:"clients,omitempty"`
}

// EgressClientSliceList is a list of EgressClientSlices.
//
// +kubebuilder:object:root=true
type EgressClientSliceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EgressClientSlice `json:"items"`
}

// ServedClient is a pod that gateways serve.
type ServedClient struct {
	// UID is the pod's.
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`

	// Pod is namespace and name of the pod, for people.
	// +kubebuilder:validation:MaxLength=317
	// +optional
	Pod string `json:"pod,omitempty"`

	// Addresses are those that its packets come from, one of a family.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	Addresses []string `json:"addresses"`
}

// SliceClients is how many clients an EgressClientSlice has at most.
const SliceClients = 100
