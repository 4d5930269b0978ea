package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// LabelSelector selects objects by their labels: a metav1.LabelSelector of bounded size whose
// syntax the API server validates. An object must meet all requirements. A selector without
// requirements matches everything.
type LabelSelector struct {
	// MatchLabels are labels that an object must have.
	// +mapType=atomic
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 317 && k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="matchLabels must have valid label keys, such as topology.kubernetes.io/zone"
	// +optional
	MatchLabels map[string]LabelValue `json:"matchLabels,omitempty"`

	// MatchExpressions are requirements on labels.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +optional
	MatchExpressions []LabelRequirement `json:"matchExpressions,omitempty"`
}

// LabelRequirement is a requirement on the value of one label.
//
// +kubebuilder:validation:XValidation:rule="(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",message="matchExpressions must have values with the operators In and NotIn, and none with Exists and DoesNotExist"
type LabelRequirement struct {
	// Key is the key of the label.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	Key string `json:"key"`
	// Operator relates the label to the values.
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator string `json:"operator"`
	// Values are the values for the operators In and NotIn.
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

// Compile returns the selector in compiled form. The error says which part is invalid.
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
