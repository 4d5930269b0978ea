package callers

import (
	"slices"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

func TestNamespacesOf(t *testing.T) {
	namespace := func(name, vpc string) metav1.PartialObjectMetadata {
		n := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if vpc != "-" {
			n.Annotations = map[string]string{v1alpha1.AnnotationVPC: vpc}
		}
		return n
	}
	vpcs := []v1alpha1.VPC{
		{ObjectMeta: metav1.ObjectMeta{Name: "e"}, Spec: v1alpha1.VPCSpec{Provider: v1alpha1.ProviderEC2}},
		{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: v1alpha1.VPCSpec{Provider: v1alpha1.ProviderNeutron}},
	}
	got := namespacesOf([]metav1.PartialObjectMetadata{
		namespace("shop", "e"), namespace("none", "-"), namespace("empty", ""), namespace("data", "e"), namespace("other", "n"), namespace("early", "unknown"),
	}, vpcs)
	if want := []string{"data", "shop"}; !slices.Equal(got, want) {
		t.Errorf("namespacesOf() = %v, want %v", got, want)
	}
}

// A webhook that was written once need not be written again, including in the form returned by the API server, with selectors that match
// everything added.
func TestAsk(t *testing.T) {
	w := &admissionregistrationv1.MutatingWebhook{NamespaceSelector: &metav1.LabelSelector{}}
	for _, step := range []struct {
		namespaces []string
		changes    bool
	}{
		{nil, false}, {[]string{"a"}, true}, {[]string{"a"}, false}, {[]string{"a", "b"}, true}, {nil, true}, {nil, false},
	} {
		if got := ask(w, step.namespaces); got != step.changes {
			t.Errorf("ask(%v) = %v, want %v", step.namespaces, got, step.changes)
		}
		if (len(w.Rules) > 0) != (len(step.namespaces) > 0) {
			t.Errorf("after ask(%v): rules = %+v", step.namespaces, w.Rules)
		}
		for _, e := range w.NamespaceSelector.MatchExpressions {
			if !slices.Equal(e.Values, step.namespaces) {
				t.Errorf("after ask(%v): namespace selector has %+v", step.namespaces, e)
			}
		}
	}
}
