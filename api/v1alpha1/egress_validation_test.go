package v1alpha1_test

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

// outside returns the spec of an Egress with further fields.
func outside(more string) string { return "{destinations: [0.0.0.0/0]" + more + "}" }

const (
	destinationText = "destinations must be CIDRs without host bits, such as 203.0.113.0/24, 0.0.0.0/0 or 2001:db8::/32"
	typeText        = "type must be Recreate or RollingUpdate"
	surgeText       = "maxSurge must be a number of pods, or a percentage such as 25%"
	unavailableText = "maxUnavailable must be a number of pods, or a percentage from 0% to 100%"
	affinityText    = "clientIP.timeoutSeconds must be from 1 to 86400"
	budgetText      = "podDisruptionBudget must have either minAvailable or maxUnavailable, but not both"
)

func TestGoodEgresses(t *testing.T) {
	accepts(t, clean(t), "Egress", map[string]string{
		"least": outside(""),
		"all": "{destinations: ['0.0.0.0/0', '::/0', 203.0.113.7/32, '2001:db8::/32'], replicas: 3, strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 10%, maxUnavailable: 0}}," +
			" template: {metadata: {labels: {a: b, example.com/c: ''}, annotations: {a: b c}}, spec: {nodeSelector: {a: b}, containers: [{name: egress, resources: {limits: {memory: 1Gi}}}]}}," +
			" sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}, fouSourcePortAuto: true, podDisruptionBudget: {maxUnavailable: 1}," +
			" tunnelTo: Service, clients: {namespaceSelector: {}, podSelector: {matchLabels: {a: b}}}, allowedNamespaces: {names: ['*']}, originatingOnly: true}",
		"none":     outside(", replicas: 0"),
		"recreate": outside(", strategy: {type: Recreate}"),
		"budget":   outside(", podDisruptionBudget: {minAvailable: 50%}"),
	})
}

