package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EgressClient lists the Egresses that a pod uses. The operator creates one for each pod that names
// an Egress or is selected by one. It also creates one for every other pod in a namespace where an
// Egress selects pods, so that the node knows the pod is not a client. It has the name of the pod
// and is deleted with it.
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

// EgressClientSpec is what the node sets up for the pod. Written by the operator.
type EgressClientSpec struct {
	// PodUID is the UID of the pod. It tells the pod from a later one of the same name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="podUID cannot be changed; a new pod gets a new EgressClient"
	PodUID string `json:"podUID"`

	// NodeName is the pod's node, whose daemon sets up the tunnels.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="nodeName cannot be changed"
	NodeName string `json:"nodeName"`

	// Egresses are the Egresses that the pod is a client of. Empty if there are none.
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Egresses []EgressReference `json:"egresses,omitempty"`

	// Selected are the entries of egresses, as namespace/name, that select the pod without being
	// named by it. The node sets them up only while the pod's namespace consents.
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=317
	// +optional
	Selected []string `json:"selected,omitempty"`

	// Refused are the Egresses that the pod names or matches but is not allowed to use, with the
	// reasons.
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Refused []EgressRefusal `json:"refused,omitempty"`
}

// EgressReference identifies an Egress. The UID tells it from a later one of the same name.
type EgressReference struct {
	// Namespace is the namespace of the Egress.
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`

	// Name is the name of the Egress.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// UID is the UID of the Egress.
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`
}

// EgressRefusal is the reason why a pod is not a client of an Egress.
type EgressRefusal struct {
	// Namespace is the namespace of the Egress.
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`

	// Name is the name of the Egress.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// Reason is a CamelCase word: NotFound, NotAllowed, Overlaps or Invalid.
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`

	// Message is a human-readable explanation with the remedy.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`

	// Named is true if the pod's annotation names the Egress. Such a pod does not start without it.
	// +optional
	Named bool `json:"named,omitempty"`
}

// The reasons of refusals.
const (
	EgressNotFound   = "NotFound"   // the Egress does not exist
	EgressNotAllowed = "NotAllowed" // the Egress does not allow the pod's namespace
	EgressOverlaps   = "Overlaps"   // the destinations overlap those of another Egress that the pod uses
	EgressInvalid    = "Invalid"    // the annotation is invalid
)

// EgressClientStatus is the observed state of the client. Written by the operator, except for node,
// which the daemon of spec.nodeName writes.
type EgressClientStatus struct {
	// Conditions has the condition Ready.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Node is the report of the daemon of spec.nodeName. Written by the daemon.
	// +optional
	Node *EgressClientNode `json:"node,omitempty"`
}

// EgressClientNode is a daemon's report on a client: the pod's source addresses, and the Egresses
// that are set up.
type EgressClientNode struct {
	// State is SetUp, Failed or Gone.
	// +kubebuilder:validation:Enum=SetUp;Failed;Gone
	State EgressClientState `json:"state"`

	// ContainerID is the ID of the pod's sandbox.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[!-~]*$`
	// +optional
	ContainerID string `json:"containerID,omitempty"`

	// Addresses are the addresses of the pod, one per family.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a) && ip(a).isGlobalUnicast())",message="addresses must be single IP addresses"
	// +optional
	Addresses []string `json:"addresses,omitempty"`

	// Egresses are the Egresses that are set up.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Egresses []EgressReference `json:"egresses,omitempty"`

	// Reason is a CamelCase word that says why setup failed.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z]*$`
	// +optional
	Reason string `json:"reason,omitempty"`

	// Message is a human-readable explanation of the reason, with the remedy.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[ -~]*$`
	// +optional
	Message string `json:"message,omitempty"`
}

// EgressClientState is how far the daemon has set up a client.
type EgressClientState string

// The states of a client on its node.
const (
	EgressClientSetUp  EgressClientState = "SetUp"
	EgressClientFailed EgressClientState = "Failed" // setup failed and is retried
	EgressClientGone   EgressClientState = "Gone"   // the pod's sandbox is gone; its addresses may belong to another pod
)

// EgressClientSlice lists addresses that gateways serve. The operator creates as many slices as an
// Egress's clients need, in the namespace of the Egress, with the label LabelEgress.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=berth
// +kubebuilder:printcolumn:name="Egress",type=string,JSONPath=`.metadata.labels.egress\.berth\.dev/name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type EgressClientSlice struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Clients are some of the Egress's clients, in no particular order. Written by the operator.
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

// ServedClient is a pod that the gateways serve.
type ServedClient struct {
	// UID is the UID of the pod.
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`

	// Pod is the namespace and name of the pod, for information only.
	// +kubebuilder:validation:MaxLength=317
	// +optional
	Pod string `json:"pod,omitempty"`

	// Addresses are the source addresses of the pod's packets, one per family.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	Addresses []string `json:"addresses"`
}

// SliceClients is the maximum number of clients in an EgressClientSlice.
const SliceClients = 100
