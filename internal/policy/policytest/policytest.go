// Package policytest draws random clusters and policies. Their alphabet is small, so that selectors meet pods.
package policytest

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1beta1"
)

// Names, addresses and ports of random clusters.
var (
	Namespaces = []string{"red", "green", "blue"}
	Pods       = []string{"a", "b", "c", "d"} // of each namespace
	Outside    = []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("fd01::7")}
	Protocols  = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	Ports      = []uint16{79, 80, 81}
	LabelKeys  = []string{"app", "tier"}
)

// The rest of the alphabet.
var (
	labelValues = []string{"x", "y"}
	portNames   = []string{"http", "dns"}
	blocks      = []string{"10.0.0.0/8", "10.0.0.0/21", "10.0.4.0/24", "0.0.0.0/0", "192.0.2.0/24", "fd00::/8", "fd00:4::/32"}
)

// Labels draws the labels of a pod, a namespace or a node.
func Labels(t *rapid.T) map[string]string {
	of := map[string]string{}
	for _, key := range LabelKeys {
		if v := rapid.SampledFrom(append(labelValues, "")).Draw(t, key); v != "" {
			of[key] = v
		}
	}
	return of
}

// Pod draws a pod of Namespaces and Pods, with its own addresses.
func Pod(t *rapid.T, namespace, name string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name), Labels: Labels(t)}}
	p.Spec.NodeName = rapid.SampledFrom([]string{"one", "two"}).Draw(t, "node")
	for i, of := range Namespaces {
		for j, n := range Pods {
			if of == namespace && n == name {
				p.Status.PodIPs = []corev1.PodIP{{IP: fmt.Sprintf("10.0.%d.2", 4*i+j)}, {IP: netip.MustParseAddr(fmt.Sprintf("fd00:%x::2", 4*i+j)).String()}}
			}
		}
	}
	c := corev1.Container{Name: "c"}
	for _, name := range portNames {
		if n := rapid.SampledFrom([]int32{0, 80, 81}).Draw(t, "port"); n > 0 {
			c.Ports = append(c.Ports, corev1.ContainerPort{Name: name, ContainerPort: n, Protocol: rapid.SampledFrom(Protocols).Draw(t, "protocol")})
		}
	}
	p.Spec.Containers = []corev1.Container{c}
	return p
}

// Selector draws a label selector.
func Selector(t *rapid.T) *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	key, value := rapid.SampledFrom(LabelKeys).Draw(t, "key"), rapid.SampledFrom(labelValues).Draw(t, "value")
	switch rapid.IntRange(0, 4).Draw(t, "selector") {
	case 0: // everything
	case 1, 2:
		s.MatchLabels = map[string]string{key: value}
	case 3:
		s.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: key, Operator: metav1.LabelSelectorOpNotIn, Values: []string{value}}}
	case 4:
		s.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: key, Operator: metav1.LabelSelectorOpDoesNotExist}}
	}
	return s
}

func drawPeers(t *rapid.T) []networkingv1.NetworkPolicyPeer {
	var list []networkingv1.NetworkPolicyPeer
	for range rapid.IntRange(0, 2).Draw(t, "peers") {
		var p networkingv1.NetworkPolicyPeer
		switch rapid.IntRange(0, 3).Draw(t, "peer") {
		case 0:
			p.PodSelector = Selector(t)
		case 1:
			p.NamespaceSelector = Selector(t)
		case 2:
			p.PodSelector, p.NamespaceSelector = Selector(t), Selector(t)
		case 3:
			p.IPBlock = &networkingv1.IPBlock{CIDR: rapid.SampledFrom(blocks).Draw(t, "block")}
			outer := netip.MustParsePrefix(p.IPBlock.CIDR)
			for range rapid.IntRange(0, 2).Draw(t, "exceptions") {
				if e := netip.MustParsePrefix(rapid.SampledFrom(blocks).Draw(t, "except")); outer.Overlaps(e) && e.Bits() > outer.Bits() {
					p.IPBlock.Except = append(p.IPBlock.Except, e.String())
				}
			}
		}
		list = append(list, p)
	}
	return list
}

