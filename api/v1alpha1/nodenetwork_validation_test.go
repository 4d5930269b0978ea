package v1alpha1_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

// badSpecs are invalid specs with the rejected field and the expected message.
var badSpecs = []refusal{
	{"no instance", "{instanceType: m5.large}", "spec.instanceID", "Required value"},
	{"no type", "{instanceID: i-1}", "spec.instanceType", "Required value"},
	{"instance", "{instanceID: m5.large, instanceType: m5.large}", "spec.instanceID",
		"instanceID must be an EC2 instance ID such as i-0123456789abcdef0"},
	{"type", "{instanceID: i-1, instanceType: m5}", "spec.instanceType", "instanceType must be an EC2 instance type such as m5.large"},
	{"VPC", with(", eni: {vpcID: subnet-1}"), "spec.eni.vpcID", "eni.vpcID must be a VPC ID such as vpc-0123456789abcdef0"},
	{"mixed dialects", with(", eni: {warmIPTarget: 1, preAllocate: 8}"), "spec.eni",
		"eni.warmENITarget, warmIPTarget, minimumIPTarget and warmPrefixTarget cannot be mixed with minAllocate, preAllocate, maxAboveWatermark and maxAllocate: use one dialect"},
	{"minimum above maximum", with(", eni: {minAllocate: 9, maxAllocate: 8}"), "spec.eni", "eni.minAllocate must be at most eni.maxAllocate"},
	{"subnets twice", with(", eni: {subnetIDs: [subnet-1], subnetTags: {a: b}}"), "spec.eni", "eni.subnetIDs and eni.subnetTags are mutually exclusive"},
	{"groups twice", with(", eni: {securityGroups: [sg-1], securityGroupTags: {a: b}}"), "spec.eni",
		"eni.securityGroups and eni.securityGroupTags are mutually exclusive"},
	{"subnets", with(", eni: {subnetIDs: [subnet-1, vpc-1]}"), "spec.eni.subnetIDs",
		"eni.subnetIDs must be subnet IDs such as subnet-0123456789abcdef0"},
	{"the same subnet twice", with(", eni: {subnetIDs: [subnet-1, subnet-1]}"), "spec.eni.subnetIDs[1]", "Duplicate value"},
	{"groups", with(", eni: {securityGroups: [default]}"), "spec.eni.securityGroups",
		"eni.securityGroups must be security group IDs such as sg-0123456789abcdef0"},
	{"families", with(", eni: {ipFamilies: both}"), "spec.eni.ipFamilies", "supported values: \"ipv4\", \"ipv6\", \"dual\""},
	{"families in another case", with(", eni: {ipFamilies: IPv6}"), "spec.eni.ipFamilies", "supported values"},
	{"minAllocate", with(", eni: {minAllocate: -1}"), "spec.eni.minAllocate", "eni.minAllocate must be between 0 and 65536"},
	{"preAllocate", with(", eni: {preAllocate: 65537}"), "spec.eni.preAllocate", "eni.preAllocate must be between 0 and 65536"},
	{"maxAboveWatermark", with(", eni: {maxAboveWatermark: -1}"), "spec.eni.maxAboveWatermark", "eni.maxAboveWatermark must be between 0 and 65536"},
	{"maxAllocate", with(", eni: {maxAllocate: -1}"), "spec.eni.maxAllocate", "eni.maxAllocate must be between 0 and 65536"},
	{"warmENITarget", with(", eni: {warmENITarget: 65}"), "spec.eni.warmENITarget", "eni.warmENITarget must be between 0 and 64"},
	{"warmIPTarget", with(", eni: {warmIPTarget: -1}"), "spec.eni.warmIPTarget", "eni.warmIPTarget must be between 0 and 65536"},
	{"minimumIPTarget", with(", eni: {minimumIPTarget: -1}"), "spec.eni.minimumIPTarget", "eni.minimumIPTarget must be between 0 and 65536"},
	{"warmPrefixTarget", with(", eni: {warmPrefixTarget: -1}"), "spec.eni.warmPrefixTarget", "eni.warmPrefixTarget must be between 0 and 65536"},
	{"maxENIs", with(", eni: {maxENIs: -1}"), "spec.eni.maxENIs", "eni.maxENIs must be between 0 and 64"},
	{"maxPods", with(", eni: {maxPods: -1}"), "spec.eni.maxPods", "eni.maxPods must be between 0 and 65536"},
	{"firstInterfaceIndex", with(", eni: {firstInterfaceIndex: 16}"), "spec.eni.firstInterfaceIndex", "eni.firstInterfaceIndex must be between 0 and 15"},
	{"a string as a number", with(", eni: {preAllocate: many}"), "spec.eni.preAllocate", "must be of type integer"},
	{"a long tag", with(", eni: {subnetTags: {a: " + strings.Repeat("b", 257) + "}}"), "spec.eni.subnetTags",
		"eni.subnetTags must have keys of at most 128 characters and values of at most 256"},
	{"a long key", with(", eni: {securityGroupTags: {" + strings.Repeat("a", 129) + ": b}}"), "spec.eni.securityGroupTags",
		"eni.securityGroupTags must have keys of at most 128 characters and values of at most 256"},
	{"not an address", with(", ipam: {available: {eth0: {resource: eni-1}}}"), "spec.ipam.available", available},
	{"a prefix of another size", with(", ipam: {available: {10.0.0.0/24: {resource: eni-1}}}"), "spec.ipam.available", available},
	{"an address with a length", with(", ipam: {available: {10.0.0.1/28: {resource: eni-1}}}"), "spec.ipam.available", available},
	{"an IPv6 prefix of another size", with(", ipam: {available: {'2001:db8::/64': {resource: eni-1}}}"), "spec.ipam.available", available},
	{"an IPv6 prefix of IPv4's size", with(", ipam: {available: {'2001:d80::/28': {resource: eni-1}}}"), "spec.ipam.available", available},
	{"an IPv4 prefix of IPv6's size", with(", ipam: {available: {10.0.0.0/80: {resource: eni-1}}}"), "spec.ipam.available", available},
	{"an IPv6 address with a length", with(", ipam: {available: {'2001:db8::1/80': {resource: eni-1}}}"), "spec.ipam.available", available},
	{"a longer form of an address", with(", ipam: {available: {'2001:db8:0::7': {resource: eni-1}}}"), "spec.ipam.available", available},
	{"an address in capitals", with(", ipam: {available: {'2001:DB8::7': {resource: eni-1}}}"), "spec.ipam.available", available},
	{"a longer form of a prefix", with(", ipam: {available: {'2001:db8:0:1:0::/80': {resource: eni-1}}}"), "spec.ipam.available", available},
	{"an IPv4-mapped IPv6 address", with(", ipam: {available: {'::ffff:10.0.0.1': {resource: eni-1}}}"), "spec.ipam.available", available},
	{"an address without an ENI", with(", ipam: {available: {10.0.0.1: {}}}"), "spec.ipam.available.10.0.0.1.resource", "Required value"},
	{"releasing", with(", ipam: {releasing: [all]}"), "spec.ipam.releasing", "ipam.releasing must be addresses or prefixes of ipam.available"},
	{"unassigning", with(", ipam: {unassigning: [all]}"), "spec.ipam.unassigning", "ipam.unassigning must be addresses or prefixes of ipam.available, or IDs of ENIs"},
}

