package deploy

import (
	"fmt"
	"slices"

	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Objects are objects of the Kubernetes API.
type Objects []*unstructured.Unstructured

func newObject() *unstructured.Unstructured { return &unstructured.Unstructured{} }

func (o Objects) copy() Objects {
	out := make(Objects, len(o))
	for i := range o {
		out[i] = o[i].DeepCopy()
	}
	return out
}

// sort orders by Helm's order of kinds; kinds that Helm does not know come last.
func (o Objects) sort() {
	order := map[string]int{}
	for i, kind := range releaseutil.InstallOrder {
		order[kind] = i + 1
	}
	place := func(u *unstructured.Unstructured) int {
		if at := order[u.GetKind()]; at > 0 {
			return at
		}
		return len(order) + 1
	}
	slices.SortStableFunc(o, func(a, b *unstructured.Unstructured) int { return place(a) - place(b) })
}

// Of are those of some kinds.
func (o Objects) Of(kinds ...string) Objects {
	return slices.DeleteFunc(slices.Clone(o), func(u *unstructured.Unstructured) bool { return !slices.Contains(kinds, u.GetKind()) })
}

// Except are those that are not of some kinds.
func (o Objects) Except(kinds ...string) Objects {
	return slices.DeleteFunc(slices.Clone(o), func(u *unstructured.Unstructured) bool { return slices.Contains(kinds, u.GetKind()) })
}

// Access are the objects that say who may do what: service accounts, roles, and
// the admission policies with what they go by.
func (o Objects) Access() Objects {
	return o.Except("CustomResourceDefinition", "DaemonSet", "Deployment", "PodDisruptionBudget", "Secret", "Service", "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
}

// Get is the object of a kind and name, as its Go type. An error if there is none,
// or it has fields that the type lacks.
func Get[T any](o Objects, kind, name string) (T, error) {
	var to T
	for _, u := range o {
		if u.GetKind() == kind && u.GetName() == name {
			err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, &to, true)
			if err != nil {
				return to, fmt.Errorf("%s %s: %w", kind, name, err)
			}
			return to, nil
		}
	}
	return to, fmt.Errorf("no %s %s was rendered", kind, name)
}
