package replay

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// Group is the API group of Coil v2.
const Group = "coil.cybozu.com"

// CRDs returns definitions of Coil's kinds that accept every object.
func CRDs() (list []*apiextensionsv1.CustomResourceDefinition) {
	keep := true
	for kind, plural := range map[string]string{"AddressPool": "addresspools", "AddressBlock": "addressblocks", "BlockRequest": "blockrequests", "Egress": "egresses"} {
		scope := apiextensionsv1.ClusterScoped
		if kind == "Egress" {
			scope = apiextensionsv1.NamespaceScoped
		}
		singular := plural[:len(plural)-1]
		if kind == "Egress" {
			singular = "egress"
		}
		list = append(list, &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: plural + "." + Group},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: Group, Scope: scope,
				Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind, ListKind: kind + "List", Plural: plural, Singular: singular},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
					Name: "v2", Served: true, Storage: true,
					Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &keep}},
				}},
			},
		})
	}
	return list
}

// Apply creates the objects of a recorded cluster in an API server that has CRDs. Objects that were being deleted are
// deleted, and stay for their finalizers.
func Apply(ctx context.Context, c client.Client, name string, kinds ...string) error {
	data, err := Objects(name)
	if err != nil {
		return err
	}
	for _, doc := range bytes.Split(data, []byte("\n---\n")) {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(doc, &o.Object); err != nil {
			return fmt.Errorf("objects of %s: %w", name, err)
		}
		wanted := false
		for _, kind := range kinds {
			wanted = wanted || o.GetKind() == kind && (o.GroupVersionKind().Group == Group || o.GroupVersionKind().Group == "")
		}
		if !wanted {
			continue
		}
		deleted, status := o.GetDeletionTimestamp() != nil, o.Object["status"]
		unstructured.RemoveNestedField(o.Object, "metadata", "deletionTimestamp")
		unstructured.RemoveNestedField(o.Object, "metadata", "deletionGracePeriodSeconds")
		o.SetUID("")
		o.SetOwnerReferences(nil) // their UIDs are others now
		if err := c.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		if o.GetKind() == "Node" && status != nil {
			o.Object["status"] = status
			if err := c.Status().Update(ctx, o); err != nil {
				return fmt.Errorf("update Node %s: %w", o.GetName(), err)
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
