package deploy

import (
	"fmt"
	"slices"

	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Objects is a list of Kubernetes API objects.
type Objects []*unstructured.Unstructured

func newObject() *unstructured.Unstructured { return &unstructured.Unstructured{} }

func (o Objects) copy() Objects {
	out := make(Objects, len(o))
	for i := range o {
		out[i] = o[i].DeepCopy()
	}
	return out
}

// sort orders objects by Helm's order of kinds. Kinds unknown to Helm come last.
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

// Of returns the objects of the given kinds.
func (o Objects) Of(kinds ...string) Objects {
	return slices.DeleteFunc(slices.Clone(o), func(u *unstructured.Unstructured) bool { return !slices.Contains(kinds, u.GetKind()) })
}

// Except returns all objects of other kinds.
func (o Objects) Except(kinds ...string) Objects {
	return slices.DeleteFunc(slices.Clone(o), func(u *unstructured.Unstructured) bool { return slices.Contains(kinds, u.GetKind()) })
}

// Access returns the objects for access control: service accounts, roles, and the admission
// policies with their parameters.
func (o Objects) Access() Objects {
	return o.Except("CustomResourceDefinition", "DaemonSet", "Deployment", "PodDisruptionBudget", "Secret", "Service", "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
}

// Get returns the object of a kind and name as its Go type. It fails if the object does not exist,
// or has fields unknown to the type.
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
