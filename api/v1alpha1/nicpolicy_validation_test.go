package v1alpha1_test

import (
	"strings"
	"testing"

	"github.com/berthnet/berth/test/harness"
)

var badPolicies = []refusal{
	{"no selector", "{vpc: a}", "spec", "spec must have a podSelector, a serviceAccountSelector or both; an empty one selects all"},
	{"nothing to give", "{podSelector: {}}", "spec", "spec must have securityGroups, a subnet or a vpc, which is what the pods get"},
	{"a VPC's name", "{podSelector: {}, vpc: A_b}", "spec.vpc", "should match"},
	{"a long name of a VPC", "{podSelector: {}, vpc: " + strings.Repeat("a", 64) + "}", "spec.vpc", "Too long"},
	{"no subnet's name", "{podSelector: {}, subnet: ''}", "spec.subnet", "at least 1 chars long"},
	{"no groups", "{podSelector: {}, securityGroups: []}", "spec.securityGroups", "should have at least 1 items"},
	{"a group twice", "{podSelector: {}, securityGroups: [a, a]}", "spec.securityGroups[1]", "Duplicate value"},
	{"an operator", "{podSelector: {matchExpressions: [{key: a, operator: Near}]}, vpc: a}", "spec.podSelector.matchExpressions[0].operator", `supported values: "In", "NotIn", "Exists", "DoesNotExist"`},
	{"In of nothing", "{serviceAccountSelector: {matchExpressions: [{key: a, operator: In}]}, vpc: a}", "spec.serviceAccountSelector.matchExpressions[0]", "must have values with In and NotIn, and none with Exists and DoesNotExist"},
}

func TestNICPolicies(t *testing.T) {
	c := clean(t)
	policy := func(name, spec string) error {
		o := ofKind(t, "NICPolicy", name, "spec: "+spec)
		o.SetNamespace("default")
		return c.Create(t.Context(), o)
	}
	refuses(t, badPolicies, func(t *testing.T, spec string) error { return policy("db", spec) })
	for name, spec := range map[string]string{
		"all":      "{podSelector: {}, vpc: a}",
		"accounts": "{serviceAccountSelector: {matchLabels: {role: db}}, subnet: a}",
		"both":     "{podSelector: {matchExpressions: [{key: example.com/app, operator: Exists}]}, serviceAccountSelector: {}, securityGroups: [a, b]}",
	} {
		harness.OK(t, policy(name, spec))
	}
	if err := policy(strings.Repeat("a", 64), "{podSelector: {}, vpc: a}"); err == nil || !strings.Contains(err.Error(), "metadata.name must be at most 63 characters long") {
		t.Errorf("a long name: %v", err)
	}
}
