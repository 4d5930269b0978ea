package v1alpha1_test

import (
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

// aPort is the ID of the sample pods of the VPC and NIC design of Arktos.
const aPort = "a2815656-76f7-46d4-9d11-057063db1a14"

const (
	interfaceText = "interface must be a name such as eth0: 1 to 15 letters, digits, dots, hyphens and underscores, and not lo, all or default"
	ipText        = "ip must be a single IP address, such as 192.168.0.12"
	portExcludes  = "portID cannot be combined with addresses and securityGroups, which an existing port already has"
	portText      = "portID must be the ID of a port, such as " + aPort
)

var badNICs = []refusal{
	{"no spec", "null", "spec", "Required value"},
	{"no VPC", "{}", "spec.vpc", "Required value"},
	{"an empty VPC", "{vpc: ''}", "spec.vpc", "should be at least 1 chars long"},
	{"a pod without its interface", "{vpc: blue, pod: {name: web-0, uid: u}}", "spec.interface", "interface must be set if pod is set"},
	{"a pod without its UID", "{vpc: blue, interface: eth0, pod: {name: web-0}}", "spec.pod.uid", "Required value"},
	{"no interface", "{vpc: blue, interface: ''}", "spec.interface", interfaceText},
	{"the loopback interface", "{vpc: blue, interface: lo}", "spec.interface", interfaceText},
	{"a name that is a sysctl folder", "{vpc: blue, interface: all}", "spec.interface", interfaceText},
	{"a path as the interface name", "{vpc: blue, interface: ../eth0}", "spec.interface", interfaceText},
	{"a format string as the interface name", "{vpc: blue, interface: eth%d}", "spec.interface", interfaceText},
	{"a long interface name", "{vpc: blue, interface: abcdefghijklmnop}", "spec.interface", "Too long"},
	{"no addresses", "{vpc: blue, addresses: []}", "spec.addresses", "should have at least 1 items"},
	{"three addresses", "{vpc: blue, addresses: [{subnet: a}, {subnet: b}, {subnet: c}]}", "spec.addresses", "must have at most 2 items"},
	{"an empty address", "{vpc: blue, addresses: [{}]}", "spec.addresses[0]", "an address must have a subnet, an ip or both"},
	{"not an IP address", "{vpc: blue, addresses: [{ip: 192.168.0}]}", "spec.addresses[0].ip", ipText},
	{"a CIDR", "{vpc: blue, addresses: [{ip: 192.168.0.12/24}]}", "spec.addresses[0].ip", ipText},
	{"leading zeros", "{vpc: blue, addresses: [{ip: 192.168.0.012}]}", "spec.addresses[0].ip", ipText},
	{"an IPv4-mapped IPv6 address", "{vpc: blue, addresses: [{ip: '::ffff:192.168.0.12'}]}", "spec.addresses[0].ip", ipText},
	{"an IPv6 zone", "{vpc: blue, addresses: [{ip: 'fd00::1%eth0'}]}", "spec.addresses[0].ip", ipText},
	{"loopback", "{vpc: blue, addresses: [{ip: 127.0.0.1}]}", "spec.addresses[0].ip", ipText},
	{"link-local", "{vpc: blue, addresses: [{ip: 169.254.169.254}]}", "spec.addresses[0].ip", ipText},
	{"multicast", "{vpc: blue, addresses: [{ip: 'ff02::1'}]}", "spec.addresses[0].ip", ipText},
	{"broadcast", "{vpc: blue, addresses: [{ip: 255.255.255.255}]}", "spec.addresses[0].ip", ipText},
	{"two of one family", "{vpc: blue, addresses: [{ip: 192.168.0.12}, {ip: 192.168.0.13}]}", "spec.addresses", "addresses must have at most one ip per family"},
	{"a group twice", "{vpc: blue, securityGroups: [a, a]}", "spec.securityGroups[1]", "Duplicate value"},
	{"no groups", "{vpc: blue, securityGroups: []}", "spec.securityGroups", "should have at least 1 items"},
	{"a port with an address", "{vpc: blue, portID: " + aPort + ", addresses: [{ip: 192.168.0.12}]}", "spec.portID", portExcludes},
	{"a port with a subnet", "{vpc: blue, portID: " + aPort + ", addresses: [{subnet: subnet-1}]}", "spec.portID", portExcludes},
	{"a port with groups", "{vpc: blue, portID: " + aPort + ", securityGroups: [a]}", "spec.portID", portExcludes},
	{"an unknown binding", "{vpc: blue, binding: macvtap}", "spec.binding", "Unsupported value"},
	{"tap parameters without binding tap", "{vpc: blue, tap: {owner: 0}}", "spec.tap", "tap requires binding tap"},
	{"tap parameters with binding bridge", "{vpc: blue, binding: bridge, tap: {}}", "spec.tap", "tap requires binding tap"},
	{"a tap owner below 0", "{vpc: blue, binding: tap, tap: {owner: -1}}", "spec.tap.owner", "should be greater than or equal to 0"},
	{"a tap group above the maximum", "{vpc: blue, binding: tap, tap: {group: 4294967295}}", "spec.tap.group", "should be less than or equal to 4294967294"},
	{"a truncated port ID", "{vpc: blue, portID: a2815656}", "spec.portID", portText},
	{"a path as the port ID", "{vpc: blue, portID: '../../../networks/1'}", "spec.portID", portText},
}

func TestBadPodNICIsRefused(t *testing.T) {
	c := clean(t)
	refuses(t, badNICs, func(t *testing.T, spec string) error { return c.Create(t.Context(), newNIC(t, "web-0-eth0", spec)) })
}

func TestGoodPodNICs(t *testing.T) {
	accepts(t, clean(t), "PodNIC", map[string]string{
		"default": "{vpc: vpc-1a2b3c4d}",
		"subnet":  "{vpc: vpc-1a2b3c4d, addresses: [{subnet: subnet-1}]}",
		"ip":      "{vpc: vpc-1a2b3c4d, addresses: [{subnet: subnet-1, ip: 192.168.0.12}]}",
		"port":    "{vpc: vpc-1a2b3c4d, portID: " + aPort + "}",
		"groups":  "{vpc: vpc-1a2b3c4d, interface: eth0, addresses: [{subnet: subnet-1, ip: 192.168.0.12}], securityGroups: [aa5db150-a63d-4bd1-8d70-2dff67c6a5d9]}",
		"dual":    "{vpc: blue, addresses: [{ip: 192.168.0.12}, {ip: 'fd00:0:0:1::c'}]}",
		"subnets": "{vpc: blue, addresses: [{subnet: four}, {subnet: six, ip: 'fd00::c'}]}",
		"bridge":  "{vpc: blue, binding: bridge}",
		"tap":     "{vpc: blue, binding: tap}",
		"queues":  "{vpc: blue, portID: " + aPort + ", binding: tap, tap: {owner: 0, group: 4294967294, multiQueue: true}}",
		"of-pod":  "{vpc: blue, interface: net1.5_a-b, pod: {name: web-0, uid: 6b1f3c9e-0000-4000-8000-000000000000}}",
	})
}

// A NIC cannot be changed into a different one, but its security groups can change.
func TestPodNICChanges(t *testing.T) {
	c := clean(t)
	mine := newNIC(t, "web-0-eth0", "{vpc: blue, interface: eth0, pod: {name: web-0, uid: u}, addresses: [{subnet: a, ip: 10.0.0.5}], securityGroups: [g]}")
	users := newNIC(t, "db", "{vpc: blue}")
	ported := newNIC(t, "ported", "{vpc: blue, portID: "+aPort+"}")
	guest := newNIC(t, "guest", "{vpc: blue, binding: tap, tap: {owner: 0}}")
	for _, o := range []client.Object{mine, users, ported, guest} {
		harness.OK(t, c.Create(t.Context(), o))
	}
	respec := func(o *unstructured.Unstructured) func(*testing.T, string) error {
		return func(t *testing.T, spec string) error { return change(t, c, o, "{spec: "+spec+"}") }
	}
	refuses(t, []refusal{
		{"another VPC", "{vpc: red}", "spec.vpc", "vpc cannot be changed"},
		{"another pod", "{pod: {uid: v}}", "spec.pod", "pod cannot be changed"},
		{"pod removed", "{pod: null}", "spec.pod", "pod cannot be changed"},
		{"another interface", "{interface: eth1}", "spec.interface", "interface cannot be changed"},
		{"another address", "{addresses: [{subnet: a, ip: 10.0.0.6}]}", "spec.addresses", "addresses cannot be changed"},
		{"addresses removed", "{addresses: null}", "spec.addresses", "addresses cannot be changed"},
		{"a port instead of addresses", "{portID: " + aPort + ", addresses: null, securityGroups: null}", "spec.portID", "portID cannot be changed"},
	}, respec(mine))
	refuses(t, []refusal{
		{"a pod added", "{pod: {name: web-0, uid: u}, interface: eth0}", "spec.pod", "pod cannot be changed"},
		{"addresses added", "{addresses: [{ip: 10.0.0.5}]}", "spec.addresses", "addresses cannot be changed"},
	}, respec(users))
	refuses(t, []refusal{{"another port", "{portID: b" + aPort[1:] + "}", "spec.portID", "portID cannot be changed"}}, respec(ported))
	refuses(t, []refusal{{"a binding of one without", "{binding: bridge}", "spec.binding", "binding cannot be changed"}}, respec(users))
	refuses(t, []refusal{
		{"another binding", "{binding: bridge, tap: null}", "spec.binding", "binding cannot be changed"},
		{"binding removed", "{binding: null, tap: null}", "spec.binding", "binding cannot be changed"},
		{"another tap device", "{tap: {owner: 107}}", "spec.tap", "tap cannot be changed"},
	}, respec(guest))
	for _, groups := range []string{"{securityGroups: [g, h]}", "{securityGroups: null}"} {
		harness.OK(t, respec(mine)(t, groups))
	}
}

var badNICStatuses = []refusal{
	{"an unknown phase", "{phase: Ready}", "status.phase", "Unsupported value"},
	{"an unknown plug type", "{plug: {type: SRIOV}}", "status.plug.type", "Unsupported value"},
	{"an unknown state", "{node: {state: Here, portID: p}}", "status.node.state", "Unsupported value"},
	{"a state without a port ID", "{node: {state: Plugged}}", "status.node.portID", "Required value"},
	{"a long message", "{node: {state: Failed, portID: p, message: " + strings.Repeat("a", 513) + "}}", "status.node.message", "Too long"},
	{"a line break in a message", "{node: {state: Failed, portID: p, message: \"a\\nb\"}}", "status.node.message", "should match"},
	{"a long host interface name", "{node: {state: Plugged, portID: p, hostInterface: abcdefghijklmnop}}", "status.node.hostInterface", "Too long"},
	{"a long container ID", "{node: {state: Plugged, portID: p, containerID: " + strings.Repeat("a", 129) + "}}", "status.node.containerID", "Too long"},
}

func TestBadPodNICStatusIsRefused(t *testing.T) {
	c := clean(t)
	o := newNIC(t, "web-0-eth0", "{vpc: blue}")
	harness.OK(t, c.Create(t.Context(), o))
	refuses(t, badNICStatuses, func(t *testing.T, status string) error {
		again := o.DeepCopy()
		again.Object["status"] = ofKind(t, "PodNIC", "x", "status: "+status).Object["status"]
		return c.Status().Update(t.Context(), again)
	})
}

// A daemon lists only the NICs of its own node.
func TestPodNICsOfANode(t *testing.T) {
	c := clean(t)
	for name, node := range map[string]string{"a": "node-a", "b": "node-b", "none": ""} {
		o := newNIC(t, name, "{vpc: blue}")
		harness.OK(t, c.Create(t.Context(), o))
		if node == "" {
			continue
		}
		o.Object["status"] = map[string]any{"nodeName": node}
		harness.OK(t, c.Status().Update(t.Context(), o))
	}
	list := &v1alpha1.PodNICList{}
	harness.OK(t, c.List(t.Context(), list, client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("status.nodeName", "node-a")}))
	if len(list.Items) != 1 || list.Items[0].Name != "a" {
		t.Errorf("got %v, want the one of node-a", list.Items)
	}
}

