package v1alpha1_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/berthnet/berth/test/harness"
)

var badPolicies = []refusal{
	{"no selector", "{vpc: a}", "spec", "spec must have a podSelector, a serviceAccountSelector or both; an empty selector selects all pods"},
	{"nothing to give", "{podSelector: {}}", "spec", "spec must have securityGroups, a subnet or a vpc"},
	{"a VPC's name", "{podSelector: {}, vpc: A_b}", "spec.vpc", "should match"},
	{"a long name of a VPC", "{podSelector: {}, vpc: " + strings.Repeat("a", 64) + "}", "spec.vpc", "Too long"},
	{"no subnet's name", "{podSelector: {}, subnet: ''}", "spec.subnet", "at least 1 chars long"},
	{"no groups", "{podSelector: {}, securityGroups: []}", "spec.securityGroups", "should have at least 1 items"},
	{"a group twice", "{podSelector: {}, securityGroups: [a, a]}", "spec.securityGroups[1]", "Duplicate value"},
	{"an empty VPC", "{podSelector: {}, vpc: ''}", "spec.vpc", "at least 1 chars long"},
	{"a long name of a subnet", "{podSelector: {}, subnet: " + strings.Repeat("a", 256) + "}", "spec.subnet", "Too long"},
	{"17 groups", "{podSelector: {}, securityGroups: [" + counted(17) + "]}", "spec.securityGroups", "must have at most 16 items"},
	{"an empty group", "{podSelector: {}, securityGroups: ['']}", "spec.securityGroups[0]", "at least 1 chars long"},
	{"a long group", "{podSelector: {}, securityGroups: [" + strings.Repeat("a", 256) + "]}", "spec.securityGroups[0]", "Too long"},
	{"an operator", "{podSelector: {matchExpressions: [{key: a, operator: Near}]}, vpc: a}", "spec.podSelector.matchExpressions[0].operator", `supported values: "In", "NotIn", "Exists", "DoesNotExist"`},
	{"In of nothing", "{serviceAccountSelector: {matchExpressions: [{key: a, operator: In}]}, vpc: a}", "spec.serviceAccountSelector.matchExpressions[0]", "must have values with the operators In and NotIn, and none with Exists and DoesNotExist"},
	{"In of an empty list", "{podSelector: {matchExpressions: [{key: a, operator: In, values: []}]}, vpc: a}", "spec.podSelector.matchExpressions[0]", "matchExpressions must have values with the operators In and NotIn"},
	{"NotIn of nothing", "{podSelector: {matchExpressions: [{key: a, operator: NotIn}]}, vpc: a}", "spec.podSelector.matchExpressions[0]", "matchExpressions must have values with the operators In and NotIn"},
	{"Exists with a value", "{podSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}, vpc: a}", "spec.podSelector.matchExpressions[0]", "matchExpressions must have values with the operators In and NotIn, and none with Exists and DoesNotExist"},
	{"DoesNotExist with a value", "{serviceAccountSelector: {matchExpressions: [{key: a, operator: DoesNotExist, values: [b]}]}, vpc: a}", "spec.serviceAccountSelector.matchExpressions[0]", "and none with Exists and DoesNotExist"},
	{"a key", "{podSelector: {matchExpressions: [{key: 'a b', operator: Exists}]}, vpc: a}", "spec.podSelector.matchExpressions[0].key", "should match"},
	{"no key", "{podSelector: {matchExpressions: [{operator: Exists}]}, vpc: a}", "spec.podSelector.matchExpressions[0].key", "Required value"},
	{"a value", "{podSelector: {matchExpressions: [{key: a, operator: In, values: ['b c']}]}, vpc: a}", "spec.podSelector.matchExpressions[0].values[0]", "should match"},
	{"a value twice", "{podSelector: {matchExpressions: [{key: a, operator: In, values: [b, b]}]}, vpc: a}", "spec.podSelector.matchExpressions[0].values[1]", "Duplicate value"},
	{"65 values", "{podSelector: {matchExpressions: [{key: a, operator: In, values: [" + counted(65) + "]}]}, vpc: a}", "spec.podSelector.matchExpressions[0].values", "must have at most 64 items"},
	{"17 expressions", "{podSelector: {matchExpressions: [" + strings.TrimSuffix(strings.Repeat("{key: a, operator: Exists}, ", 17), ", ") + "]}, vpc: a}", "spec.podSelector.matchExpressions", "must have at most 16 items"},
	{"a label's key", "{serviceAccountSelector: {matchLabels: {'a b': c}}, vpc: a}", "spec.serviceAccountSelector.matchLabels", "matchLabels must have valid label keys, such as topology.kubernetes.io/zone"},
	{"a label's value", "{podSelector: {matchLabels: {a: 'b c'}}, vpc: a}", "spec.podSelector.matchLabels.a", "should match"},
	{"17 labels", "{podSelector: {matchLabels: {" + strings.ReplaceAll(counted(17), ",", ": a,") + ": a}}, vpc: a}", "spec.podSelector.matchLabels", "must have at most 16 items"},
}

// counted returns a list of n different names.
func counted(n int) string {
	names := make([]string, n)
	for i := range names {
		names[i] = "n" + strconv.Itoa(i)
	}
	return strings.Join(names, ", ")
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
		"most":     "{podSelector: {matchLabels: {a: ''}}, subnet: " + strings.Repeat("a", 255) + ", securityGroups: [" + counted(16) + "]}",
		"both":     "{podSelector: {matchExpressions: [{key: example.com/app, operator: Exists}]}, serviceAccountSelector: {}, securityGroups: [a, b]}",
	} {
		harness.OK(t, policy(name, spec))
	}
	if err := policy(strings.Repeat("a", 64), "{podSelector: {}, vpc: a}"); err == nil || !strings.Contains(err.Error(), "metadata.name must be at most 63 characters long") {
		t.Errorf("a long name: %v", err)
	}
}
