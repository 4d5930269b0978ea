package policytable

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
	"github.com/berthnet/berth/internal/policy/policytest"
	"github.com/berthnet/berth/internal/policy/resolve"
)

// flowsEach is how many packets are sent after each change.
const flowsEach = 40

// The kernel lets first packets through if and only if the policies of both ends allow them, after each of a random
// sequence of changes. Real packets cross namespaces.
func TestPacketsAreJudgedAsDecided(t *testing.T) {
	hosts := [][2]netip.Addr{{policytest.Outside[0], policytest.Outside[1]}}
	draw := rapid.Custom(func(t *rapid.T) []*corev1.Pod {
		var list []*corev1.Pod
		for _, namespace := range policytest.Namespaces {
			for _, name := range policytest.Pods {
				list = append(list, policytest.Pod(t, namespace, name))
			}
		}
		return list
	})
	for _, p := range draw.Example(1) {
		read, _ := resolve.ReadPod(p)
		hosts = append(hosts, [2]netip.Addr(read.Addrs))
	}
	w := newWorld(t, hosts)
	table := New(w.node)
	rapid.Check(t, func(t *rapid.T) {
		r := resolve.New()
		pending := policy.SetChanges{}
		whole := true // pods or policies changed
		take := func(c *resolve.Changes) {
			for id, change := range c.Sets {
				pending.Of(id).Then(change)
			}
			whole = whole || len(c.Pods)+len(c.Policies) > 0
		}
		for _, p := range draw.Draw(t, "pods") {
			read, _ := resolve.ReadPod(p)
			take(r.SetPod(read))
		}
		for _, name := range policytest.Namespaces {
			take(r.SetNamespace(name, policytest.Labels(t)))
		}
		for range rapid.IntRange(1, 6).Draw(t, "rounds") {
			for range rapid.IntRange(1, 4).Draw(t, "changes") {
				take(change(t, r))
			}
			var err error
			if whole {
				err = table.Apply(podsOf(r), r.Elements, pending)
			} else {
				err = table.ApplyElements(r.Elements, pending)
			}
			must(t, err)
			pending, whole = policy.SetChanges{}, false
			flows := drawFlows(t, slices.SortedFunc(maps.Keys(w.hosts), netip.Addr.Compare))
			must(t, rtnl.InNetns(w.node, func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
			for i, arrived := range w.arrivals(t, table, flows) {
				if j := r.Judge(flows[i]); j.Allowed() != arrived {
					t.Fatalf("%+v arrived: %t; decided: %+v", flows[i], arrived, j)
				}
			}
		}
		if present, err := table.Present(); err != nil || !present {
			t.Fatalf("the table is not as it was applied: %v", err)
		}
	})
	must(t, table.Remove())
}

// change changes a policy, a pod's labels or a namespace's.
func change(t *rapid.T, r *resolve.Resolver) *resolve.Changes {
	namespace, name := rapid.SampledFrom(policytest.Namespaces).Draw(t, "namespace"), rapid.SampledFrom(policytest.Pods).Draw(t, "name")
	switch rapid.IntRange(0, 9).Draw(t, "change") {
	case 0, 1:
		read, _ := resolve.ReadPod(policytest.Pod(t, namespace, name))
		return r.SetPod(read)
	case 2:
		return r.SetNamespace(namespace, policytest.Labels(t))
	case 3, 4:
		tier, actions := networkpolicy.AdminTier, []networkpolicy.ClusterNetworkPolicyRuleAction{networkpolicy.ClusterNetworkPolicyRuleActionAccept, networkpolicy.ClusterNetworkPolicyRuleActionDeny}
		if rapid.Bool().Draw(t, "baseline") {
			tier = networkpolicy.BaselineTier
		} else {
			actions = append(actions, networkpolicy.ClusterNetworkPolicyRuleActionPass)
		}
		return r.SetPolicy(compile.ClusterNetworkPolicy(policytest.ClusterPolicy(t, name, tier, actions...)))
	case 5:
		return r.DeletePolicy(policy.Ref{Name: name})
	case 6:
		return r.DeletePolicy(policy.Ref{Namespace: namespace, Name: name})
	}
	return r.SetPolicy(compile.NetworkPolicy(policytest.Policy(t, namespace, name)))
}

func podsOf(r *resolve.Resolver) (list []Pod) {
	for name := range r.Pods() {
		p, policies, _ := r.Policies(name)
		list = append(list, Pod{Addrs: p.Addrs, Policies: policies})
	}
	return list
}

// drawFlows draws connections between hosts.
func drawFlows(t *rapid.T, addrs []netip.Addr) (list []policy.Flow) {
	for i := range flowsEach {
		f := policy.Flow{Source: rapid.SampledFrom(addrs).Draw(t, fmt.Sprint("source ", i))}
		var others []netip.Addr
		for _, a := range addrs {
			if a.Is4() == f.Source.Is4() && a != f.Source {
				others = append(others, a)
			}
		}
		f.Destination = rapid.SampledFrom(others).Draw(t, "destination")
		f.Protocol, _ = compile.ProtocolOf(rapid.SampledFrom(policytest.Protocols).Draw(t, "protocol"))
		f.Port = rapid.SampledFrom(policytest.Ports).Draw(t, "port")
		list = append(list, f)
	}
	return list
}
