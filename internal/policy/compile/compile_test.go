package compile

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/internal/policy"
)

func decode[T any](t *testing.T, text string) *T {
	t.Helper()
	o := new(T)
	if err := yaml.UnmarshalStrict([]byte("metadata: {name: p, namespace: shop}\nspec: "+text), o); err != nil {
		t.Fatal(err)
	}
	return o
}

// What makes no sense in a policy is named with its field, and never lets more through than the rest of the policy does.
func TestProblemsNameTheField(t *testing.T) {
	for name, tt := range map[string]struct {
		compiled Compiled
		want     string
		rules    string // of Ingress and Egress; what a problem concerns is left out
	}{
		"pod selector":          {NetworkPolicy(decode[networkingv1.NetworkPolicy](t, `{podSelector: {matchExpressions: [{key: a, operator: Near}]}}`)), `spec.podSelector: "Near" is not a valid label selector operator`, ""},
		"empty peer":            {NetworkPolicy(decode[networkingv1.NetworkPolicy](t, `{podSelector: {}, ingress: [{from: [{}]}]}`)), "spec.ingress[0].from[0] is empty: expected ipBlock, podSelector or namespaceSelector", "Accept from [] to any port"},
		"block":                 {NetworkPolicy(decode[networkingv1.NetworkPolicy](t, `{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0}}]}]}`)), "spec.ingress[0].from[0].ipBlock.cidr: ", "Accept from [] to any port"},
		"exception":             {NetworkPolicy(decode[networkingv1.NetworkPolicy](t, `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [all]}}]}]}`)), "spec.egress[0].to[0].ipBlock.except[0]: ", "Accept from [] to any port"},
		"exception outside":     {NetworkPolicy(decode[networkingv1.NetworkPolicy](t, `{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/24, except: [10.1.0.0/24]}}]}]}`)), "except[0]: 10.1.0.0/24 is not inside 10.0.0.0/24", "Accept from [10.0.0.0/24] to any port"},
		"protocol":              {NetworkPolicy(decode[networkingv1.NetworkPolicy](t, `{podSelector: {}, ingress: [{ports: [{protocol: ESP, port: 1}]}]}`)), `spec.ingress[0].ports[0].protocol: "ESP" is none of TCP, UDP and SCTP`, "Accept from any peer to []"},
		"endPort":               {NetworkPolicy(decode[networkingv1.NetworkPolicy](t, `{podSelector: {}, ingress: [{ports: [{port: 9, endPort: 8}]}]}`)), "spec.ingress[0].ports[0]: ports 9-8: expected 1 to 65535, the first one first", "Accept from any peer to []"},
		"millions of networks":  {NetworkPolicy(decode[networkingv1.NetworkPolicy](t, `{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: "::/0", except: [`+exceptions(1000)+`]}}]}]}`)), "consist of more than 20000 networks", "Accept from [] to any port"},
		"more blocks than that": {NetworkPolicy(decode[networkingv1.NetworkPolicy](t, `{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: "::/0", except: [`+exceptions(20000)+`]}}, {ipBlock: {cidr: 10.0.0.0/8}}]}, {from: [{podSelector: {}}]}]}`)), "consist of more than 20000 networks", "Accept from [] to any port; Accept from [] to any port"},
		"too many ports":        {NetworkPolicy(decode[networkingv1.NetworkPolicy](t, `{podSelector: {}, ingress: [{ports: [{port: 1}]}, {ports: [{port: 2}`+strings.Repeat(", {port: 3}", MaxParts)+`]}, {ports: [{port: 4}]}]}`)), "more than 10000 rules and ports: rules", "Accept from any peer to [{6 1 1}]; Accept from [] to []; Accept from [] to []"},
		"too many denied ports": {ClusterNetworkPolicy(decode[networkpolicy.ClusterNetworkPolicy](t, `{tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Pass, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: 1}}}`+strings.Repeat(", {tcp: {destinationPort: {number: 2}}}", MaxParts)+`]}]}`)), "more than 10000 rules and ports: rules", "Deny from any peer to any port"},
		"tier":                  {ClusterNetworkPolicy(decode[networkpolicy.ClusterNetworkPolicy](t, `{tier: Middle, priority: 1, subject: {namespaces: {}}}`)), `spec.tier: "Middle" is neither Admin nor Baseline`, ""},
		"subject":               {ClusterNetworkPolicy(decode[networkpolicy.ClusterNetworkPolicy](t, `{tier: Admin, priority: 1, subject: {}}`)), "spec.subject has no field that is supported", ""},
		"unknown accepted peer": {ClusterNetworkPolicy(decode[networkpolicy.ClusterNetworkPolicy](t, `{tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Accept, from: [{}]}]}`)), "spec.ingress[0].from[0] has no field that is supported", "Accept from [] to []"},
		"unknown denied peer":   {ClusterNetworkPolicy(decode[networkpolicy.ClusterNetworkPolicy](t, `{tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{}]}]}`)), "spec.ingress[0].from[0] has no field that is supported", "Deny from any peer to any port"},
		"action":                {ClusterNetworkPolicy(decode[networkpolicy.ClusterNetworkPolicy](t, `{tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Log, from: [{namespaces: {}}]}]}`)), `spec.ingress[0].action: "Log" is none of Accept, Deny and Pass`, "Deny from any peer to any port"},
		"unknown denied port":   {ClusterNetworkPolicy(decode[networkpolicy.ClusterNetworkPolicy](t, `{tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{}]}]}`)), "spec.ingress[0].protocols[0] has no field that is supported", "Deny from any peer to any port"},
		"unknown form of port":  {ClusterNetworkPolicy(decode[networkpolicy.ClusterNetworkPolicy](t, `{tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {}}}]}]}`)), "spec.ingress[0].protocols[0].destinationPort has no field that is supported", "Deny from any peer to any port"},
		"denied selector":       {ClusterNetworkPolicy(decode[networkpolicy.ClusterNetworkPolicy](t, `{tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {matchExpressions: [{key: a, operator: Near}]}}]}]}`)), `"Near" is not a valid label selector operator`, "Deny from any peer to any port"},
		"denied nodes":          {ClusterNetworkPolicy(decode[networkpolicy.ClusterNetworkPolicy](t, `{tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Pass, to: [{nodes: {matchExpressions: [{key: a, operator: Near}]}}]}]}`)), `"Near" is not a valid label selector operator`, "Deny from any peer to any port"},
		"accepted selector":     {ClusterNetworkPolicy(decode[networkpolicy.ClusterNetworkPolicy](t, `{tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Accept, from: [{namespaces: {matchExpressions: [{key: a, operator: Near}]}}]}]}`)), `"Near" is not a valid label selector operator`, "Accept from [] to []"},
		"network":               {ClusterNetworkPolicy(decode[networkpolicy.ClusterNetworkPolicy](t, `{tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [x]}]}]}`)), "spec.egress[0].to[0].networks[0]: ", "Deny from any peer to any port"},
	} {
		if len(tt.compiled.Problems) != 1 || !strings.Contains(tt.compiled.Problems[0], tt.want) {
			t.Errorf("%s: problems = %q, want one with %q", name, tt.compiled.Problems, tt.want)
		}
		var rules []string
		for _, r := range slices.Concat(tt.compiled.Policy.Rules[policy.Ingress], tt.compiled.Policy.Rules[policy.Egress]) {
			from, to := "any peer", "any port"
			if !r.AnyPeer {
				from = fmt.Sprint(r.Blocks)
			}
			if !r.AnyPort {
				to = fmt.Sprint(r.Ports)
			}
			rules = append(rules, fmt.Sprintf("%s from %s to %s", r.Action, from, to))
		}
		if got := strings.Join(rules, "; "); got != tt.rules {
			t.Errorf("%s: rules = %q, want %q", name, got, tt.rules)
		}
	}
}

