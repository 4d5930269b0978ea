package nicpolicy

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/watched"
)

// securityGroupPolicies is the kind of the Amazon VPC resource controller.
var securityGroupPolicies = schema.GroupVersionResource{Group: "vpcresources.k8s.aws", Version: "v1beta1", Resource: "securitygrouppolicies"}

// longest is the maximum size of a SecurityGroupPolicy's spec in bytes of JSON. The CRD of that kind has no limit.
const longest = 16 << 10

// foreign are the SecurityGroupPolicies of the cluster.
type foreign struct{ *watched.Optional }

// trimForeign keeps only the fields of a SecurityGroupPolicy that make up a policy, or only the fact that it is too large.
func trimForeign(in any) (any, error) {
	o, ok := in.(*unstructured.Unstructured)
	if !ok {
		return in, nil
	}
	of := o.Object
	out := &unstructured.Unstructured{Object: map[string]any{"apiVersion": of["apiVersion"], "kind": of["kind"]}}
	out.SetNamespace(o.GetNamespace())
	out.SetName(o.GetName())
	out.SetUID(o.GetUID())
	out.SetResourceVersion(o.GetResourceVersion())
	out.SetCreationTimestamp(o.GetCreationTimestamp())
	out.Object["spec"] = of["spec"]
	if spec, err := json.Marshal(of["spec"]); err != nil || len(spec) > longest {
		out.Object["spec"] = map[string]any{tooLarge: true}
	}
	return out, nil
}

// tooLarge is the only field that trimForeign leaves in a large spec. The kind has no such field.
const tooLarge = "berth.dev/too-large"

// of returns the policies of a namespace from the cache or, if live is set, from the API server. It is an error if there are too
// many, or one is too large: a pod selected by it must not run without its groups.
func (f *foreign) of(ctx context.Context, namespace string, live bool) ([]nicrequest.Policy, error) {
	store, err := f.Read()
	if err != nil || store == nil {
		return nil, err
	}
	items, err := store.ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return nil, fmt.Errorf("list SecurityGroupPolicies of namespace %s in memory: %w", namespace, err)
	}
	if live && len(items) <= most { // not needed if the cache already has too many
		items = nil
		list, err := f.API.Resource(securityGroupPolicies).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: most + 1})
		if apierrors.IsNotFound(err) { // the CRD was just removed
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list SecurityGroupPolicies of namespace %s: %w", namespace, err)
		}
		for i := range list.Items {
			o, _ := trimForeign(&list.Items[i])
			items = append(items, o)
		}
	}
	if len(items) > most {
		return nil, fmt.Errorf("namespace %s has more than %d SecurityGroupPolicies: delete some", namespace, most)
	}
	var all []nicrequest.Policy
	for _, item := range items {
		o := item.(*unstructured.Unstructured)
		if _, large, _ := unstructured.NestedBool(o.Object, "spec", tooLarge); large {
			return nil, fmt.Errorf("the spec of SecurityGroupPolicy %s/%s has more than %d bytes of JSON: make it shorter", namespace, o.GetName(), longest)
		}
		if p, ok := fromForeign(o); ok {
			all = append(all, p)
		}
	}
	return all, nil
}

// namespaces returns the namespaces with SecurityGroupPolicies.
func (f *foreign) namespaces() ([]string, error) {
	store, err := f.Read()
	if err != nil || store == nil {
		return nil, err
	}
	return store.ListIndexFuncValues(cache.NamespaceIndex), nil
}

// foreignPolicy is a SecurityGroupPolicy (amazon-vpc-resource-controller-k8s,
// apis/vpcresources/v1beta1).
type foreignPolicy struct {
	Spec struct {
		PodSelector            *metav1.LabelSelector `json:"podSelector"`
		ServiceAccountSelector *metav1.LabelSelector `json:"serviceAccountSelector"`
		SecurityGroups         struct {
			GroupIDs []string `json:"groupIds"`
		} `json:"securityGroups"`
	} `json:"spec"`
}

// fromForeign converts a SecurityGroupPolicy. As in the Amazon VPC CNI, a policy without a selector or without groups, or with an
// invalid selector, selects nothing.
func fromForeign(o *unstructured.Unstructured) (nicrequest.Policy, bool) {
	var f foreignPolicy
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &f); err != nil {
		return nicrequest.Policy{}, false
	}
	pods, accounts := f.Spec.PodSelector, f.Spec.ServiceAccountSelector
	if pods == nil && accounts == nil || len(f.Spec.SecurityGroups.GroupIDs) == 0 {
		return nicrequest.Policy{}, false
	}
	p := nicrequest.Policy{Kind: nicrequest.KindSecurityGroupPolicy, Name: o.GetName(), Created: o.GetCreationTimestamp().Time, SecurityGroups: f.Spec.SecurityGroups.GroupIDs}
	var errPods, errAccounts error
	if pods != nil {
		p.Pods, errPods = metav1.LabelSelectorAsSelector(pods)
	}
	if accounts != nil {
		p.Accounts, errAccounts = metav1.LabelSelectorAsSelector(accounts)
	}
	return p, errPods == nil && errAccounts == nil
}
