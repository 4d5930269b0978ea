package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeNetworkTemplate sets ENI settings for a group of nodes, for example to put pods in other
// subnets than their nodes or to give them other security groups. Changes apply to new ENIs
// immediately.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=nnt,categories=berth
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="Outdated ENIs",type=string,JSONPath=`.spec.outdatedENIs`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeNetworkTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NodeNetworkTemplateSpec `json:"spec"`
}

// NodeNetworkTemplateList is a list of NodeNetworkTemplates.
//
// +kubebuilder:object:root=true
type NodeNetworkTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeNetworkTemplate `json:"items"`
}

// NodeNetworkTemplateSpec selects nodes and defines their settings. Written by a person.
type NodeNetworkTemplateSpec struct {
	// NodeSelector selects Nodes by their labels; without requirements it matches all. A kubelet
	// may change the labels of its own Node, except those with the prefix
	// node-restriction.kubernetes.io/ (Kubernetes documentation, "Admission Control",
	// NodeRestriction). Select by these if a node must not be able to choose its settings.
	NodeSelector LabelSelector `json:"nodeSelector"`

	// Priority decides between templates that select the same node. The highest priority wins, then
	// the oldest template, then the first by name.
	// +kubebuilder:validation:XValidation:rule="self >= -1000000 && self <= 1000000",message="priority must be between -1000000 and 1000000"
	// +optional
	Priority int32 `json:"priority,omitempty"`

	// ENI are the settings that override spec.eni of the node's NodeNetwork or, in node mode, the
	// settings of the daemon. Settings that are not set here keep the node's own value. These count
	// as one setting each: subnetIDs with subnetTags, securityGroups with securityGroupTags, and
	// all warm targets and watermarks together. A template cannot set vpcID, availabilityZone and
	// ipFamilies.
	// +kubebuilder:validation:XValidation:rule="!has(self.vpcID) && !has(self.availabilityZone) && !has(self.ipFamilies)",message="eni.vpcID, eni.availabilityZone and eni.ipFamilies cannot be set in a template"
	ENI ENISpec `json:"eni"`

	// OutdatedENIs is what happens to ENIs whose subnet or security groups differ from those of new
	// ENIs. Retain keeps them, and pods still get their addresses. Drain assigns their addresses to
	// new pods only while no other ENI has room, and deletes them after their last pod ends. No pod
	// is terminated.
	// +kubebuilder:validation:Enum=Retain;Drain
	// +kubebuilder:default=Retain
	// +optional
	OutdatedENIs string `json:"outdatedENIs,omitempty"`
}

// What happens to outdated ENIs.
const (
	RetainOutdated = "Retain"
	DrainOutdated  = "Drain"
)