// exceptions are n single addresses far from each other.
func exceptions(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("%q", fmt.Sprintf("%x::1/128", 0x1000+i)))
	}
	return strings.Join(all, ", ")
}

// Selectors of nothing and of everything have the same text, and are different sets.
func TestSetsOfNothingAndEverythingDiffer(t *testing.T) {
	bad := NetworkPolicy(decode[networkingv1.NetworkPolicy](t, `{podSelector: {matchExpressions: [{key: a, operator: Near}]}}`)).Subject
	all := NetworkPolicy(decode[networkingv1.NetworkPolicy](t, `{podSelector: {}}`)).Subject
	if bad.ID() == all.ID() || Nothing.ID() == everyPod.ID() {
		t.Errorf("a selector of nothing and one of everything are both set %s", all.ID())
	}
}

// A small policy with many peers and many port names, each pair of which is a set, cannot exhaust the operator or nodes.
func TestSetsOfAPolicyAreBounded(t *testing.T) {
	peers, ports := make([]string, 3000), make([]string, 3000)
	for i := range peers {
		peers[i], ports[i] = fmt.Sprintf("{podSelector: {matchLabels: {a: l%d}}}", i), fmt.Sprintf("{port: p%d}", i)
	}
	few := strings.Join(ports[:30], ", ")
	for name, tt := range map[string]struct {
		egress string
		rules  int
	}{
		"peers":      {fmt.Sprintf("[{to: [%s]}]", strings.Join(peers, ", ")), 1},
		"pairs":      {fmt.Sprintf("[{to: [%s], ports: [%s]}]", strings.Join(peers[:500], ", "), strings.Join(ports, ", ")), 1},
		"references": {"[" + strings.Repeat(fmt.Sprintf("{to: [%s], ports: [%s]}, ", strings.Join(peers[:30], ", "), few), 100) + "]", 100},
	} {
		c := NetworkPolicy(decode[networkingv1.NetworkPolicy](t, "{podSelector: {}, policyTypes: [Egress], egress: "+tt.egress+"}"))
		rules, refs := c.Policy.Rules[policy.Egress], 0
		for _, r := range rules {
			refs += len(r.Peers) + len(r.Named)
		}
		if len(c.Sets) > MaxSets || refs > MaxReferences || len(rules) != tt.rules || len(c.Problems) != 1 || !strings.Contains(c.Problems[0], "more than 1000 sets") {
			t.Errorf("%s: %d sets, %d references, %d rules, problems %q", name, len(c.Sets), refs, len(rules), c.Problems)
		}
		if last := rules[len(rules)-1]; len(last.Peers)+len(last.Named)+len(last.Blocks) > 0 || last.AnyPeer {
			t.Errorf("%s: the last rule matches something", name)
		}
	}
	again := make([]string, 3000)
	for i := range again {
		again[i] = "{podSelector: {}}"
	}
	c := NetworkPolicy(decode[networkingv1.NetworkPolicy](t, "{podSelector: {}, ingress: [{from: ["+strings.Join(again, ", ")+"]}]}"))
	if n := len(c.Policy.Rules[policy.Ingress][0].Peers); n != 1 || len(c.Problems) > 0 {
		t.Errorf("equal peers are %d sets: %q", n, c.Problems)
	}
}