var badEgresses = []refusal{
	{"no spec", "null", "spec", "Required value"},
	{"no destinations", "{}", "spec.destinations", "Required value"},
	{"empty destinations", "{destinations: []}", "spec.destinations", "should have at least 1 items"},
	{"a destination twice", "{destinations: [10.0.0.0/8, 10.0.0.0/8]}", "spec.destinations[1]", "Duplicate value"},
	{"an address without a prefix length", "{destinations: [203.0.113.1]}", "spec.destinations", destinationText},
	{"host bits", "{destinations: [203.0.113.1/24]}", "spec.destinations", destinationText},
	{"an IPv6 CIDR in upper case", "{destinations: ['2001:DB8::/32']}", "spec.destinations", destinationText},
	{"a host name", "{destinations: [example.com]}", "spec.destinations", destinationText},
	{"a destination of 44 characters", "{destinations: ['" + strings.Repeat("1", 44) + "']}", "spec.destinations[0]", "Too long"},
	{"replicas below 0", outside(", replicas: -1"), "spec.replicas", "should be greater than or equal to 0"},
	{"too many replicas", outside(", replicas: 1001"), "spec.replicas", "should be less than or equal to 1000"},
	{"an unknown strategy", outside(", strategy: {type: OnDelete}"), "spec.strategy.type", typeText},
	{"parameters of another strategy", outside(", strategy: {type: Recreate, rollingUpdate: {}}"), "spec.strategy.rollingUpdate", "rollingUpdate requires type RollingUpdate"},
	{"a surge below 0", outside(", strategy: {rollingUpdate: {maxSurge: -1}}"), "spec.strategy.rollingUpdate.maxSurge", surgeText},
	{"a surge that is neither a number nor a percentage", outside(", strategy: {rollingUpdate: {maxSurge: many}}"), "spec.strategy.rollingUpdate.maxSurge", surgeText},
	{"more than 100 % unavailable", outside(", strategy: {rollingUpdate: {maxUnavailable: 101%}}"), "spec.strategy.rollingUpdate.maxUnavailable", unavailableText},
	{"negative unavailable", outside(", strategy: {rollingUpdate: {maxUnavailable: -1}}"), "spec.strategy.rollingUpdate.maxUnavailable", unavailableText},
	{"neither surge nor unavailable", outside(", strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 0%}}"), "spec.strategy.rollingUpdate", "maxSurge and maxUnavailable cannot both be 0"},
	{"an invalid label key", outside(", template: {metadata: {labels: {'a b': c}}}"), "spec.template.metadata.labels", "labels must have valid keys, such as example.com/name"},
	{"an invalid label value", outside(", template: {metadata: {labels: {a: 'b c'}}}"), "spec.template.metadata.labels.a", "should match"},
	{"a long label", outside(", template: {metadata: {labels: {a: " + strings.Repeat("b", 64) + "}}}"), "spec.template.metadata.labels.a", "Too long"},
	{"a label in egress.berth.dev", outside(", template: {metadata: {labels: {egress.berth.dev/name: other}}}"), "spec.template.metadata.labels", "labels in the domain berth.dev are reserved for Berth"},
	{"a label in berth.dev", outside(", template: {metadata: {labels: {berth.dev/a: b}}}"), "spec.template.metadata.labels", "labels in the domain berth.dev are reserved for Berth"},
	{"an invalid annotation key", outside(", template: {metadata: {annotations: {'/a': b}}}"), "spec.template.metadata.annotations", "annotations must have valid keys, such as example.com/name"},
	{"a list as the pod spec", outside(", template: {spec: [a]}"), "spec.template.spec", "must be of type object"},
	{"an unknown session affinity", outside(", sessionAffinity: Cookie"), "spec.sessionAffinity", "Unsupported value"},
	{"affinity parameters without ClientIP affinity", outside(", sessionAffinity: None, sessionAffinityConfig: {clientIP: {timeoutSeconds: 1}}"), "spec.sessionAffinityConfig", "sessionAffinityConfig requires sessionAffinity ClientIP"},
	{"an affinity timeout of 0", outside(", sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}"), "spec.sessionAffinityConfig.clientIP", affinityText},
	{"an affinity timeout of more than a day", outside(", sessionAffinityConfig: {clientIP: {timeoutSeconds: 86401}}"), "spec.sessionAffinityConfig.clientIP", affinityText},
	{"empty affinity parameters", outside(", sessionAffinityConfig: {}"), "spec.sessionAffinityConfig.clientIP", affinityText},
	{"an empty budget", outside(", podDisruptionBudget: {}"), "spec.podDisruptionBudget", budgetText},
	{"both minAvailable and maxUnavailable", outside(", podDisruptionBudget: {minAvailable: 1, maxUnavailable: 1}"), "spec.podDisruptionBudget", budgetText},
	{"minAvailable below 0", outside(", podDisruptionBudget: {minAvailable: -1}"), "spec.podDisruptionBudget.minAvailable", "minAvailable must be a number of pods, or a percentage from 0% to 100%"},
	{"minAvailable above 100 %", outside(", podDisruptionBudget: {minAvailable: 101%}"), "spec.podDisruptionBudget.minAvailable", "minAvailable must be a number of pods, or a percentage from 0% to 100%"},
	{"maxUnavailable that is not a number", outside(", podDisruptionBudget: {maxUnavailable: some}"), "spec.podDisruptionBudget.maxUnavailable", unavailableText},
	{"an unknown tunnelTo", outside(", tunnelTo: Nodes"), "spec.tunnelTo", "Unsupported value"},
	{"a selector with many labels", outside(", clients: {podSelector: {matchLabels: {" + strings.ReplaceAll(counted(17), ",", ": a,") + ": a}}}"), "spec.clients.podSelector.matchLabels", "must have at most 16 items"},
	{"a selector with many values", outside(", clients: {namespaceSelector: {matchExpressions: [{key: a, operator: In, values: [" + counted(65) + "]}]}}"), "spec.clients.namespaceSelector.matchExpressions[0].values", "must have at most 64 items"},
	{"a selector with a long value", outside(", clients: {podSelector: {matchLabels: {a: " + strings.Repeat("v", 64) + "}}}"), "spec.clients.podSelector.matchLabels.a", "Too long"},
	{"clients that nothing selects", outside(", clients: {}"), "spec.clients", "clients must have a namespaceSelector, a podSelector or both"},
	{"an invalid namespace name", outside(", allowedNamespaces: {names: [A]}"), "spec.allowedNamespaces.names", "names must be namespace names, or *"},
}

