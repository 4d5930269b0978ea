package membership

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

// Namespace is what of a Namespace decides which Egresses may select its pods.
type Namespace struct {
	Name                string
	Labels, Annotations map[string]string
}

// ReadNamespace reads the metadata of a Namespace.
func ReadNamespace(o metav1.Object) Namespace {
	return Namespace{Name: o.GetName(), Labels: o.GetLabels(), Annotations: o.GetAnnotations()}
}

// Granted tells whether an administrator lets Egresses of the namespace select pods of others
// without their consent.
func (n Namespace) Granted() bool { return n.Labels[v1alpha1.LabelEgressMaySelect] == "true" }

// everyone stands for all namespaces in a namespace's consent.
const everyone = "*"

// consentsTo are the namespaces whose Egresses may select pods of this one.
func (n Namespace) consentsTo() []string {
	value := n.Annotations[v1alpha1.AnnotationEgressSelectableFrom]
	if value == "" {
		return nil
	}
	names := strings.Split(value, ",")
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	return names
}

// Same tells whether two states of a Namespace make no difference to any Egress.
func (n Namespace) Same(o Namespace) bool {
	const key = v1alpha1.AnnotationEgressSelectableFrom
	return n.Annotations[key] == o.Annotations[key] && maps.Equal(n.Labels, o.Labels)
}

// systemNamespaces are those of Kubernetes itself. No Egress of another namespace selects their
// pods, with or without consent: every pod loses DNS when CoreDNS is cut off.
var systemNamespaces = []string{metav1.NamespaceSystem, metav1.NamespacePublic, "kube-node-lease"}

// maySelect tells whether Egresses of a namespace may select pods of another namespace. Berth's
// own is a system namespace too.
func maySelect(from string, granted bool, of Namespace, berthNamespace string) bool {
	switch {
	case from == of.Name:
		return true
	case of.Name == berthNamespace || slices.Contains(systemNamespaces, of.Name):
		return false
	}
	return granted || slices.ContainsFunc(of.consentsTo(), func(name string) bool { return name == from || name == everyone })
}
