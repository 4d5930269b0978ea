package v1alpha1_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berthnet/berth/test/harness"
)

func newEgress(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	o := ofKind(t, "Egress", name, "spec: "+spec)
	o.SetNamespace("default")
	return o
}

// outside is the spec of an Egress with further fields.
func outside(more string) string { return "{destinations: [0.0.0.0/0]" + more + "}" }

const (
	destinationText = "destinations must be CIDRs without host bits, such as 203.0.113.0/24, 0.0.0.0/0 or 2001:db8::/32"
	typeText        = "type must be Recreate or RollingUpdate"
)

func TestGoodEgresses(t *testing.T) {
	c := clean(t)
	for name, spec := range map[string]string{
		"least": outside(""),
		"all": "{destinations: ['0.0.0.0/0', '::/0', 203.0.113.7/32, '2001:db8::/32'], replicas: 3, strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 10%, maxUnavailable: 0}}," +
			" template: {metadata: {labels: {a: b, example.com/c: ''}, annotations: {a: b c}}, spec: {nodeSelector: {a: b}, containers: [{name: egress, resources: {limits: {memory: 1Gi}}}]}}," +
			" sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}, fouSourcePortAuto: true, podDisruptionBudget: {maxUnavailable: 1}," +
			" tunnelTo: Service, clients: {namespaceSelector: {}, podSelector: {matchLabels: {a: b}}}, allowedNamespaces: {names: ['*']}, originatingOnly: true}",
		"none":     outside(", replicas: 0"),
		"recreate": outside(", strategy: {type: Recreate}"),
		"budget":   outside(", podDisruptionBudget: {minAvailable: 50%}"),
	} {
		if err := c.Create(t.Context(), newEgress(t, name, spec)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

var badEgresses = []refusal{
	{"no spec", "null", "spec", "Required value"},
	{"no destinations", "{}", "spec.destinations", "Required value"},
	{"empty destinations", "{destinations: []}", "spec.destinations", "should have at least 1 items"},
	{"a destination twice", "{destinations: [10.0.0.0/8, 10.0.0.0/8]}", "spec.destinations[1]", "Duplicate value"},
	{"an address", "{destinations: [203.0.113.1]}", "spec.destinations", destinationText},
	{"host bits", "{destinations: [203.0.113.1/24]}", "spec.destinations", destinationText},
	{"another spelling", "{destinations: ['2001:DB8::/32']}", "spec.destinations", destinationText},
	{"a name", "{destinations: [example.com]}", "spec.destinations", destinationText},
	{"a long text", "{destinations: ['" + strings.Repeat("1", 44) + "']}", "spec.destinations[0]", "Too long"},
	{"replicas below 0", outside(", replicas: -1"), "spec.replicas", "should be greater than or equal to 0"},
	{"too many replicas", outside(", replicas: 1001"), "spec.replicas", "should be less than or equal to 1000"},
	{"an unknown strategy", outside(", strategy: {type: OnDelete}"), "spec.strategy.type", typeText},
	{"parameters of another strategy", outside(", strategy: {type: Recreate, rollingUpdate: {}}"), "spec.strategy.rollingUpdate", "rollingUpdate is of type RollingUpdate"},
}

func TestBadEgressIsRefused(t *testing.T) {
	c := clean(t)
	refuses(t, badEgresses, func(t *testing.T, spec string) error { return c.Create(t.Context(), newEgress(t, "nat", spec)) })
	harness.OK(t, c.Create(t.Context(), newEgress(t, "nat", outside(""))))
}