const (
	available = "ipam.available must have addresses such as 10.0.0.1 or 2001:db8::1, or prefixes such as 10.0.0.16/28 or 2001:db8:0:1::/80, in their shortest form, as its keys"
	used      = "ipam.used must have addresses such as 10.0.0.1 or 2001:db8::1, in their shortest form, as its keys"
)

var badStatuses = []refusal{
	{"used", "{ipam: {usedCount: 1, used: {10.0.0.16/28: {}}}}", "status.ipam.used", used},
	{"a longer form of a used address", "{ipam: {usedCount: 1, used: {'2001:db8:0::7': {}}}}", "status.ipam.used", used},
	{"released", "{ipam: {usedCount: 1, released: [all]}}", "status.ipam.released", "ipam.released must be addresses or prefixes of ipam.releasing"},
	{"more used addresses than a node can have", "{ipam: {usedCount: 4097}}", "status.ipam.usedCount", "ipam.usedCount must be between 0 and 4096"},
	{"more waiting pods than a node can have", "{ipam: {usedCount: 0, waiting: 4097}}", "status.ipam.waiting", "ipam.waiting must be between 0 and 4096"},
	{"an owner of 1.2 MB", "{ipam: {usedCount: 1, used: {10.0.0.1: {owner: " + strings.Repeat("a", 1_200_000) + "}}}}", "status.ipam.used.10.0.0.1.owner", "Too long"},
	{"owners of 1.2 MB", "{ipam: {usedCount: 1, used: " + owners(3900, 308) + "}}", "status.ipam.used", "ipam.used must have owners of at most 400000 characters together"},
	{"more entries than a node can have", "{ipam: {usedCount: 1, used: " + owners(4097, 0) + "}}", "status.ipam.used", "Too many"},
	{"a long UID", "{ipam: {usedCount: 1, used: {10.0.0.1: {uid: " + strings.Repeat("a", 65) + "}}}}", "status.ipam.used.10.0.0.1.uid", "Too long"},
	{"a long ENI", "{ipam: {usedCount: 1, used: {10.0.0.1: {resource: " + strings.Repeat("a", 65) + "}}}}", "status.ipam.used.10.0.0.1.resource", "Too long"},
	{"owners of 1.2 MB in 400000 characters", "{ipam: {usedCount: 1, used: " + ownersOf(1200, 250, "\U0001F980") + "}}", "status.ipam.used.10.0.0.0.owner", "should match '^[!-~]*$'"},
	{"a UID of 256 bytes", "{ipam: {usedCount: 1, used: {10.0.0.1: {uid: " + strings.Repeat("\U0001F980", 64) + "}}}}", "status.ipam.used.10.0.0.1.uid", "should match '^[!-~]*$'"},
	{"an ENI of 256 bytes", "{ipam: {usedCount: 1, used: {10.0.0.1: {resource: " + strings.Repeat("\U0001F980", 64) + "}}}}", "status.ipam.used.10.0.0.1.resource", "should match '^[!-~]*$'"},
	{"an instance of 256 bytes", "{ipam: {usedCount: 1, instanceID: " + strings.Repeat("\U0001F980", 64) + "}}", "status.ipam.instanceID", "should match '^[!-~]*$'"},
	{"a line break in an owner", "{ipam: {usedCount: 1, used: {10.0.0.1: {owner: \"a/b\\nc\"}}}}", "status.ipam.used.10.0.0.1.owner", "should match '^[!-~]*$'"},
	{"a long instance", "{ipam: {usedCount: 1, instanceID: " + strings.Repeat("a", 65) + "}}", "status.ipam.instanceID", "Too long"},
}

