package nicpolicy

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nicrequest"
)

func TestVerdictOf(t *testing.T) {
	vpcs := []v1alpha1.VPC{{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: v1alpha1.VPCSpec{Provider: v1alpha1.ProviderEC2, AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"shop"}}}}}
	bad := &v1alpha1.LabelSelector{MatchExpressions: []v1alpha1.LabelRequirement{{Key: "a", Operator: "Near"}}}
	for _, tt := range []struct {
		name, namespace string
		spec            v1alpha1.NICPolicySpec
		unasked         error
		reason, message string
		status          metav1.ConditionStatus
	}{
		{"in force", "shop", v1alpha1.NICPolicySpec{VPC: "v"}, nil, ReasonReady, "in VPC v", metav1.ConditionTrue},
		{"by the only VPC", "shop", v1alpha1.NICPolicySpec{}, nil, ReasonReady, "in VPC v", metav1.ConditionTrue},
		{"nobody asks", "shop", v1alpha1.NICPolicySpec{VPC: "v"}, errors.New("not yet"), ReasonStarting, "not yet", metav1.ConditionUnknown},
		{"no such VPC", "shop", v1alpha1.NICPolicySpec{VPC: "w"}, errors.New("not yet"), ReasonVPCNotFound, "there is no VPC w", metav1.ConditionFalse},
		{"not for the namespace", "bank", v1alpha1.NICPolicySpec{VPC: "v"}, nil, ReasonNotPossible, "is not for namespace bank", metav1.ConditionFalse},
		{"the operator's namespace", "own", v1alpha1.NICPolicySpec{VPC: "v"}, nil, ReasonOperatorNamespace, "in another", metav1.ConditionFalse},
		{"more groups than EC2 has", "shop", v1alpha1.NICPolicySpec{VPC: "v", SecurityGroups: []string{"1", "2", "3", "4", "5", "6"}}, errors.New("not yet"), ReasonNotPossible, "has 6 groups", metav1.ConditionFalse},
		{"a group of somebody else's", "shop", v1alpha1.NICPolicySpec{VPC: "v", SecurityGroups: []string{"1"}}, nil, ReasonNotPossible, "spec.securityGroups[0]: 1 is not for namespace shop in VPC v", metav1.ConditionFalse},
		{"a selector of accounts of nonsense", "shop", v1alpha1.NICPolicySpec{VPC: "v", ServiceAccountSelector: bad}, nil, ReasonNotPossible, "NICPolicy/p: spec.serviceAccountSelector: ", metav1.ConditionFalse},
		{"a selector of nonsense", "shop", v1alpha1.NICPolicySpec{VPC: "v", PodSelector: bad}, nil, ReasonNotPossible, "NICPolicy/p: spec.podSelector: ", metav1.ConditionFalse},
	} {
		o := &v1alpha1.NICPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: tt.namespace, Name: "p"}, Spec: tt.spec}
		got := verdictOf(o, nicrequest.Namespace{Name: tt.namespace}, vpcs, "own", tt.unasked)
		if got.reason != tt.reason || !strings.Contains(got.message, tt.message) || got.status() != tt.status {
			t.Errorf("%s: got %+v, %s, want %s, %q, %s", tt.name, got, got.status(), tt.reason, tt.message, tt.status)
		}
	}
}

// A SecurityGroupPolicy says what it says to the Amazon VPC CNI, and one that makes no sense
// selects nothing there either.
func TestFromForeign(t *testing.T) {
	of := func(spec string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte("metadata: {name: a, namespace: shop, creationTimestamp: '2026-11-27T07:00:00Z'}\nspec: "+spec), &o.Object); err != nil {
			t.Fatal(err)
		}
		return o
	}
	db, data := labels.Set{"app": "db"}, labels.Set{"tier": "data"}
	for _, tt := range []struct {
		spec     string
		ok       bool
		selects  bool // db of data
		elsewise bool // db of another account
	}{
		{"{podSelector: {matchLabels: {app: db}}, securityGroups: {groupIds: [sg-1]}}", true, true, true},
		{"{podSelector: {}, securityGroups: {groupIds: [sg-1]}}", true, true, true},
		{"{podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [db]}]}, securityGroups: {groupIds: [sg-1]}}", true, false, false},
		{"{serviceAccountSelector: {matchLabels: {tier: data}}, securityGroups: {groupIds: [sg-1]}}", true, true, false},
		{"{podSelector: {matchLabels: {app: db}}, serviceAccountSelector: {matchLabels: {tier: data}}, securityGroups: {groupIds: [sg-1]}}", true, true, false},
		{"{securityGroups: {groupIds: [sg-1]}}", false, false, false},
		{"{podSelector: {}}", false, false, false},
		{"{podSelector: {}, securityGroups: {groupIds: []}}", false, false, false},
		{"{podSelector: {matchExpressions: [{key: app, operator: Near}]}, securityGroups: {groupIds: [sg-1]}}", false, false, false},
		{"{podSelector: {}, serviceAccountSelector: {matchExpressions: [{key: tier, operator: In}]}, securityGroups: {groupIds: [sg-1]}}", false, false, false},
		{"{podSelector: [], securityGroups: {groupIds: [sg-1]}}", false, false, false},
		{"{podSelector: {}, securityGroups: {groupIds: sg-1}}", false, false, false},
	} {
		p, ok := fromForeign(of(tt.spec))
		if ok != tt.ok {
			t.Errorf("%s: %+v, %v, want %v", tt.spec, p, ok, tt.ok)
		}
		if !ok {
			continue
		}
		if p.String() != "SecurityGroupPolicy/a" || p.Created.Year() != 2026 || len(p.SecurityGroups) != 1 {
			t.Errorf("%s: %+v", tt.spec, p)
		}
		for account, want := range map[string]bool{"data": tt.selects, "other": tt.elsewise} {
			with := data
			if account == "other" {
				with = nil
			}
			if got := len(nicrequest.Choose([]nicrequest.Policy{p}, db, with).Counts) > 0; got != want {
				t.Errorf("%s: selects a pod of account %s: %v, want %v", tt.spec, account, got, want)
			}
		}
	}
}
