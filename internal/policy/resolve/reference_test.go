package resolve

import (
	"bufio"
	"context"
	"encoding/json"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	before "sigs.k8s.io/network-policy-api/apis/v1alpha1"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
	"github.com/berthnet/berth/internal/policy/policytest"
)

// question is a cluster as tools/policyreference reads it.
type question struct {
	Namespaces []corev1.Namespace
	Pods       []corev1.Pod
	Policies   []networkingv1.NetworkPolicy
	Admin      []before.AdminNetworkPolicy
	Baseline   []before.BaselineAdminNetworkPolicy
	Flows      []flow
}

type flow struct {
	Source, Destination netip.Addr
	Protocol            corev1.Protocol
	Port                uint16
}

// reference is the running evaluator of kube-network-policies.
type reference struct {
	out *json.Encoder
	in  *json.Decoder
}

// startReference starts the evaluator: a program of a module of its own, so that Berth's module does not require kube-network-policies.
func startReference(t *testing.T) reference {
	t.Helper()
	build := exec.CommandContext(t.Context(), "../../../hack/tool.sh", "policyreference", "policyreference")
	build.Stderr = t.Output()
	path, err := build.Output()
	if err != nil {
		t.Fatal("hack/tool.sh policyreference policyreference: ", err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), strings.TrimSpace(string(path)))
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("policyreference: %v\n%s", err, &stderr)
		}
	})
	return reference{out: json.NewEncoder(stdin), in: json.NewDecoder(bufio.NewReader(stdout))}
}

func (r reference) ask(t *rapid.T, q question) []bool {
	if err := r.out.Encode(q); err != nil {
		t.Fatal(err)
	}
	var answer []bool
	if err := r.in.Decode(&answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

// decisionsEach is how many flows each random cluster is asked about.
const decisionsEach = 250

// Berth decides about random clusters, policies and connections as the evaluator of kube-network-policies does.
func TestDecidesAsTheReference(t *testing.T) {
	evaluator := startReference(t)
	rapid.Check(t, func(t *rapid.T) {
		var q question
		r := New()
		for _, name := range policytest.Namespaces {
			ns := corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: policytest.Labels(t)}}
			q.Namespaces = append(q.Namespaces, ns)
			r.SetNamespace(name, ns.Labels)
			for _, pod := range policytest.Pods[:rapid.IntRange(1, len(policytest.Pods)).Draw(t, "pods")] {
				p := policytest.Pod(t, name, pod)
				q.Pods = append(q.Pods, *p)
				read, _ := ReadPod(p)
				r.SetPod(read)
			}
		}
		baseline := rapid.Bool().Draw(t, "baseline")
		for _, name := range []string{"p", "q", "r"} {
			p := policytest.Policy(t, rapid.SampledFrom(policytest.Namespaces).Draw(t, "namespace"), name)
			// The evaluator takes a policy of one direction as the end of the other one's judgement too: it skips
			// the Baseline tier there. Isolation is by direction.
			if baseline && len(p.Spec.PolicyTypes) == 1 {
				continue
			}
			q.Policies = append(q.Policies, *p)
			r.SetPolicy(compile.NetworkPolicy(p))
		}
		for _, name := range []string{"s", "t"} {
			p := policytest.ClusterPolicy(t, name, networkpolicy.AdminTier, networkpolicy.ClusterNetworkPolicyRuleActionAccept, networkpolicy.ClusterNetworkPolicyRuleActionDeny, networkpolicy.ClusterNetworkPolicyRuleActionPass)
			q.Admin = append(q.Admin, admin(t, p))
			r.SetPolicy(compile.ClusterNetworkPolicy(p))
		}
		if baseline { // the evaluator does not order several
			p := policytest.ClusterPolicy(t, "u", networkpolicy.BaselineTier, networkpolicy.ClusterNetworkPolicyRuleActionAccept, networkpolicy.ClusterNetworkPolicyRuleActionDeny)
			q.Baseline = append(q.Baseline, baselineOf(p))
			r.SetPolicy(compile.ClusterNetworkPolicy(p))
		}
		ends := [2][]netip.Addr{{policytest.Outside[0]}, {policytest.Outside[1]}}
		for _, p := range r.pods {
			ends[0], ends[1] = append(ends[0], p.Addrs[0]), append(ends[1], p.Addrs[1])
		}
		slices.SortFunc(ends[0], netip.Addr.Compare)
		slices.SortFunc(ends[1], netip.Addr.Compare)
		for _, family := range ends {
			for _, source := range family {
				for _, destination := range family {
					for _, protocol := range policytest.Protocols {
						for _, port := range policytest.Ports {
							if source != destination {
								q.Flows = append(q.Flows, flow{source, destination, protocol, port})
							}
						}
					}
				}
			}
		}
		step := max(1, len(q.Flows)/decisionsEach)
		first := rapid.IntRange(0, step-1).Draw(t, "first")
		var some []flow
		for i := first; i < len(q.Flows); i += step {
			some = append(some, q.Flows[i])
		}
		q.Flows = some
		for i, want := range evaluator.ask(t, q) {
			f := q.Flows[i]
			number, _ := compile.ProtocolOf(f.Protocol)
			if got := r.Judge(policy.Flow{Source: f.Source, Destination: f.Destination, Protocol: number, Port: f.Port}).Allowed(); got != want {
				text, _ := json.MarshalIndent(q.Policies, "", " ")
				t.Fatalf("%v: allowed %t, the reference says %t\n%s", f, got, want, text)
			}
		}
	})
}

