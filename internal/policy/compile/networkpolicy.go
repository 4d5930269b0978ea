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
		Sets:   map[policy.SetID]Selector{}, Created: in.CreationTimestamp.Time,
	}
	pods, err := parse("spec.podSelector", &in.Spec.PodSelector)
	if c.NoSubject = err != nil; c.NoSubject {
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
	known  map[policy.SetID]bool // of pods
	tooBig bool                  // there are more sets than a policy may have; pods is incomplete

	manyBlocks bool // there are more networks than a policy may have; blocks is incomplete
}

// add adds a selector of pods unless the peers have it.
func (p *peers) add(s Selector) {
	id := s.ID()
	switch {
	case p.known[id]:
	case len(p.pods) >= MaxSets:
		p.tooBig = true
	default:
		if p.known == nil {
			p.known = map[policy.SetID]bool{}
		}
		p.known[id] = true
		p.pods = append(p.pods, s)
	}
}

func (c *Compiled) peers(field, namespace string, in []networkingv1.NetworkPolicyPeer) peers {
	p := peers{any: len(in) == 0}
	for i, peer := range in {
		field := fmt.Sprintf("%s[%d]", field, i)
		switch {
		case peer.IPBlock != nil:
			c.addBlock(&p, field+".ipBlock", peer.IPBlock)
		case peer.PodSelector != nil || peer.NamespaceSelector != nil:
			s, _ := c.podPeer(field, namespace, peer.NamespaceSelector, peer.PodSelector)
			p.add(s)
		default:
			c.problem(fmt.Errorf("%s is empty: expected ipBlock, podSelector or namespaceSelector", field))
		}
	}
	return p
}

// podPeer returns the selector of a peer with a podSelector, a namespaceSelector or both. ok is false if one of them is
// invalid, in which case it selects nothing.
func (c *Compiled) podPeer(field, namespace string, namespaces, pods *metav1.LabelSelector) (s Selector, ok bool) {
	s, ok = Selector{Kind: Pods, Namespace: namespace, Labels: labels.Everything()}, true
	var err error
	if pods != nil {
		if s.Labels, err = parse(field+".podSelector", pods); err != nil {
			c.problem(err)
			ok = false
		}
	}
	if namespaces != nil {
		s.Namespace = ""
		if s.Namespaces, err = parse(field+".namespaceSelector", namespaces); err != nil {
			c.problem(err)
			ok = false
		}
	}
	return s, ok
}

// addBlock adds an ipBlock without its exceptions, or nothing if it is invalid.
func (c *Compiled) addBlock(p *peers, field string, in *networkingv1.IPBlock) {
	cidr, err := netip.ParsePrefix(in.CIDR)
	if err != nil {
		c.problem(fmt.Errorf("%s.cidr: %w", field, err))
		return
	}
	var except []netip.Prefix
	for i, text := range in.Except {
		e, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			c.problem(fmt.Errorf("%s.except[%d]: %w", field, i, err))
			return
		case !cidr.Overlaps(e) || e.Bits() < cidr.Bits():
			c.problem(fmt.Errorf("%s.except[%d]: %s is not inside %s", field, i, e, cidr))
		}
		except = append(except, e)
	}
	room := MaxBlocks - c.blocks - len(p.blocks)
	blocks := policy.Without(cidr, except, room)
	if len(blocks) > room {
		p.manyBlocks = true
		return
	}
	p.blocks = append(p.blocks, blocks...)
}

// addRule adds a rule of a NetworkPolicy.
func (c *Compiled) addRule(d policy.Direction, field string, p peers, ports []networkingv1.NetworkPolicyPort) {
	r, fits := policy.Rule{Action: policy.Accept, AnyPort: len(ports) == 0}, true
	type portName struct {
		name     string
		protocol uint8
	}
	named := map[portName]bool{} // once each
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
			if name := (portName{port.Port.StrVal, protocol}); !named[name] {
				named[name] = true
				fits = fits && c.named(&r.Named, d, p, name.name, protocol)
			}
			continue
		}
		span, err := portsOf(protocol, port)
		if err != nil {
			c.problem(fmt.Errorf("%s: %w", field, err))
			continue
		}
		r.Ports = append(r.Ports, span)
	}
	c.finish(d, r, p, fits)
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

// named adds the sets of destinations with a named port: of the policy's own pods for Ingress, of its peers for Egress. A
// peer that is not a pod selector may still be the address of any pod. It returns false if the policy would exceed its
// limits.
func (c *Compiled) named(ids *[]policy.SetID, d policy.Direction, p peers, name string, protocol uint8) bool {
	if d == policy.Ingress {
		return c.use(ids, c.Subject.named(name, protocol))
	}
	if p.any || len(p.blocks) > 0 {
		return c.use(ids, everyPod.named(name, protocol))
	}
	for _, s := range p.pods {
		if !c.use(ids, s.named(name, protocol)) {
			return false
		}
	}
	return true
}

// finish adds a rule once its ports are known. fits is false if the policy would exceed its limits.
func (c *Compiled) finish(d policy.Direction, r policy.Rule, p peers, fits bool) {
	r.AnyPeer, r.Blocks = p.any, policy.Disjoint(p.blocks)
	if c.blocks += len(r.Blocks); p.manyBlocks || len(r.Blocks) > 0 && c.blocks > MaxBlocks {
		c.problem(fmt.Errorf("the ipBlocks of the policy, without their exceptions, consist of more than %d networks: rules that exceed this limit match no address", MaxBlocks))
		if r.Blocks = nil; r.Action != policy.Accept {
			r.Action, r.AnyPeer, r.AnyPort = policy.Deny, true, true
		}
	}
	within := c.parts <= MaxParts
	if c.parts += 1 + len(r.Ports); c.parts > MaxParts {
		if within {
			c.problem(fmt.Errorf("the policy has more than %d rules and ports: rules that exceed this limit match nothing", MaxParts))
		}
		fits = false
	}
	if p.tooBig {
		c.overflow()
		fits = false
	}
	for _, s := range append(p.pods, p.nodes...) {
		fits = fits && c.use(&r.Peers, s)
	}
	if !fits {
		r = failedClosed(r.Name, r.Action)
	}
	c.Policy.Rules[d] = append(c.Policy.Rules[d], r)
}
