package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BlockRequest asks for one more block of a pool for a node. The node's daemon creates it, and
// deletes it once the block is assigned or no longer needed.
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

// BlockRequestSpec identifies the node and the pool. Written by the daemon; it cannot be changed.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec cannot be changed; create another BlockRequest"
type BlockRequestSpec struct {
	// NodeName is the node that requests the block.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`

	// PoolName is the pool to allocate from.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	PoolName string `json:"poolName"`
}

// BlockRequestStatus is the result of the request. Written by the operator.
type BlockRequestStatus struct {
	// AddressBlockName is the block that was assigned.
	// +optional
	AddressBlockName string `json:"addressBlockName,omitempty"`

	// Conditions are Complete and Failed. The operator retries a failed request when its pool
	// changes, so it may still become complete.
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
	ReasonPoolDeleted   = "PoolDeleted"  // the pool is being deleted
	ReasonPoolOverlaps  = "PoolOverlaps" // none of the pool's subnets is accepted yet
	ReasonPoolInvalid   = "PoolInvalid"
)

// The reasons why a BlockRequest failed that concern its node.
const (
	ReasonNoPods          = "NoPods"          // none of the node's pods may use the pool
	ReasonNodeQuota       = "NodeQuota"       // the node has enough blocks for its pods, or as many as the pool allows
	ReasonTooManyRequests = "TooManyRequests" // the node has too many pending requests
)