func TestBadEgressIsRefused(t *testing.T) {
	c := clean(t)
	refuses(t, badEgresses, func(t *testing.T, spec string) error { return c.Create(t.Context(), newEgress(t, "nat", spec)) })
	harness.OK(t, c.Create(t.Context(), newEgress(t, "nat", outside(""))))
}

func TestNamesOfEgresses(t *testing.T) {
	c := clean(t)
	for name, good := range map[string]bool{
		"a": true, "nat-1": true, strings.Repeat("a", 52): true, strings.Repeat("a", 53): false, "1nat": false, "nat.a": false,
	} {
		err := c.Create(t.Context(), newEgress(t, name, outside("")))
		if (err == nil) != good || err != nil && !strings.Contains(err.Error(), "metadata: Invalid value") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Fields that are not set get the documented defaults, and tunnels lead to gateways.
func TestEgressDefaults(t *testing.T) {
	c := clean(t)
	harness.OK(t, c.Create(t.Context(), newEgress(t, "nat", outside(""))))
	e := &v1alpha1.Egress{}
	harness.OK(t, c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "nat"}, e))
	if *e.Spec.Replicas != 1 || e.Spec.SessionAffinity != "ClientIP" || e.Spec.TunnelTo != v1alpha1.TunnelToGateways || e.Spec.FouSourcePortAuto || e.Spec.OriginatingOnly {
		t.Errorf("spec = %+v, want the defaults", e.Spec)
	}
}

func TestBadEgressStatusIsRefused(t *testing.T) {
	c := clean(t)
	o := newEgress(t, "nat", outside(""))
	harness.OK(t, c.Create(t.Context(), o))
	refuses(t, []refusal{
		{"a gateway without its pod", "{gateways: [{name: a, addresses: [10.0.0.1]}]}", "status.gateways[0].uid", "Required value"},
		{"a gateway without addresses", "{gateways: [{name: a, uid: u}]}", "status.gateways[0].addresses", "Required value"},
		{"a gateway twice", "{gateways: [{name: a, uid: u, addresses: [10.0.0.1]}, {name: b, uid: u, addresses: [10.0.0.2]}]}", "status.gateways[1]", "Duplicate value"},
		{"three addresses of a gateway", "{gateways: [{name: a, uid: u, addresses: [10.0.0.1, 10.0.0.2, 10.0.0.3]}]}", "status.gateways[0].addresses", "must have at most 2 items"},
		{"three Service IPs", "{serviceIPs: [10.0.0.1, 10.0.0.2, 10.0.0.3]}", "status.serviceIPs", "must have at most 2 items"},
	}, func(t *testing.T, status string) error { return changeStatus(t, c, o, status) })
	harness.OK(t, changeStatus(t, c, o, "{gateways: [{name: a, uid: u, addresses: [10.0.0.1, '2001:db8::1'], ending: true}], serviceIPs: [10.96.0.1]}"))
}