func drawPorts(t *rapid.T) []networkingv1.NetworkPolicyPort {
	var list []networkingv1.NetworkPolicyPort
	for range rapid.IntRange(0, 2).Draw(t, "ports") {
		protocol := rapid.SampledFrom(Protocols).Draw(t, "protocol")
		p := networkingv1.NetworkPolicyPort{Protocol: &protocol}
		switch rapid.IntRange(0, 3).Draw(t, "kind of port") {
		case 0: // all of the protocol
		case 1:
			p.Port = new(intstr.FromInt32(rapid.SampledFrom([]int32{80, 81}).Draw(t, "number")))
		case 2:
			p.Port, p.EndPort = new(intstr.FromInt32(79)), new(rapid.SampledFrom([]int32{79, 80}).Draw(t, "end"))
		case 3:
			p.Port = new(intstr.FromString(rapid.SampledFrom(portNames).Draw(t, "name")))
		}
		list = append(list, p)
	}
	return list
}

// Policy draws a NetworkPolicy.
func Policy(t *rapid.T, namespace, name string) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	p.Spec.PodSelector = *Selector(t)
	types := rapid.IntRange(1, 3).Draw(t, "types")
	if types&1 != 0 {
		p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress)
		for range rapid.IntRange(0, 2).Draw(t, "ingress") {
			p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: drawPeers(t), Ports: drawPorts(t)})
		}
	}
	if types&2 != 0 {
		p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		for range rapid.IntRange(0, 2).Draw(t, "egress") {
			p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: drawPeers(t), Ports: drawPorts(t)})
		}
	}
	return p
}

func podPeer(t *rapid.T) (namespaces *metav1.LabelSelector, pods *networkpolicy.NamespacedPod) {
	if rapid.Bool().Draw(t, "namespaces") {
		return Selector(t), nil
	}
	return nil, &networkpolicy.NamespacedPod{NamespaceSelector: *Selector(t), PodSelector: *Selector(t)}
}

func drawProtocols(t *rapid.T) []networkpolicy.ClusterNetworkPolicyProtocol {
	var list []networkpolicy.ClusterNetworkPolicyProtocol
	for range rapid.IntRange(0, 2).Draw(t, "protocols") {
		port := &networkpolicy.Port{Number: rapid.SampledFrom([]int32{80, 81}).Draw(t, "number")}
		if rapid.Bool().Draw(t, "range") {
			port = &networkpolicy.Port{Range: &networkpolicy.PortRange{Start: 79, End: 80}}
		}
		var p networkpolicy.ClusterNetworkPolicyProtocol
		switch rapid.IntRange(0, 2).Draw(t, "protocol") {
		case 0:
			p.TCP = &networkpolicy.ClusterNetworkPolicyProtocolTCP{DestinationPort: port}
		case 1:
			p.UDP = &networkpolicy.ClusterNetworkPolicyProtocolUDP{DestinationPort: port}
		case 2:
			p.SCTP = &networkpolicy.ClusterNetworkPolicyProtocolSCTP{DestinationPort: port}
		}
		list = append(list, p)
	}
	return list
}

