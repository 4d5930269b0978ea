package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NICPolicy gives pods of its namespace a NIC with security groups, a subnet or a VPC of
// their own, by their labels or those of their service accounts. It is for pods that are made
// once it is Ready; of those that are there nothing changes. A pod whose annotations ask for
// NICs themselves has what they say; of several policies that select a pod the oldest counts.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nicpolicies,shortName=nicpol,categories=berth
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",fieldPath=".metadata",message="metadata.name must be at most 63 characters long: it is in an annotation of the pods"
// +kubebuilder:printcolumn:name="VPC",type=string,JSONPath=`.spec.vpc`
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.spec.subnet`
// +kubebuilder:printcolumn:name="Security Groups",type=string,JSONPath=`.spec.securityGroups`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NICPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   NICPolicySpec   `json:"spec"`
	Status NICPolicyStatus `json:"status,omitzero"`
}

// NICPolicyList is a list of NICPolicies.
//
// +kubebuilder:object:root=true
type NICPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NICPolicy `json:"items"`
}

// NICPolicySpec is which pods it selects, and what they get. Written by a person.
//
// +kubebuilder:validation:XValidation:rule="has(self.podSelector) || has(self.serviceAccountSelector)",message="spec must have a podSelector, a serviceAccountSelector or both; an empty one selects all"
// +kubebuilder:validation:XValidation:rule="has(self.securityGroups) || has(self.subnet) || has(self.vpc)",message="spec must have securityGroups, a subnet or a vpc, which is what the pods get"
type NICPolicySpec struct {
	// PodSelector selects pods by their labels as they are made; empty: all of the
	// namespace. With serviceAccountSelector a pod must be selected by both.
	// +optional
	PodSelector *LabelSelector `json:"podSelector,omitempty"`

	// ServiceAccountSelector selects pods by the labels of their service account, which
	// whoever makes pods may not be able to change; empty: all.
	// +optional
	ServiceAccountSelector *LabelSelector `json:"serviceAccountSelector,omitempty"`

	// VPC is the VPC that the NIC is in. Not set: that of the namespace's annotation
	// berth.dev/vpc, or without it the only one that is for the namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +optional
	VPC string `json:"vpc,omitempty"`

	// Subnet is the ID of a subnet of the VPC, or its name if it is the only one of that
	// name. Not set: as the VPC says.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +optional
	Subnet string `json:"subnet,omitempty"`

	// SecurityGroups are the IDs of the NIC's groups. Not set: those of the VPC.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +optional
	SecurityGroups []string `json:"securityGroups,omitempty"`
}

// NICPolicyStatus is whether it is in force. Written by the operator.
type NICPolicyStatus struct {
	// Conditions are Ready: pods that are made get what it says.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
