package compile

import (
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/berthnet/berth/internal/policy"
)

// ClusterNetworkPolicy compiles a policy.networking.k8s.io ClusterNetworkPolicy
// (https://network-policy-api.sigs.k8s.io/reference/spec/). Unsupported fields fail closed, as the kind's documentation
// requires: an Accept rule matches nothing, any other rule denies everything.
func ClusterNetworkPolicy(in *networkpolicy.ClusterNetworkPolicy) Compiled {
	c := Compiled{
		Policy: &policy.Policy{Ref: policy.Ref{Name: in.Name}, Tier: policy.Admin, Priority: in.Spec.Priority},
		Sets:   map[policy.SetID]Selector{},
	}
	switch in.Spec.Tier {
	case networkpolicy.AdminTier:
	case networkpolicy.BaselineTier:
		c.Policy.Tier = policy.Baseline
	default:
		c.problem(fmt.Errorf("spec.tier: %q is neither Admin nor Baseline; treated as Admin", in.Spec.Tier))
	}
	c.Subject = c.clusterSubject(in.Spec.Subject)
	for i, r := range in.Spec.Ingress {
		field := fmt.Sprintf("spec.ingress[%d]", i)
		p, known := peers{}, true
		for j, from := range r.From {
			known = c.clusterPeer(fmt.Sprintf("%s.from[%d]", field, j), &p, from.Namespaces, from.Pods) && known
		}
		c.addClusterRule(policy.Ingress, field, r.Name, r.Action, p, r.Protocols, known)
	}
	for i, r := range in.Spec.Egress {
		field := fmt.Sprintf("spec.egress[%d]", i)
		p, known := peers{}, true
		for j, to := range r.To {
			known = c.egressPeer(fmt.Sprintf("%s.to[%d]", field, j), &p, to) && known
		}
		c.addClusterRule(policy.Egress, field, r.Name, r.Action, p, r.Protocols, known)
	}
	return c
}

func (c *Compiled) clusterSubject(in networkpolicy.ClusterNetworkPolicySubject) Selector {
	var p peers
	if !c.clusterPeer("spec.subject", &p, in.Namespaces, in.Pods) || len(p.pods) == 0 {
		c.NoSubject = true
		return Nothing
	}
	return p.pods[0]
}

// clusterPeer adds a peer that selects pods. known is false if the peer has none of the fields that Berth knows.
func (c *Compiled) clusterPeer(field string, p *peers, namespaces *metav1.LabelSelector, pods *networkpolicy.NamespacedPod) (known bool) {
	switch {
	case namespaces != nil:
		selected, err := parse(field+".namespaces", namespaces)
		if err != nil {
			c.problem(err)
		}
		p.add(Selector{Kind: Pods, Namespaces: selected, Labels: labels.Everything()})
		return err == nil
	case pods != nil:
		s, ok := c.podPeer(field+".pods", "", &pods.NamespaceSelector, &pods.PodSelector)
		p.add(s)
		return ok
	default:
		c.problem(fmt.Errorf("%s has no field that is supported: expected namespaces or pods", field))
		return false
	}
}

func (c *Compiled) egressPeer(field string, p *peers, to networkpolicy.ClusterNetworkPolicyEgressPeer) (known bool) {
	switch {
	case to.Nodes != nil:
		nodes, err := parse(field+".nodes", to.Nodes)
		if err != nil {
			c.problem(err)
			return false
		}
		p.nodes = append(p.nodes, Selector{Kind: Nodes, Labels: nodes})
		return true
	case len(to.Networks) > 0:
		for i, text := range to.Networks {
			block, err := netip.ParsePrefix(string(text))
			if err != nil {
				c.problem(fmt.Errorf("%s.networks[%d]: %w", field, i, err))
				return false
			}
			p.blocks = append(p.blocks, block.Masked())
		}
		return true
	case len(to.DomainNames) > 0:
		c.problem(fmt.Errorf("%s.domainNames is not supported: the rule matches none of them", field))
		return true
	}
	return c.clusterPeer(field, p, to.Namespaces, to.Pods)
}

// addClusterRule adds a rule; known is false if part of it is not supported.
func (c *Compiled) addClusterRule(d policy.Direction, field, name string, action networkpolicy.ClusterNetworkPolicyRuleAction, p peers, in []networkpolicy.ClusterNetworkPolicyProtocol, known bool) {
	r := policy.Rule{Name: name, AnyPort: len(in) == 0}
	switch action {
	case networkpolicy.ClusterNetworkPolicyRuleActionAccept:
		r.Action = policy.Accept
	case networkpolicy.ClusterNetworkPolicyRuleActionDeny:
		r.Action = policy.Deny
	case networkpolicy.ClusterNetworkPolicyRuleActionPass:
		r.Action = policy.Pass
	default:
		c.problem(fmt.Errorf("%s.action: %q is none of Accept, Deny and Pass", field, action))
		r.Action, known = policy.Deny, false
	}
	for i, protocol := range in {
		known = c.clusterPorts(d, fmt.Sprintf("%s.protocols[%d]", field, i), &r, p, protocol) && known
	}
	if known {
		c.finish(d, r, p, true)
	} else {
		c.Policy.Rules[d] = append(c.Policy.Rules[d], failedClosed(name, r.Action))
	}
}

// failedClosed replaces a rule that cannot be enforced. An Accept rule becomes a rule that matches nothing, so that later rules
// keep their index; any other rule denies everything.
func failedClosed(name string, action policy.Action) policy.Rule {
	if action == policy.Accept {
		return policy.Rule{Name: name}
	}
	return policy.Rule{Name: name, Action: policy.Deny, AnyPeer: true, AnyPort: true}
}

// clusterPorts adds what a protocol of a rule matches.
func (c *Compiled) clusterPorts(d policy.Direction, field string, r *policy.Rule, p peers, in networkpolicy.ClusterNetworkPolicyProtocol) (known bool) {
	var port *networkpolicy.Port
	var protocol uint8
	switch {
	case in.TCP != nil:
		protocol, port = 6, in.TCP.DestinationPort
	case in.UDP != nil:
		protocol, port = 17, in.UDP.DestinationPort
	case in.SCTP != nil:
		protocol, port = 132, in.SCTP.DestinationPort
	case in.DestinationNamedPort != "":
		return c.named(&r.Named, d, p, in.DestinationNamedPort, 0)
	default:
		c.problem(fmt.Errorf("%s has no field that is supported: expected tcp, udp, sctp or destinationNamedPort", field))
		return false
	}
	span := policy.Ports{Protocol: protocol, Last: 65535}
	switch {
	case port == nil:
	case port.Range != nil:
		span.First, span.Last = uint16(port.Range.Start), uint16(port.Range.End)
	case port.Number == 0:
		c.problem(fmt.Errorf("%s.destinationPort has no field that is supported: expected number or range", field))
		return false
	default:
		span.First, span.Last = uint16(port.Number), uint16(port.Number)
	}
	r.Ports = append(r.Ports, span)
	return true
}