// ClusterPolicy draws a ClusterNetworkPolicy whose rules have some of the actions. It has no peers but pods and networks, and no named
// ports.
func ClusterPolicy(t *rapid.T, name string, tier networkpolicy.Tier, actions ...networkpolicy.ClusterNetworkPolicyRuleAction) *networkpolicy.ClusterNetworkPolicy {
	p := &networkpolicy.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Tier, p.Spec.Priority = tier, int32(rapid.IntRange(0, 2).Draw(t, "priority"))
	p.Spec.Subject.Namespaces, p.Spec.Subject.Pods = podPeer(t)
	for range rapid.IntRange(0, 2).Draw(t, "ingress") {
		r := networkpolicy.ClusterNetworkPolicyIngressRule{Action: rapid.SampledFrom(actions).Draw(t, "action"), Protocols: drawProtocols(t)}
		for range rapid.IntRange(1, 2).Draw(t, "from") {
			var peer networkpolicy.ClusterNetworkPolicyIngressPeer
			peer.Namespaces, peer.Pods = podPeer(t)
			r.From = append(r.From, peer)
		}
		p.Spec.Ingress = append(p.Spec.Ingress, r)
	}
	for range rapid.IntRange(0, 2).Draw(t, "egress") {
		r := networkpolicy.ClusterNetworkPolicyEgressRule{Action: rapid.SampledFrom(actions).Draw(t, "action"), Protocols: drawProtocols(t)}
		for range rapid.IntRange(1, 2).Draw(t, "to") {
			var peer networkpolicy.ClusterNetworkPolicyEgressPeer
			if rapid.Bool().Draw(t, "networks") {
				peer.Networks = []networkpolicy.CIDR{networkpolicy.CIDR(rapid.SampledFrom(blocks).Draw(t, "network"))}
			} else {
				peer.Namespaces, peer.Pods = podPeer(t)
			}
			r.To = append(r.To, peer)
		}
		p.Spec.Egress = append(p.Spec.Egress, r)
	}
	return p
}

// Step is one change of a cluster.
type Step struct {
	Namespace, Name, Node string // which one is changed; Name is a pod's or a policy's
	What                  What
	Pod                   *corev1.Pod                         // SetPod
	Labels                map[string]string                   // SetNamespace, SetNode
	Policy                *networkingv1.NetworkPolicy         // SetPolicy
	ClusterPolicy         *networkpolicy.ClusterNetworkPolicy // SetClusterPolicy
}

// What is what a Step does.
type What int

// All that a Step may do.
const (
	SetPod What = iota
	DeletePod
	SetNamespace
	DeleteNamespace
	SetPolicy
	DeletePolicy
	SetClusterPolicy
	DeleteClusterPolicy
	SetNode // to the addresses Outside
	DeleteNode
)

// DrawStep draws a change. A pod has no addresses now and then.
func DrawStep(t *rapid.T) Step {
	s := Step{
		Namespace: rapid.SampledFrom(Namespaces).Draw(t, "namespace"), Name: rapid.SampledFrom(Pods).Draw(t, "name"),
		Node: rapid.SampledFrom([]string{"one", "two"}).Draw(t, "node"),
		What: rapid.SampledFrom([]What{SetPod, SetPod, SetPod, DeletePod, SetNamespace, DeleteNamespace, SetPolicy, SetPolicy, DeletePolicy, SetClusterPolicy, DeleteClusterPolicy, SetNode, DeleteNode}).Draw(t, "what"),
	}
	switch s.What {
	case SetPod:
		s.Pod = Pod(t, s.Namespace, s.Name)
		if rapid.IntRange(0, 3).Draw(t, "addressed") == 0 {
			s.Pod.Status.PodIPs = nil
		}
	case SetNamespace, SetNode:
		s.Labels = Labels(t)
	case SetPolicy:
		s.Policy = Policy(t, s.Namespace, s.Name)
	case SetClusterPolicy:
		s.ClusterPolicy = ClusterPolicy(t, s.Name, networkpolicy.AdminTier, networkpolicy.ClusterNetworkPolicyRuleActionAccept, networkpolicy.ClusterNetworkPolicyRuleActionDeny)
		if e := s.ClusterPolicy.Spec.Egress; len(e) > 0 {
			e[0].To[0] = networkpolicy.ClusterNetworkPolicyEgressPeer{Nodes: Selector(t)}
		}
	case DeletePod, DeleteNamespace, DeletePolicy, DeleteClusterPolicy, DeleteNode:
	}
	return s
}
