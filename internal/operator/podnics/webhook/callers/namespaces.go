package callers

import (
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

// namespacesOf are the names, in order, of those namespaces whose VPC is one of EC2.
func namespacesOf(namespaces []metav1.PartialObjectMetadata, vpcs []v1alpha1.VPC) []string {
	ofEC2 := map[string]bool{}
	for i := range vpcs {
		ofEC2[vpcs[i].Name] = vpcs[i].Spec.Provider == v1alpha1.ProviderEC2
	}
	var names []string
	for i := range namespaces {
		if n := &namespaces[i]; ofEC2[n.Annotations[v1alpha1.AnnotationVPC]] {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names
}

// ask makes a webhook one that is asked about pods that are made in some namespaces; without
// any about nothing, which is one without rules. It tells whether that changes the webhook.
func ask(w *admissionregistrationv1.MutatingWebhook, namespaces []string) bool {
	var rules []admissionregistrationv1.RuleWithOperations
	selector := &metav1.LabelSelector{}
	if len(namespaces) > 0 {
		scope := admissionregistrationv1.NamespacedScope
		rules = []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}, Scope: &scope},
		}}
		// The API server keeps this label, whatever others write.
		selector.MatchExpressions = []metav1.LabelSelectorRequirement{{
			Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: namespaces,
		}}
	}
	if equality.Semantic.DeepEqual(w.Rules, rules) && equality.Semantic.DeepEqual(w.NamespaceSelector, selector) {
		return false
	}
	w.Rules, w.NamespaceSelector = rules, selector
	return true
}
