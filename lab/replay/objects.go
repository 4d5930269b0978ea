package replay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// Group is the API group of Coil v2.
const Group = "coil.cybozu.com"

// CRDs returns definitions of Coil's kinds that accept every object.
func CRDs() (list []*unstructured.Unstructured) {
	for kind, plural := range map[string]string{"AddressPool": "addresspools", "AddressBlock": "addressblocks", "BlockRequest": "blockrequests", "Egress": "egresses"} {
		scope, singular := "Cluster", strings.ToLower(kind)
		if kind == "Egress" {
			scope = "Namespaced"
		}
		list = append(list, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": plural + "." + Group},
			"spec": map[string]any{
				"group": Group, "scope": scope, "names": map[string]any{"kind": kind, "listKind": kind + "List", "plural": plural, "singular": singular},
				"versions": []any{map[string]any{
					"name": "v2", "served": true, "storage": true,
					"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
				}},
			},
		}})
	}
	return list
}

// Apply creates the objects of a recorded cluster in an API server that has CRDs. Objects that were being deleted are
// deleted, and stay for their finalizers. Owners are those that were created before.
func Apply(ctx context.Context, c client.Client, name string, kinds ...string) error {
	data, err := Objects(name)
	if err != nil {
		return err
	}
	uids := map[types.UID]types.UID{} // of the objects now, by those of the recording
	for _, doc := range bytes.Split(data, []byte("\n---\n")) {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(doc, &o.Object); err != nil {
			return fmt.Errorf("objects of %s: %w", name, err)
		}
		if !slices.Contains(kinds, o.GetKind()) || !slices.Contains([]string{Group, ""}, o.GroupVersionKind().Group) {
			continue
		}
		deleted, status := o.GetDeletionTimestamp() != nil, o.Object["status"]
		unstructured.RemoveNestedField(o.Object, "metadata", "deletionTimestamp")
		unstructured.RemoveNestedField(o.Object, "metadata", "deletionGracePeriodSeconds")
		recorded, owners := o.GetUID(), o.GetOwnerReferences()
		for i := range owners {
			owners[i].UID = uids[owners[i].UID]
		}
		o.SetUID("")
		o.SetOwnerReferences(slices.DeleteFunc(owners, func(of metav1.OwnerReference) bool { return of.UID == "" }))
		if o.GetKind() == "Pod" {
			if err := unstructured.SetNestedSlice(o.Object, []any{map[string]any{"name": "main", "image": "recorded"}}, "spec", "containers"); err != nil {
				return err
			}
		}
		if err := c.Create(ctx, o); apierrors.IsAlreadyExists(err) {
			err = c.Get(ctx, client.ObjectKeyFromObject(o), o)
			if err != nil {
				return err
			}
		} else if err != nil {
			return fmt.Errorf("create %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		uids[recorded] = o.GetUID()
		if (o.GetKind() == "Node" || o.GetKind() == "Pod") && status != nil {
			o.Object["status"] = status
			if err := c.Status().Update(ctx, o); err != nil {
				return fmt.Errorf("update %s %s: %w", o.GetKind(), o.GetName(), err)
			}
		}
		if deleted {
			if err := c.Delete(ctx, o); err != nil {
				return errors.Join(fmt.Errorf("delete %s %s", o.GetKind(), o.GetName()), err)
			}
		}
	}
	return nil
}
