package membership

import (
	"fmt"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/berthnet/berth/api/v1alpha1"
)

// Selector is spec.clients of an Egress. The zero value selects nothing.
type Selector struct {
	own        string          // the Egress's namespace, where namespaces is nil
	namespaces labels.Selector // nil: own alone
	pods       labels.Selector // nil: nothing is selected
}

// NewSelector reads spec.clients of an Egress in a namespace; nil selects nothing. The error names
// the invalid selector.
func NewSelector(namespace string, of *v1alpha1.EgressClientSelector) (Selector, error) {
	if of == nil {
		return Selector{}, nil
	}
	s := Selector{own: namespace, pods: labels.Everything()}
	var err error
	if of.NamespaceSelector != nil {
		if s.namespaces, err = of.NamespaceSelector.Compile(); err != nil {
			return Selector{}, fmt.Errorf("spec.clients.namespaceSelector: %w", err)
		}
	}
	if of.PodSelector != nil {
		if s.pods, err = of.PodSelector.Compile(); err != nil {
			return Selector{}, fmt.Errorf("spec.clients.podSelector: %w", err)
		}
	}
	return s, nil
}

// Any tells whether it can select anything at all.
func (s Selector) Any() bool { return s.pods != nil }

// Namespace tells whether pods of a namespace with some labels may be selected: those that Pod
// matches.
func (s Selector) Namespace(name string, has map[string]string) bool {
	switch {
	case s.pods == nil:
		return false
	case s.namespaces == nil:
		return name == s.own
	}
	return s.namespaces.Matches(labels.Set(has))
}

// Pod tells whether a pod with some labels is selected in a selected namespace.
func (s Selector) Pod(has map[string]string) bool {
	return s.pods != nil && s.pods.Matches(labels.Set(has))
}

// ByLabels tells whether it selects namespaces by labels.
func (s Selector) ByLabels() bool { return s.namespaces != nil }

// same tells whether two select the same pods.
func (s Selector) same(o Selector) bool {
	equal := func(a, b labels.Selector) bool {
		return (a == nil) == (b == nil) && (a == nil || a.String() == b.String())
	}
	return s.own == o.own && equal(s.namespaces, o.namespaces) && equal(s.pods, o.pods)
}
