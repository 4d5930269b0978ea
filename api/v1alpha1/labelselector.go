package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// LabelSelector selects objects by their labels: a metav1.LabelSelector of bounded size, of
// which the API server takes none that makes no sense. An object must meet all of it;
// without requirements it selects all.
type LabelSelector struct {
	// MatchLabels are labels that an object has.
	// +mapType=atomic
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 317 && k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="matchLabels must have keys of labels such as topology.kubernetes.io/zone"
	// +optional
	MatchLabels map[string]LabelValue `json:"matchLabels,omitempty"`

	// MatchExpressions are requirements on labels.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +optional
	MatchExpressions []LabelRequirement `json:"matchExpressions,omitempty"`
}

// LabelRequirement is what a label must be.
//
// +kubebuilder:validation:XValidation:rule="(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",message="matchExpressions must have values with In and NotIn, and none with Exists and DoesNotExist"
type LabelRequirement struct {
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

// Compile is what it selects by. The error says what makes no sense.
func (s *LabelSelector) Compile() (labels.Selector, error) {
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
	return metav1.LabelSelectorAsSelector(&in)
}