// owners returns a map of count used addresses, each with an owner of size characters.
func owners(count, size int) string { return ownersOf(count, size, "a") }

func ownersOf(count, size int, character string) string {
	used := make(map[string]any, count)
	for i := range count {
		used[fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)] = map[string]string{"owner": strings.Repeat(character, size)}
	}
	text, err := json.Marshal(used)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func TestBadSpecIsRefused(t *testing.T) {
	c := clean(t)
	refuses(t, badSpecs, func(t *testing.T, spec string) error { return c.Create(t.Context(), nodeNetwork(t, "node-1", spec)) })
}

func TestBadStatusIsRefused(t *testing.T) {
	c := clean(t)
	n := create(t, c, "node-1", "")
	refuses(t, badStatuses, func(t *testing.T, status string) error { return changeStatus(t, c, n, status) })
}

func TestGoodSpecs(t *testing.T) {
	c := clean(t)
	for i, eni := range []string{
		"{minAllocate: 8, maxAllocate: 8}",
		"{minAllocate: 8, maxAllocate: 0}",
		"{warmENITarget: 1, minimumIPTarget: 30, warmPrefixTarget: 1, maxENIs: 4}",
		"{subnetTags: {}, subnetIDs: [subnet-0123456789abcdef0]}",
		"{vpcID: '', preAllocate: 0, firstInterfaceIndex: 0}",
		"{ipFamilies: ipv4}", "{ipFamilies: ipv6}", "{ipFamilies: dual}",
	} {
		create(t, c, fmt.Sprintf("node-%d", i), ", eni: "+eni)
	}
	create(t, c, "prefixes", ", ipam: {available: {10.0.0.16/28: {resource: eni-1}, 10.0.1.7: {resource: eni-1}, '2001:db8::7': {resource: eni-1}, '2001:db8:0:1:2::/80': {resource: eni-1}}}")
}

