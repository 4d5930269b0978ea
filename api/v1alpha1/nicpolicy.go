package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NICPolicy gives pods of its namespace a NIC with security groups, a subnet or a VPC of their own.
// It selects pods by their labels or by the labels of their service accounts. It applies to pods
// created once it is Ready; existing pods do not change. A pod whose annotations ask for NICs gets
// those NICs instead. If several policies select a pod, the oldest one applies.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nicpolicies,shortName=nicpol,categories=berth
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",fieldPath=".metadata",message="metadata.name must be at most 63 characters long, because it is written to an annotation of the pods"
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

// NICPolicySpec defines which pods the policy selects and which NIC they get. Written by a person.
//
// +kubebuilder:validation:XValidation:rule="has(self.podSelector) || has(self.serviceAccountSelector)",message="spec must have a podSelector, a serviceAccountSelector or both; an empty selector selects all pods"
// +kubebuilder:validation:XValidation:rule="has(self.securityGroups) || has(self.subnet) || has(self.vpc)",message="spec must have securityGroups, a subnet or a vpc"
type NICPolicySpec struct {
	// PodSelector selects pods by their labels at creation. An empty selector matches all pods of
	// the namespace. If serviceAccountSelector is also set, a pod must match both.
	// +optional
	PodSelector *LabelSelector `json:"podSelector,omitempty"`

	// ServiceAccountSelector selects pods by the labels of their service account, which people who
	// can create pods may not be able to change. An empty selector matches all.
	// +optional
	ServiceAccountSelector *LabelSelector `json:"serviceAccountSelector,omitempty"`

	// VPC is the VPC of the NIC. If unset, the VPC in the namespace's annotation berth.dev/vpc or,
	// without that annotation, the only VPC that the namespace may use.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +optional
	VPC string `json:"vpc,omitempty"`

	// Subnet is the ID of a subnet of the VPC, or its name if the name is unique. If unset, the
	// VPC's default applies.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +optional
	Subnet string `json:"subnet,omitempty"`

	// SecurityGroups are the IDs of the security groups of the NIC. If unset, the VPC's defaults
	// apply.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +optional
	SecurityGroups []string `json:"securityGroups,omitempty"`
}

// NICPolicyStatus is the observed state of the policy. Written by the operator.
type NICPolicyStatus struct {
	// Conditions has the condition Ready: new pods that match the policy get its NIC.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
