package manifests

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

// securityGroupPolicy is a policy of the Amazon VPC resource controller (amazon-vpc-resource-controller-k8s,
// apis/vpcresources/v1beta1).
type securityGroupPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		PodSelector            *metav1.LabelSelector `json:"podSelector"`
		ServiceAccountSelector *metav1.LabelSelector `json:"serviceAccountSelector"`
		SecurityGroups         struct {
			GroupIDs []string `json:"groupIds"`
		} `json:"securityGroups"`
	} `json:"spec"`
	Status json.RawMessage `json:"status"`
}

// securityGroupPolicies adds a NICPolicy of the same name for each policy. A policy that selects nothing in the Amazon
// VPC CNI, because it has no selector or no groups, is an error: a NICPolicy without them would select every pod.
func securityGroupPolicies(of []Object, _ *Input, out *Output) error {
	var errs []error
	count := map[string]int{}
	for i := range of {
		o := &of[i]
		var p securityGroupPolicy
		if err := o.Decode(&p); err != nil {
			errs = append(errs, err)
			continue
		}
		made := &v1alpha1.NICPolicy{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NICPolicy"},
			ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
			Spec: v1alpha1.NICPolicySpec{
				PodSelector: selector(p.Spec.PodSelector), ServiceAccountSelector: selector(p.Spec.ServiceAccountSelector),
				SecurityGroups: slices.Compact(slices.Sorted(slices.Values(p.Spec.SecurityGroups.GroupIDs))),
			},
		}
		switch {
		case p.Spec.PodSelector == nil && p.Spec.ServiceAccountSelector == nil:
			errs = append(errs, fmt.Errorf("%s (%s): spec has neither podSelector nor serviceAccountSelector and selects nothing: leave it out", o, o.Source))
		case len(p.Spec.SecurityGroups.GroupIDs) == 0:
			errs = append(errs, fmt.Errorf("%s (%s): spec.securityGroups.groupIds is empty and gives pods no groups: leave it out", o, o.Source))
		default:
			count[p.Namespace]++
			out.Objects = append(out.Objects, made)
		}
	}
	for _, namespace := range slices.Sorted(maps.Keys(count)) {
		if n := count[namespace]; n > 1 {
			out.Comment("namespace %q has %d SecurityGroupPolicies: a pod gets the groups of all that select it, but of NICPolicies only those of the oldest; merge policies that select the same pods", namespace, n)
		}
	}
	if len(count) > 0 {
		out.Comment("a VPC of provider ec2 must give the namespaces these security groups; delete the SecurityGroupPolicies once the NICPolicies are Ready")
	}
	return errors.Join(errs...)
}

func selector(of *metav1.LabelSelector) *v1alpha1.LabelSelector {
	if of == nil {
		return nil
	}
	out := &v1alpha1.LabelSelector{}
	for key, value := range of.MatchLabels {
		if out.MatchLabels == nil {
			out.MatchLabels = map[string]v1alpha1.LabelValue{}
		}
		out.MatchLabels[key] = v1alpha1.LabelValue(value)
	}
	for _, r := range of.MatchExpressions {
		to := v1alpha1.LabelRequirement{Key: r.Key, Operator: string(r.Operator)}
		for _, v := range r.Values {
			to.Values = append(to.Values, v1alpha1.LabelValue(v))
		}
		out.MatchExpressions = append(out.MatchExpressions, to)
	}
	return out
}