// admin is a policy of the Admin tier as the kind before it, which the reference knows. It has the fields of the
// Baseline kind and a priority.
func admin(t *rapid.T, in *networkpolicy.ClusterNetworkPolicy) (out before.AdminNetworkPolicy) {
	text, err := json.Marshal(baselineOf(in))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	out.Spec.Priority = in.Spec.Priority
	return out
}

func baselineOf(in *networkpolicy.ClusterNetworkPolicy) (out before.BaselineAdminNetworkPolicy) {
	out.ObjectMeta = in.ObjectMeta
	out.Spec.Subject = before.AdminNetworkPolicySubject{Namespaces: in.Spec.Subject.Namespaces, Pods: podsBefore(in.Spec.Subject.Pods)}
	for _, r := range in.Spec.Ingress {
		rule := before.BaselineAdminNetworkPolicyIngressRule{Action: actionBefore(r.Action), Ports: portsBefore(r.Protocols)}
		for _, p := range r.From {
			rule.From = append(rule.From, before.AdminNetworkPolicyIngressPeer{Namespaces: p.Namespaces, Pods: podsBefore(p.Pods)})
		}
		out.Spec.Ingress = append(out.Spec.Ingress, rule)
	}
	for _, r := range in.Spec.Egress {
		rule := before.BaselineAdminNetworkPolicyEgressRule{Action: actionBefore(r.Action), Ports: portsBefore(r.Protocols)}
		for _, p := range r.To {
			peer := before.BaselineAdminNetworkPolicyEgressPeer{Namespaces: p.Namespaces, Pods: podsBefore(p.Pods)}
			for _, n := range p.Networks {
				peer.Networks = append(peer.Networks, before.CIDR(n))
			}
			rule.To = append(rule.To, peer)
		}
		out.Spec.Egress = append(out.Spec.Egress, rule)
	}
	return out
}

func podsBefore(in *networkpolicy.NamespacedPod) *before.NamespacedPod {
	if in == nil {
		return nil
	}
	return &before.NamespacedPod{NamespaceSelector: in.NamespaceSelector, PodSelector: in.PodSelector}
}

func actionBefore(a networkpolicy.ClusterNetworkPolicyRuleAction) before.BaselineAdminNetworkPolicyRuleAction {
	if a == networkpolicy.ClusterNetworkPolicyRuleActionAccept {
		return "Allow"
	}
	return before.BaselineAdminNetworkPolicyRuleAction(a)
}

func portsBefore(in []networkpolicy.ClusterNetworkPolicyProtocol) *[]before.AdminNetworkPolicyPort {
	if len(in) == 0 {
		return nil
	}
	var list []before.AdminNetworkPolicyPort
	for _, p := range in {
		protocol, port := corev1.ProtocolTCP, (*networkpolicy.Port)(nil)
		switch {
		case p.TCP != nil:
			port = p.TCP.DestinationPort
		case p.UDP != nil:
			protocol, port = corev1.ProtocolUDP, p.UDP.DestinationPort
		case p.SCTP != nil:
			protocol, port = corev1.ProtocolSCTP, p.SCTP.DestinationPort
		}
		if port.Range != nil {
			list = append(list, before.AdminNetworkPolicyPort{PortRange: &before.PortRange{Protocol: protocol, Start: port.Range.Start, End: port.Range.End}})
		} else {
			list = append(list, before.AdminNetworkPolicyPort{PortNumber: &before.Port{Protocol: protocol, Port: port.Number}})
		}
	}
	return &list
}