var badPolicies = []refusal{
	{"no selector", "{vpc: a}", "spec", "spec must have a podSelector, a serviceAccountSelector or both; an empty selector selects all pods"},
	{"no security groups, subnet or VPC", "{podSelector: {}}", "spec", "spec must have securityGroups, a subnet or a vpc"},
	{"an invalid VPC name", "{podSelector: {}, vpc: A_b}", "spec.vpc", "should match"},
	{"a long VPC name", "{podSelector: {}, vpc: " + strings.Repeat("a", 64) + "}", "spec.vpc", "Too long"},
	{"an empty subnet", "{podSelector: {}, subnet: ''}", "spec.subnet", "at least 1 chars long"},
	{"no groups", "{podSelector: {}, securityGroups: []}", "spec.securityGroups", "should have at least 1 items"},
	{"a group twice", "{podSelector: {}, securityGroups: [a, a]}", "spec.securityGroups[1]", "Duplicate value"},
	{"an empty VPC", "{podSelector: {}, vpc: ''}", "spec.vpc", "at least 1 chars long"},
	{"a long subnet name", "{podSelector: {}, subnet: " + strings.Repeat("a", 256) + "}", "spec.subnet", "Too long"},
	{"17 groups", "{podSelector: {}, securityGroups: [" + counted(17) + "]}", "spec.securityGroups", "must have at most 16 items"},
	{"an empty group", "{podSelector: {}, securityGroups: ['']}", "spec.securityGroups[0]", "at least 1 chars long"},
	{"a long group", "{podSelector: {}, securityGroups: [" + strings.Repeat("a", 256) + "]}", "spec.securityGroups[0]", "Too long"},
	{"an unknown operator", "{podSelector: {matchExpressions: [{key: a, operator: Near}]}, vpc: a}", "spec.podSelector.matchExpressions[0].operator", `supported values: "In", "NotIn", "Exists", "DoesNotExist"`},
	{"In without values", "{serviceAccountSelector: {matchExpressions: [{key: a, operator: In}]}, vpc: a}", "spec.serviceAccountSelector.matchExpressions[0]", "must have values with the operators In and NotIn, and none with Exists and DoesNotExist"},
	{"In with an empty list", "{podSelector: {matchExpressions: [{key: a, operator: In, values: []}]}, vpc: a}", "spec.podSelector.matchExpressions[0]", "matchExpressions must have values with the operators In and NotIn"},
	{"NotIn without values", "{podSelector: {matchExpressions: [{key: a, operator: NotIn}]}, vpc: a}", "spec.podSelector.matchExpressions[0]", "matchExpressions must have values with the operators In and NotIn"},
	{"Exists with a value", "{podSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}, vpc: a}", "spec.podSelector.matchExpressions[0]", "matchExpressions must have values with the operators In and NotIn, and none with Exists and DoesNotExist"},
	{"DoesNotExist with a value", "{serviceAccountSelector: {matchExpressions: [{key: a, operator: DoesNotExist, values: [b]}]}, vpc: a}", "spec.serviceAccountSelector.matchExpressions[0]", "and none with Exists and DoesNotExist"},
	{"an invalid key", "{podSelector: {matchExpressions: [{key: 'a b', operator: Exists}]}, vpc: a}", "spec.podSelector.matchExpressions[0].key", "should match"},
	{"no key", "{podSelector: {matchExpressions: [{operator: Exists}]}, vpc: a}", "spec.podSelector.matchExpressions[0].key", "Required value"},
	{"an invalid value", "{podSelector: {matchExpressions: [{key: a, operator: In, values: ['b c']}]}, vpc: a}", "spec.podSelector.matchExpressions[0].values[0]", "should match"},
	{"a value twice", "{podSelector: {matchExpressions: [{key: a, operator: In, values: [b, b]}]}, vpc: a}", "spec.podSelector.matchExpressions[0].values[1]", "Duplicate value"},
	{"65 values", "{podSelector: {matchExpressions: [{key: a, operator: In, values: [" + counted(65) + "]}]}, vpc: a}", "spec.podSelector.matchExpressions[0].values", "must have at most 64 items"},
	{"17 expressions", "{podSelector: {matchExpressions: [" + strings.TrimSuffix(strings.Repeat("{key: a, operator: Exists}, ", 17), ", ") + "]}, vpc: a}", "spec.podSelector.matchExpressions", "must have at most 16 items"},
	{"an invalid label key", "{serviceAccountSelector: {matchLabels: {'a b': c}}, vpc: a}", "spec.serviceAccountSelector.matchLabels", "matchLabels must have valid label keys, such as topology.kubernetes.io/zone"},
	{"an invalid label value", "{podSelector: {matchLabels: {a: 'b c'}}, vpc: a}", "spec.podSelector.matchLabels.a", "should match"},
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
		return c.Create(t.Context(), ofKind(t, "NICPolicy", name, "spec: "+spec))
	}
	refuses(t, badPolicies, func(t *testing.T, spec string) error { return policy("db", spec) })
	accepts(t, c, "NICPolicy", map[string]string{
		"all":      "{podSelector: {}, vpc: a}",
		"accounts": "{serviceAccountSelector: {matchLabels: {role: db}}, subnet: a}",
		"most":     "{podSelector: {matchLabels: {a: ''}}, subnet: " + strings.Repeat("a", 255) + ", securityGroups: [" + counted(16) + "]}",
		"both":     "{podSelector: {matchExpressions: [{key: example.com/app, operator: Exists}]}, serviceAccountSelector: {}, securityGroups: [a, b]}",
	})
	if err := policy(strings.Repeat("a", 64), "{podSelector: {}, vpc: a}"); err == nil || !strings.Contains(err.Error(), "metadata.name must be at most 63 characters long") {
		t.Errorf("a long name: %v", err)
	}
}
