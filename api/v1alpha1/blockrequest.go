package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BlockRequest asks for one more block of a pool for a node. The daemon of the
// node makes it, and deletes it once it has the block or needs it no more.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=breq,categories=berth
// +kubebuilder:selectablefield:JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.poolName`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Block",type=string,JSONPath=`.status.addressBlockName`
// +kubebuilder:printcolumn:name="Complete",type=string,JSONPath=`.status.conditions[?(@.type=="Complete")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Failed")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type BlockRequest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BlockRequestSpec   `json:"spec"`
	Status BlockRequestStatus `json:"status,omitzero"`
}

// BlockRequestList is a list of BlockRequests.
//
// +kubebuilder:object:root=true
type BlockRequestList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BlockRequest `json:"items"`
}

// BlockRequestSpec says what is asked for. Written by the daemon; it cannot be
// changed.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec cannot be changed; a request for another block is another request"
type BlockRequestSpec struct {
	// NodeName is the node that asks.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`

	// PoolName is the pool.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	PoolName string `json:"poolName"`
}

// BlockRequestStatus is the answer. Written by the operator.
type BlockRequestStatus struct {
	// AddressBlockName is the block that was given.
	// +optional
	AddressBlockName string `json:"addressBlockName,omitempty"`

	// Conditions are Complete and Failed. A request that failed is tried again
	// when its pool changes, and may become complete.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// The types of a BlockRequest's conditions.
const (
	ConditionComplete = "Complete"
	ConditionFailed   = "Failed"
)

// The reasons why a BlockRequest failed, and why an AddressPool is not Ready.
const (
	ReasonPoolNotFound  = "PoolNotFound"
	ReasonPoolExhausted = "PoolExhausted"
	ReasonPoolDeleted   = "PoolDeleted"  // it is being deleted
	ReasonPoolOverlaps  = "PoolOverlaps" // no subnet of it is accepted yet
	ReasonPoolInvalid   = "PoolInvalid"
)

// The reasons why a BlockRequest failed that are its node's.
const (
	ReasonNoPods          = "NoPods"          // none of the node's pods may use the pool
	ReasonNodeQuota       = "NodeQuota"       // the node has blocks enough for its pods, or as many as the pool allows
	ReasonTooManyRequests = "TooManyRequests" // the node has others without an answer
)