func TestBadEgressClientIsRefused(t *testing.T) {
	c := clean(t)
	refuses(t, []refusal{
		{"no spec", "null", "spec", "Required value"},
		{"no pod", "{nodeName: a}", "spec.podUID", "Required value"},
		{"an empty pod", "{podUID: '', nodeName: a}", "spec.podUID", "should be at least 1 chars long"},
		{"no node", "{podUID: u}", "spec.nodeName", "Required value"},
		{"an Egress without its UID", "{podUID: u, nodeName: a, egresses: [{namespace: a, name: b}]}", "spec.egresses[0].uid", "Required value"},
		{"an Egress twice", "{podUID: u, nodeName: a, egresses: [{namespace: a, name: b, uid: c}, {namespace: a, name: b, uid: d}]}", "spec.egresses[1]", "Duplicate value"},
		{"a refusal without a reason", "{podUID: u, nodeName: a, refused: [{namespace: a, name: b, message: c}]}", "spec.refused[0].reason", "Required value"},
	}, func(t *testing.T, spec string) error {
		return c.Create(t.Context(), ofKind(t, "EgressClient", "web-0", "spec: "+spec))
	})
	o := ofKind(t, "EgressClient", "web-0", "spec: {podUID: u, nodeName: a, egresses: [{namespace: a, name: b, uid: c}]}")
	harness.OK(t, c.Create(t.Context(), o))
	refuses(t, []refusal{
		{"another pod", "{podUID: v}", "spec.podUID", "podUID cannot be changed"},
		{"another node", "{nodeName: b}", "spec.nodeName", "nodeName cannot be changed"},
	}, func(t *testing.T, spec string) error { return change(t, c, o, "{spec: "+spec+"}") })
	const addressesText = "addresses must be single IP addresses"
	refuses(t, []refusal{
		{"no state", "{node: {addresses: [10.0.0.1]}}", "status.node.state", "Required value"},
		{"an unknown state", "{node: {state: Ready}}", "status.node.state", "Unsupported value"},
		{"three addresses", "{node: {state: SetUp, addresses: [10.0.0.1, 10.0.0.2, 10.0.0.3]}}", "status.node.addresses", "must have at most 2 items"},
		{"not an address", "{node: {state: SetUp, addresses: [a]}}", "status.node.addresses", addressesText},
		{"a CIDR", "{node: {state: SetUp, addresses: [10.0.0.0/8]}}", "status.node.addresses", addressesText},
		{"loopback", "{node: {state: SetUp, addresses: [127.0.0.1]}}", "status.node.addresses", addressesText},
		{"multicast", "{node: {state: SetUp, addresses: ['ff02::1']}}", "status.node.addresses", addressesText},
		{"a line break in a message", "{node: {state: Failed, message: \"a\\nb\"}}", "status.node.message", "should match"},
		{"a long message", "{node: {state: Failed, message: " + strings.Repeat("a", 513) + "}}", "status.node.message", "Too long"},
		{"spaces in a reason", "{node: {state: Failed, reason: no way}}", "status.node.reason", "should match"},
	}, func(t *testing.T, status string) error { return changeStatus(t, c, o, status) })
	harness.OK(t, changeStatus(t, c, o, "{node: {state: SetUp, containerID: abc, addresses: [10.0.0.1, 'fd00::1'], egresses: [{namespace: a, name: b, uid: c}]}}"))
}

func TestBadEgressClientSliceIsRefused(t *testing.T) {
	c := clean(t)
	refuses(t, []refusal{
		{"a client without its pod", "[{addresses: [10.0.0.1]}]", "clients[0].uid", "Required value"},
		{"a client without addresses", "[{uid: u, addresses: []}]", "clients[0].addresses", "should have at least 1 items"},
		{"three addresses", "[{uid: u, addresses: [10.0.0.1, 10.0.0.2, 10.0.0.3]}]", "clients[0].addresses", "must have at most 2 items"},
		{"a client twice", "[{uid: u, addresses: [10.0.0.1]}, {uid: u, addresses: [10.0.0.2]}]", "clients[1]", "Duplicate value"},
		{"too many clients", "[" + strings.TrimSuffix(strings.Repeat("{uid: u, addresses: [10.0.0.1]},", 101), ",") + "]", "clients", "must have at most 100 items"},
	}, func(t *testing.T, clients string) error {
		return c.Create(t.Context(), ofKind(t, "EgressClientSlice", "nat-1", "clients: "+clients))
	})
	harness.OK(t, c.Create(t.Context(), ofKind(t, "EgressClientSlice", "nat-1", "clients: [{uid: u, pod: default/web-0, addresses: [10.0.0.1]}]")))
}
