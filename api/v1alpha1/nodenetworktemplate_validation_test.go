package v1alpha1_test

import (
	"strings"
	"testing"

	"github.com/berthnet/berth/test/harness"
)

// requirement returns the spec of a template with one label requirement.
func requirement(text string) string {
	return "{nodeSelector: {matchExpressions: [" + text + "]}, eni: {}}"
}

var badTemplates = []refusal{
	{"no selector", "{eni: {}}", "spec.nodeSelector", "Required value"},
	{"no settings", "{nodeSelector: {}}", "spec.eni", "Required value"},
	{"a zone", "{nodeSelector: {}, eni: {availabilityZone: a}}", "spec.eni", "eni.vpcID, eni.availabilityZone and eni.ipFamilies cannot be set in a template"},
	{"a VPC", "{nodeSelector: {}, eni: {vpcID: vpc-0a}}", "spec.eni", "eni.vpcID, eni.availabilityZone and eni.ipFamilies cannot be set in a template"},
	{"families", "{nodeSelector: {}, eni: {ipFamilies: dual}}", "spec.eni", "eni.vpcID, eni.availabilityZone and eni.ipFamilies cannot be set in a template"},
	{"a subnet's name", "{nodeSelector: {}, eni: {subnetIDs: [pods]}}", "spec.eni.subnetIDs", "eni.subnetIDs must be subnet IDs such as subnet-0123456789abcdef0"},
	{"subnets twice", "{nodeSelector: {}, eni: {subnetIDs: [subnet-0a], subnetTags: {a: b}}}", "spec.eni", "eni.subnetIDs and eni.subnetTags are mutually exclusive"},
	{"two dialects", "{nodeSelector: {}, eni: {warmIPTarget: 1, preAllocate: 1}}", "spec.eni", "cannot be mixed with"},
	{"outdated", "{nodeSelector: {}, eni: {}, outdatedENIs: Delete}", "spec.outdatedENIs", `supported values: "Retain", "Drain"`},
	{"priority", "{nodeSelector: {}, eni: {}, priority: 1000001}", "spec.priority", "priority must be between -1000000 and 1000000"},
	{"an operator", requirement("{key: a, operator: Near}"), "spec.nodeSelector.matchExpressions[0].operator", `supported values: "In", "NotIn", "Exists", "DoesNotExist"`},
	{"In of nothing", requirement("{key: a, operator: In}"), "spec.nodeSelector.matchExpressions[0]", "must have values with the operators In and NotIn, and none with Exists and DoesNotExist"},
	{"Exists with a value", requirement("{key: a, operator: Exists, values: [b]}"), "spec.nodeSelector.matchExpressions[0]", "must have values with the operators In and NotIn, and none with Exists and DoesNotExist"},
	{"a key", requirement("{key: 'a b', operator: Exists}"), "spec.nodeSelector.matchExpressions[0].key", "should match"},
	{"a value", requirement("{key: a, operator: In, values: ['b c']}"), "spec.nodeSelector.matchExpressions[0].values[0]", "should match"},
	{"a label's value", "{nodeSelector: {matchLabels: {a: " + strings.Repeat("b", 64) + "}}, eni: {}}", "spec.nodeSelector.matchLabels.a", "Too long"},
	{"a label's key", "{nodeSelector: {matchLabels: {'a b': c}}, eni: {}}", "spec.nodeSelector.matchLabels", "matchLabels must have valid label keys, such as topology.kubernetes.io/zone"},
}

func TestTemplates(t *testing.T) {
	c := clean(t)
	refuses(t, badTemplates, func(t *testing.T, spec string) error {
		return c.Create(t.Context(), ofKind(t, "NodeNetworkTemplate", "pods", "spec: "+spec))
	})
	for name, spec := range map[string]string{
		"all":   "{nodeSelector: {}, eni: {}}",
		"label": "{nodeSelector: {matchLabels: {node-restriction.kubernetes.io/pods: ''}}, eni: {subnetTags: {for: pods}, firstInterfaceIndex: 1}, priority: -5, outdatedENIs: Drain}",
		"other": requirement("{key: topology.kubernetes.io/zone, operator: NotIn, values: [a, b]}, {key: Gpu_1.x, operator: DoesNotExist}"),
	} {
		harness.OK(t, c.Create(t.Context(), ofKind(t, "NodeNetworkTemplate", name, "spec: "+spec)))
	}
}
