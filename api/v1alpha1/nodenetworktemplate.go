package v1alpha1

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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
	NodeSelector NodeSelector `json:"nodeSelector"`

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

// NodeSelector selects Nodes by their labels: a metav1.LabelSelector of bounded size. A
// Node must meet all of it.
type NodeSelector struct {
	// MatchLabels are labels that a Node has.
	// +mapType=atomic
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 317 && k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="matchLabels must have keys of labels such as topology.kubernetes.io/zone"
	// +optional
	MatchLabels map[string]LabelValue `json:"matchLabels,omitempty"`

	// MatchExpressions are requirements on labels.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +optional
	MatchExpressions []NodeSelectorRequirement `json:"matchExpressions,omitempty"`
}

// NodeSelectorRequirement is what a Node's label must be.
//
// +kubebuilder:validation:XValidation:rule="(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",message="nodeSelector.matchExpressions must have values with In and NotIn, and none with Exists and DoesNotExist"
type NodeSelectorRequirement struct {
	// Key is the label's.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	Key string `json:"key"`
	// Operator is how the label compares with the values.
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator string `json:"operator"`
	// Values are those of which the label has one, or has none.
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Values []LabelValue `json:"values,omitempty"`
}

// LabelValue is the value of a label (Kubernetes documentation, "Labels and Selectors",
// Syntax and character set).
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
type LabelValue string

// Selects tells whether a Node with some labels is selected. The error says what makes no
// sense.
func (s *NodeSelector) Selects(has map[string]string) (bool, error) {
	in := metav1.LabelSelector{MatchLabels: map[string]string{}}
	for key, value := range s.MatchLabels {
		in.MatchLabels[key] = string(value)
	}
	for _, r := range s.MatchExpressions {
		out := metav1.LabelSelectorRequirement{Key: r.Key, Operator: metav1.LabelSelectorOperator(r.Operator)}
		for _, v := range r.Values {
			out.Values = append(out.Values, string(v))
		}
		in.MatchExpressions = append(in.MatchExpressions, out)
	}
	selector, err := metav1.LabelSelectorAsSelector(&in)
	if err != nil {
		return false, fmt.Errorf("spec.nodeSelector: %w", err)
	}
	return selector.Matches(labels.Set(has)), nil
}

// What becomes of outdated ENIs.
const (
	RetainOutdated = "Retain"
	DrainOutdated  = "Drain"
)
