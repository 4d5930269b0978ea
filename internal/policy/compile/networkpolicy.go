package compile

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berthnet/berth/internal/policy"
)

// NetworkPolicy compiles a networking.k8s.io/v1 NetworkPolicy
// (https://kubernetes.io/docs/reference/kubernetes-api/policy-resources/network-policy-v1/).
func NetworkPolicy(in *networkingv1.NetworkPolicy) Compiled {
	c := Compiled{
		Policy: &policy.Policy{Ref: policy.Ref{Namespace: in.Namespace, Name: in.Name}, Tier: policy.Namespaced},
		Sets:   map[policy.SetID]Selector{},
	}
	pods, err := parse("spec.podSelector", &in.Spec.PodSelector)
	if err != nil {
		c.problem(err)
	}
	c.Subject = Selector{Kind: Pods, Namespace: in.Namespace, Labels: pods}
	c.Policy.Isolates = isolates(in.Spec)
	if c.Policy.Isolates[policy.Ingress] {
		for i, r := range in.Spec.Ingress {
			field := fmt.Sprintf("spec.ingress[%d]", i)
			c.addRule(policy.Ingress, field, c.peers(field+".from", in.Namespace, r.From), r.Ports)
		}
	}
	if c.Policy.Isolates[policy.Egress] {
		for i, r := range in.Spec.Egress {
			field := fmt.Sprintf("spec.egress[%d]", i)
			c.addRule(policy.Egress, field, c.peers(field+".to", in.Namespace, r.To), r.Ports)
		}
	}
	return c
}

// isolates reads spec.policyTypes, with the API server's default.
func isolates(spec networkingv1.NetworkPolicySpec) (by [2]bool) {
	for _, t := range spec.PolicyTypes {
		switch t {
		case networkingv1.PolicyTypeIngress:
			by[policy.Ingress] = true
		case networkingv1.PolicyTypeEgress:
			by[policy.Egress] = true
		}
	}
	if len(spec.PolicyTypes) == 0 {
		by[policy.Ingress], by[policy.Egress] = true, len(spec.Egress) > 0
	}
	return by
}

// peers are the peers of a rule while it is compiled.
type peers struct {
	any    bool
	pods   []Selector
	nodes  []Selector
	blocks []netip.Prefix
}

func (c *Compiled) peers(field, namespace string, in []networkingv1.NetworkPolicyPeer) peers {
	p := peers{any: len(in) == 0}
	for i, peer := range in {
		field := fmt.Sprintf("%s[%d]", field, i)
		switch {
		case peer.IPBlock != nil:
			p.blocks = append(p.blocks, c.block(field+".ipBlock", peer.IPBlock)...)
		case peer.PodSelector != nil || peer.NamespaceSelector != nil:
			p.pods = append(p.pods, c.podPeer(field, namespace, peer.NamespaceSelector, peer.PodSelector))
		default:
			c.problem(fmt.Errorf("%s is empty: expected ipBlock, podSelector or namespaceSelector", field))
		}
	}
	return p
}

// podPeer is the selector of a peer that has a podSelector, a namespaceSelector or both.
func (c *Compiled) podPeer(field, namespace string, namespaces, pods *metav1.LabelSelector) Selector {
	s := Selector{Kind: Pods, Namespace: namespace, Labels: labels.Everything()}
	var err error
	if pods != nil {
		if s.Labels, err = parse(field+".podSelector", pods); err != nil {
			c.problem(err)
		}
	}
	if namespaces != nil {
		s.Namespace = ""
		if s.Namespaces, err = parse(field+".namespaceSelector", namespaces); err != nil {
			c.problem(err)
		}
	}
	return s
}

// block is an ipBlock without its exceptions; nothing if it cannot be read.
func (c *Compiled) block(field string, in *networkingv1.IPBlock) []netip.Prefix {
	cidr, err := netip.ParsePrefix(in.CIDR)
	if err != nil {
		c.problem(fmt.Errorf("%s.cidr: %w", field, err))
		return nil
	}
	var except []netip.Prefix
	for i, text := range in.Except {
		e, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			c.problem(fmt.Errorf("%s.except[%d]: %w", field, i, err))
			return nil
		case !cidr.Overlaps(e) || e.Bits() < cidr.Bits():
			c.problem(fmt.Errorf("%s.except[%d]: %s is not inside %s", field, i, e, cidr))
		}
		except = append(except, e)
	}
	return policy.Without(cidr, except)
}

// addRule adds a rule of a NetworkPolicy.
func (c *Compiled) addRule(d policy.Direction, field string, p peers, ports []networkingv1.NetworkPolicyPort) {
	r := policy.Rule{Action: policy.Accept, AnyPort: len(ports) == 0}
	for i, port := range ports {
		field := fmt.Sprintf("%s.ports[%d]", field, i)
		name := corev1.ProtocolTCP
		if port.Protocol != nil {
			name = *port.Protocol
		}
		protocol, known := ProtocolOf(name)
		if !known {
			c.problem(fmt.Errorf("%s.protocol: %q is none of TCP, UDP and SCTP", field, name))
			continue
		}
		if port.Port != nil && port.Port.Type == intstr.String {
			r.Named = append(r.Named, c.named(d, p, port.Port.StrVal, protocol)...)
			continue
		}
		span, err := portsOf(protocol, port)
		if err != nil {
			c.problem(fmt.Errorf("%s: %w", field, err))
			continue
		}
		r.Ports = append(r.Ports, span)
	}
	c.finish(d, r, p)
}

// portsOf reads numbers of ports: all, one, or up to endPort.
func portsOf(protocol uint8, port networkingv1.NetworkPolicyPort) (policy.Ports, error) {
	if port.Port == nil {
		return policy.Ports{Protocol: protocol, Last: 65535}, nil
	}
	first, last := port.Port.IntVal, port.Port.IntVal
	if port.EndPort != nil {
		last = *port.EndPort
	}
	if first < 1 || last > 65535 || last < first {
		return policy.Ports{}, fmt.Errorf("ports %d-%d: expected 1 to 65535, the first one first", first, last)
	}
	return policy.Ports{Protocol: protocol, First: uint16(first), Last: uint16(last)}, nil
}

// named returns the sets of destinations that call a port by a name: of the policy's own pods for Ingress,
// of its peers for Egress. A peer that is not a selector of pods may still be the address of any pod.
func (c *Compiled) named(d policy.Direction, p peers, name string, protocol uint8) []policy.SetID {
	if d == policy.Ingress {
		return []policy.SetID{c.use(c.Subject.named(name, protocol))}
	}
	if p.any || len(p.blocks) > 0 {
		return []policy.SetID{c.use(everyPod.named(name, protocol))}
	}
	var ids []policy.SetID
	for _, s := range p.pods {
		ids = append(ids, c.use(s.named(name, protocol)))
	}
	return ids
}

// finish adds a rule once its ports are known.
func (c *Compiled) finish(d policy.Direction, r policy.Rule, p peers) {
	r.AnyPeer, r.Blocks = p.any, policy.Disjoint(p.blocks)
	if c.blocks += len(r.Blocks); c.blocks > MaxBlocks {
		c.problem(fmt.Errorf("the blocks of the policy without their exceptions are more than %d networks: rules that exceed that match no address", MaxBlocks))
		if r.Blocks = nil; r.Action != policy.Accept {
			r.Action, r.AnyPeer, r.AnyPort = policy.Deny, true, true
		}
	}
	for _, s := range append(p.pods, p.nodes...) {
		r.Peers = append(r.Peers, c.use(s))
	}
	c.Policy.Rules[d] = append(c.Policy.Rules[d], r)
}
