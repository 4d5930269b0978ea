package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeNetworkTemplate has settings for the ENIs of a group of nodes: pods in other
// subnets than their nodes, or with other security groups. Changes count for new ENIs
// at once.
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

// NodeNetworkTemplateSpec says which nodes have which settings. Written by a person.
type NodeNetworkTemplateSpec struct {
	// NodeSelector selects Nodes by their labels; without requirements it selects all.
	// A kubelet may change labels of its own Node, but for those below
	// node-restriction.kubernetes.io/ (Kubernetes documentation, "Admission Control",
	// NodeRestriction): select by these where settings must not be a node's to choose.
	NodeSelector LabelSelector `json:"nodeSelector"`

	// Priority decides between templates that select the same node: the highest
	// counts, of those with the same the oldest, of those as old the first by name.
	// +kubebuilder:validation:XValidation:rule="self >= -1000000 && self <= 1000000",message="priority must be between -1000000 and 1000000"
	// +optional
	Priority int32 `json:"priority,omitempty"`

	// ENI is what counts for these nodes in place of what their NodeNetwork's spec.eni,
	// or in node mode their daemon's own settings, say. What is not set here stays as it
	// is there. subnetIDs and subnetTags are one setting, as are securityGroups and
	// securityGroupTags, and all warm targets and watermarks together. vpcID,
	// availabilityZone and ipFamilies are each node's own.
	// +kubebuilder:validation:XValidation:rule="!has(self.vpcID) && !has(self.availabilityZone) && !has(self.ipFamilies)",message="eni.vpcID, eni.availabilityZone and eni.ipFamilies are each node's own, and no template's"
	ENI ENISpec `json:"eni"`

	// OutdatedENIs is what becomes of ENIs that are in other subnets, or have other
	// security groups, than new ones. Retain: they stay, and pods get their addresses.
	// Drain: they get no new pods as soon as others have room, and go with the last of
	// their pods; no pod is ended for that.
	// +kubebuilder:validation:Enum=Retain;Drain
	// +kubebuilder:default=Retain
	// +optional
	OutdatedENIs string `json:"outdatedENIs,omitempty"`
}

// What becomes of outdated ENIs.
const (
	RetainOutdated = "Retain"
	DrainOutdated  = "Drain"
)
