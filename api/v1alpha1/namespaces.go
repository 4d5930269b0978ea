package v1alpha1

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Allows reports whether a namespace with the given labels is named or selected. A nil receiver
// allows none. The error says what is wrong with `selector`.
func (n *VPCNamespaces) Allows(namespace string, has map[string]string) (bool, error) {
	if n == nil {
		return false, nil
	}
	if slices.Contains(n.Names, "*") || slices.Contains(n.Names, namespace) {
		return true, nil
	}
	if n.Selector == nil {
		return false, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(n.Selector)
	if err != nil {
		return false, fmt.Errorf("selector: %w", err)
	}
	return selector.Matches(labels.Set(has)), nil
}