// The largest nodes on EC2 stay well below the API server's cost limit for validation rules.
func TestALargeNodeIsAccepted(t *testing.T) {
	c := clean(t)
	n := create(t, c, "node-1", "")
	addresses := map[string]any{}
	var list []string
	for i := range 4096 {
		a := fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
		if i >= 2048 { // dual-stack pods: one address of each family
			a = fmt.Sprintf("2001:db8:1234:5678:9abc:def0:1111:%x", i)
		}
		addresses[a] = map[string]string{"resource": "eni-0123456789abcdef0"}
		list = append(list, a)
	}
	spec, err := json.Marshal(map[string]any{"spec": map[string]any{"ipam": map[string]any{"available": addresses, "releasing": list}}})
	harness.OK(t, err)
	harness.OK(t, change(t, c, n, string(spec)))
	status, err := json.Marshal(map[string]any{"ipam": map[string]any{"usedCount": 4096, "used": addresses, "released": list}})
	harness.OK(t, err)
	harness.OK(t, changeStatus(t, c, n, string(status)))
}

// Every validation rule of these four CRDs has a test case.
func TestEveryRuleIsTried(t *testing.T) {
	tried := map[string]bool{poolName: true} // tested separately
	for _, tc := range slices.Concat(badSpecs, badStatuses, badPools, badPoolChanges, badBlocks, badBlockChanges, badRequestChanges) {
		tried[tc.why] = true
	}
	rules := 0
	var walk func(at string, s apiextensionsv1.JSONSchemaProps)
	walk = func(at string, s apiextensionsv1.JSONSchemaProps) {
		for _, rule := range s.XValidations {
			rules++
			if !tried[rule.Message] {
				t.Errorf("%s: no bad value makes the API server say %q", at, rule.Message)
			}
		}
		for name, p := range s.Properties {
			walk(at+"."+name, p)
		}
		if s.Items != nil {
			walk(at+"[]", *s.Items.Schema)
		}
	}
	for _, kind := range []string{"nodenetworks", "addresspools", "addressblocks", "blockrequests"} {
		before := rules
		walk(kind, *readCRD(t, kind).Spec.Versions[0].Schema.OpenAPIV3Schema)
		if rules == before {
			t.Errorf("%s: no validation rule found", kind)
		}
	}
	if rules < 45 {
		t.Errorf("found %d validation rules, want at least 45", rules)
	}
}

func readCRD(t *testing.T, kind string) (crd apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(harness.Tree(), "deploy", "chart", "files", "crds", "berth.dev_"+kind+".yaml"))
	harness.OK(t, err)
	harness.OK(t, yaml.UnmarshalStrict(data, &crd))
	return crd
}

// The API server adds no defaults: readers apply Cilium's defaults, and a template overrides only
// the fields that it sets.
func TestNodeNetworkHasNoDefaults(t *testing.T) {
	c := clean(t)
	if d := cmp.Diff(v1alpha1.ENISpec{}, create(t, c, "node-1", "").Spec.ENI); d != "" {
		t.Errorf("spec.eni when not set (-want +got):\n%s", d)
	}
	index, remove := int32(0), false
	got := create(t, c, "node-2", ", eni: {firstInterfaceIndex: 0, deleteOnTermination: false}")
	if d := cmp.Diff(v1alpha1.ENISpec{FirstInterfaceIndex: &index, DeleteOnTermination: &remove}, got.Spec.ENI); d != "" {
		t.Errorf("spec.eni with zero values set (-want +got):\n%s", d)
	}
}

