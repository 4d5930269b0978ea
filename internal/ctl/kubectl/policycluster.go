package kubectl

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
	"github.com/berthnet/berth/internal/policy/resolve"
)

// policyCluster is the API server's state of network policies, resolved as by berth-operator.
type policyCluster struct {
	resolver *resolve.Resolver
	compiled map[policy.Ref]compile.Compiled
	nodes    map[netip.Addr]string // by address
}

func newPolicyCluster() *policyCluster {
	return &policyCluster{resolver: resolve.New(), compiled: map[policy.Ref]compile.Compiled{}, nodes: map[netip.Addr]string{}}
}

// Paths of the kinds of policies.
const (
	networkPoliciesPath        = "/apis/networking.k8s.io/v1"
	clusterNetworkPoliciesPath = "/apis/policy.networking.k8s.io/v1beta1/clusternetworkpolicies"
)

// policies reads the policies of some namespaces, or without any of all, and those of the cluster.
func (c *policyCluster) policies(ctx context.Context, a *api, namespaces ...string) {
	paths := []string{networkPoliciesPath + "/networkpolicies"}
	if len(namespaces) > 0 {
		slices.Sort(namespaces)
		paths = nil
		for _, ns := range slices.Compact(namespaces) {
			paths = append(paths, networkPoliciesPath+"/namespaces"+join(ns, "networkpolicies"))
		}
	}
	add := func(p compile.Compiled) {
		c.compiled[p.Policy.Ref] = p
		c.resolver.SetPolicy(p)
	}
	for _, path := range paths {
		for _, p := range list[networkingv1.NetworkPolicy](ctx, a, "NetworkPolicies", path, nil) {
			add(compile.NetworkPolicy(&p))
		}
	}
	for _, p := range list[networkpolicy.ClusterNetworkPolicy](ctx, a, "ClusterNetworkPolicies", clusterNetworkPoliciesPath, nil) {
		add(compile.ClusterNetworkPolicy(&p))
	}
}

// namespaces reads the labels of all namespaces.
func (c *policyCluster) namespaces(ctx context.Context, a *api) {
	for _, ns := range list[corev1.Namespace](ctx, a, "namespaces", namespacesPath, nil) {
		c.resolver.SetNamespace(ns.Name, ns.Labels)
	}
}

// readNodes reads the labels and addresses of all nodes.
func (c *policyCluster) readNodes(ctx context.Context, a *api) {
	for _, n := range a.nodes(ctx) {
		var addrs []netip.Addr
		for _, na := range n.Status.Addresses {
			if addr, err := netip.ParseAddr(na.Address); err == nil {
				addrs = append(addrs, addr)
				c.nodes[addr] = n.Name
			}
		}
		c.resolver.SetNode(n.Name, n.Labels, addrs)
	}
}

// pods reads the pods of all namespaces, page by page.
func (c *policyCluster) pods(ctx context.Context, a *api) {
	pages(ctx, a, "pods", podsOfAll, nil, func() {}, func(p *corev1.Pod) { c.pod(p) })
}

func (c *policyCluster) pod(in *corev1.Pod) {
	if p, ok := resolve.ReadPod(in); ok {
		c.resolver.SetPod(p)
	}
}

// problems are the mistakes in a policy. Port names are compared with those of the known pods.
func (c *policyCluster) problems(ref policy.Ref) []string {
	p := c.compiled[ref]
	out := append([]string{}, p.Problems...)
	for id, s := range p.Sets {
		if s.Kind != compile.Ports {
			continue
		}
		if elements, pods := c.resolver.Size(id); elements == 0 && pods > 0 {
			out = append(out, fmt.Sprintf("no container of the pods concerned has a port named %q", s.Port))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// namesPorts reports whether a policy names ports, which only pods resolve.
func (c *policyCluster) namesPorts() bool {
	for _, p := range c.compiled {
		for _, s := range p.Sets {
			if s.Kind == compile.Ports {
				return true
			}
		}
	}
	return false
}

// unresolved are the problems of all policies.
func (c *policyCluster) unresolved() (lines []string) {
	if c == nil {
		return nil
	}
	for ref := range c.compiled {
		for _, text := range c.problems(ref) {
			lines = append(lines, fmt.Sprintf("%s: %s", ref, text))
		}
	}
	slices.Sort(lines)
	return lines
}

// applied are the policies of a pod by direction, in the order in which they are judged.
func (c *policyCluster) applied(namespace, name string) (ingress, egress []introspect.AppliedPolicy) {
	_, list, _ := c.resolver.Policies(types.NamespacedName{Namespace: namespace, Name: name})
	ingress, egress = []introspect.AppliedPolicy{}, []introspect.AppliedPolicy{}
	for _, p := range list {
		one := introspect.AppliedPolicy{PolicyRef: policyRef(p.Ref), Tier: p.Tier.String(), Priority: p.Priority}
		if p.Judges(policy.Ingress) {
			one.Isolates = p.Isolates[policy.Ingress]
			ingress = append(ingress, one)
		}
		if p.Judges(policy.Egress) {
			one.Isolates = p.Isolates[policy.Egress]
			egress = append(egress, one)
		}
	}
	return ingress, egress
}

func policyRef(r policy.Ref) introspect.PolicyRef {
	return introspect.PolicyRef{Kind: r.Kind(), Namespace: r.Namespace, Name: r.Name}
}

// refText is KIND NAMESPACE/NAME.
func refText(r introspect.PolicyRef) string {
	return r.Kind + " " + strings.TrimPrefix(r.Namespace+"/"+r.Name, "/")
}

// enforcing returns the daemons that are set to enforce network policies.
func enforcing(daemons map[string]daemon) (out []daemon) {
	for _, d := range daemons {
		if d.policies {
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b daemon) int { return strings.Compare(a.node, b.node) })
	return out
}

// notEnforced is the problem of a cluster without network policies.
const notEnforced = "no berthd enforces network policies: set networkPolicies.enabled in the chart's values"