// Writing the object leaves its status unchanged, and the other way round.
func TestStatusIsASubresource(t *testing.T) {
	c := clean(t)
	o := nodeNetwork(t, "node-1", with(""))
	o.Object["status"] = map[string]any{"ipam": map[string]any{"usedCount": int64(7)}}
	harness.OK(t, c.Create(t.Context(), o))
	n := read(t, c, "node-1")
	if n.Status.IPAM.UsedCount != 0 {
		t.Errorf("usedCount after Create() = %d, want 0", n.Status.IPAM.UsedCount)
	}
	n.Spec.InstanceType = "m5.xlarge"
	n.Status.IPAM.UsedCount = 3
	harness.OK(t, c.Status().Update(t.Context(), n))
	if n := read(t, c, "node-1"); n.Status.IPAM.UsedCount != 3 || n.Spec.InstanceType != "m5.large" {
		t.Errorf("after Status().Update(): usedCount = %d, instanceType = %s, want 3 and m5.large", n.Status.IPAM.UsedCount, n.Spec.InstanceType)
	}
}

// The columns of `kubectl get nodenetworks`, including the zone of -o wide.
func TestColumnsOfNodeNetworks(t *testing.T) {
	c := clean(t)
	n := create(t, c, "node-1", ", eni: {availabilityZone: us-west-2a}")
	n.Status.IPAM.UsedCount = 4
	n.Status.ENI = v1alpha1.ENIStatus{Count: 2, Available: 12, Needed: 0}
	n.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Served", LastTransitionTime: metav1.Now(),
	}}
	harness.OK(t, c.Status().Update(t.Context(), n))
	table := harness.KubeTable(t, v1alpha1.GroupVersion.WithResource("nodenetworks"))
	var head []string
	for _, column := range table.ColumnDefinitions {
		head = append(head, column.Name)
	}
	want := []string{"Name", "Instance", "Type", "Zone", "ENIs", "Available", "Used", "Needed", "Ready", "Reason", "Template", "Outdated", "Trunk", "Age"}
	if d := cmp.Diff(want, head); d != "" {
		t.Fatalf("columns (-want +got):\n%s", d)
	}
	row := fmt.Sprint(table.Rows[0].Cells[:10])
	if row != "[node-1 i-0123456789abcdef0 m5.large us-west-2a 2 12 4 0 True Served]" {
		t.Errorf("row = %s", row)
	}
}

func TestShortNameOfNodeNetworks(t *testing.T) {
	crd := readCRD(t, "nodenetworks")
	names := crd.Spec.Names
	if names.Plural != "nodenetworks" || len(names.ShortNames) != 1 || names.ShortNames[0] != "nn" || crd.Spec.Scope != "Cluster" {
		t.Errorf("names %+v, scope %s", names, crd.Spec.Scope)
	}
}

// The daemon and the operator each apply their own fields and leave the other's alone. ipam.available is atomic: entries
// that the operator omits are deleted.
func TestEachFieldHasOneWriter(t *testing.T) {
	c := clean(t)
	apply := func(owner, spec, status string) error {
		o := nodeNetwork(t, "node-1", spec)
		o.SetResourceVersion("")
		if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(owner)); err != nil {
			return err
		}
		if status == "" {
			return nil
		}
		s := ofKind(t, "NodeNetwork", "node-1", "status: "+status)
		return c.Status().Apply(t.Context(), client.ApplyConfigurationFromUnstructured(s), client.FieldOwner(owner))
	}
	daemon, operator := v1alpha1.OwnerDaemon, v1alpha1.OwnerOperator

	harness.OK(t, apply(daemon, with(", eni: {preAllocate: 16}"), "{ipam: {usedCount: 1, used: {10.0.0.4: {owner: default/a}}}}"))
	harness.OK(t, apply(operator, "{ipam: {available: {10.0.0.4: {resource: eni-1}, 10.0.0.5: {resource: eni-1}}}}",
		"{eni: {count: 1, available: 2, needed: 0}}"))
	harness.OK(t, apply(operator, "{ipam: {available: {10.0.0.4: {resource: eni-1}}}}", ""))

	n := read(t, c, "node-1")
	if n.Spec.InstanceID == "" || *n.Spec.ENI.PreAllocate != 16 || n.Status.IPAM.UsedCount != 1 {
		t.Errorf("the operator's writes changed what the daemon wrote: %+v", n)
	}
	if len(n.Spec.IPAM.Available) != 1 || n.Status.ENI.Available != 2 {
		t.Errorf("ipam.available = %v, want 10.0.0.4 only; status.eni = %+v, want 2 available", n.Spec.IPAM.Available, n.Status.ENI)
	}

	t.Run("a user's edit is kept", func(t *testing.T) {
		harness.OK(t, c.Patch(t.Context(), n, merge(t, "{spec: {eni: {preAllocate: 2}}}"), client.FieldOwner("kubectl-edit")))
		harness.OK(t, apply(operator, "{ipam: {available: {10.0.0.6: {resource: eni-1}}}}", ""))
		err := apply(daemon, with(", eni: {preAllocate: 16}"), "")
		if !apierrors.IsConflict(err) {
			t.Errorf("daemon applying spec.eni after the edit: %v, want a conflict", err)
		}
		if n := read(t, c, "node-1"); *n.Spec.ENI.PreAllocate != 2 {
			t.Errorf("preAllocate = %d, want 2 from the edit", *n.Spec.ENI.PreAllocate)
		}
	})
	t.Run("applying another owner's field is a conflict", func(t *testing.T) {
		err := apply("somebody", "{ipam: {available: {10.0.0.9: {resource: eni-9}}}}", "")
		if !apierrors.IsConflict(err) {
			t.Errorf("applying spec.ipam as somebody else: %v, want a conflict", err)
		}
	})
}

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
	{"an unknown operator", requirement("{key: a, operator: Near}"), "spec.nodeSelector.matchExpressions[0].operator", `supported values: "In", "NotIn", "Exists", "DoesNotExist"`},
	{"In without values", requirement("{key: a, operator: In}"), "spec.nodeSelector.matchExpressions[0]", "must have values with the operators In and NotIn, and none with Exists and DoesNotExist"},
	{"Exists with a value", requirement("{key: a, operator: Exists, values: [b]}"), "spec.nodeSelector.matchExpressions[0]", "must have values with the operators In and NotIn, and none with Exists and DoesNotExist"},
	{"an invalid key", requirement("{key: 'a b', operator: Exists}"), "spec.nodeSelector.matchExpressions[0].key", "should match"},
	{"an invalid value", requirement("{key: a, operator: In, values: ['b c']}"), "spec.nodeSelector.matchExpressions[0].values[0]", "should match"},
	{"a long label value", "{nodeSelector: {matchLabels: {a: " + strings.Repeat("b", 64) + "}}, eni: {}}", "spec.nodeSelector.matchLabels.a", "Too long"},
	{"an invalid label key", "{nodeSelector: {matchLabels: {'a b': c}}, eni: {}}", "spec.nodeSelector.matchLabels", "matchLabels must have valid label keys, such as topology.kubernetes.io/zone"},
}

func TestTemplates(t *testing.T) {
	c := clean(t)
	refuses(t, badTemplates, func(t *testing.T, spec string) error {
		return c.Create(t.Context(), ofKind(t, "NodeNetworkTemplate", "pods", "spec: "+spec))
	})
	accepts(t, c, "NodeNetworkTemplate", map[string]string{
		"all":   "{nodeSelector: {}, eni: {}}",
		"label": "{nodeSelector: {matchLabels: {node-restriction.kubernetes.io/pods: ''}}, eni: {subnetTags: {for: pods}, firstInterfaceIndex: 1}, priority: -5, outdatedENIs: Drain}",
		"other": requirement("{key: topology.kubernetes.io/zone, operator: NotIn, values: [a, b]}, {key: Gpu_1.x, operator: DoesNotExist}"),
	})
}
