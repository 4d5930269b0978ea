package policytable

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
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
	testPackets(t, 6, func(_ *testing.T, w *world) tables { return tables{{}: New(w.node)} })
}

// The same holds where each pod's table is in its own network namespace.
func TestPacketsAreJudgedInPods(t *testing.T) {
	testPackets(t, 2, func(t *testing.T, w *world) tables {
		list := tables{}
		for a, h := range w.hosts {
			if a.Is4() && a != policytest.Outside[0] {
				list[a] = NewInside(openNetns(t, h.path), w.node, []string{"eth0"})
			}
		}
		return list
	})
}

// tables are that of the node, or those of pods by their IPv4 address.
type tables map[netip.Addr]*Table

// apply applies pods, or changes of sets if there are none.
func (l tables) apply(pods []Pod, elements Elements, changed policy.SetChanges) error {
	if pods == nil {
		for _, table := range l {
			if err := table.ApplyElements(elements, changed); err != nil {
				return err
			}
		}
		return nil
	}
	if table := l[netip.Addr{}]; table != nil {
		return table.Apply(pods, elements, changed)
	}
	for _, p := range pods {
		i := slices.IndexFunc(p.Addrs, netip.Addr.Is4)
		if err := l[p.Addrs[i]].Apply([]Pod{p}, elements, changed); err != nil {
			return err
		}
	}
	return nil
}

func (l tables) refused(t fataler) (n uint64) {
	for _, table := range l {
		n += refused(t, table)
	}
	return n
}

func testPackets(t *testing.T, rounds int, open func(*testing.T, *world) tables) {
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
	table := open(t, w)
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
		for range rapid.IntRange(1, rounds).Draw(t, "rounds") {
			for range rapid.IntRange(1, 4).Draw(t, "changes") {
				take(change(t, r))
			}
			var pods []Pod
			if whole {
				pods = podsOf(r)
			}
			must(t, table.apply(pods, r.Elements, pending))
			pending, whole = policy.SetChanges{}, false
			flows := drawFlows(t, slices.SortedFunc(maps.Keys(w.hosts), netip.Addr.Compare))
			for _, one := range table {
				must(t, rtnl.InNetns(one.ns, func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
			}
			for i, arrived := range w.arrivals(t, table.refused, flows) {
				if j := r.Judge(flows[i]); j.Allowed() != arrived {
					t.Fatalf("%+v arrived: %t; decided: %+v", flows[i], arrived, j)
				}
			}
		}
		for _, one := range table {
			if present, err := one.Present(); err != nil || !present {
				t.Fatalf("the table is not as it was applied: %v", err)
			}
		}
	})
	for _, one := range table {
		must(t, one.Remove())
	}
}

func openNetns(t *testing.T, path string) netns.NsHandle {
	t.Helper()
	h, err := netns.GetFromPath(path)
	must(t, err)
	t.Cleanup(func() { _ = h.Close() })
	return h
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

// What a rule passes on is not judged by later policies of its tier, also if no other tier has any.
func TestPassLeavesTheTier(t *testing.T) {
	a, b := pair("10.0.1.2", "fd00:1::2"), pair("10.0.2.2", "fd00:2::2")
	w := newWorld(t, [][2]netip.Addr{a, b})
	table := New(w.node)
	rule := func(name string, action policy.Action) *policy.Policy {
		p := &policy.Policy{Ref: policy.Ref{Name: name}, Tier: policy.Admin}
		p.Rules[policy.Ingress] = []policy.Rule{{Action: action, AnyPeer: true, AnyPort: true}}
		return p
	}
	must(t, table.Apply([]Pod{{Addrs: a[:], Policies: []*policy.Policy{rule("a", policy.Pass), rule("b", policy.Deny)}}}, noElements, nil))
	flows := []policy.Flow{{Source: b[0], Destination: a[0], Protocol: 17, Port: 80}, {Source: b[1], Destination: a[1], Protocol: 6, Port: 80}}
	for i, arrived := range w.arrivals(t, func(t fataler) uint64 { return refused(t, table) }, flows) {
		if !arrived {
			t.Errorf("%+v was refused", flows[i])
		}
	}
	must(t, table.Remove())
}

// elementsOf are sets to judge by.
type elementsOf Elements

func (of elementsOf) Has(id policy.SetID, e policy.Element) (found bool) {
	of(id, func(other policy.Element) { found = found || e == other })
	return found
}

// A rule with many peers and ports takes about as many rules of nftables as it has of both, and matches each peer with each port.
func TestPeersAndPortsDoNotMultiply(t *testing.T) {
	pod, friend, stranger := pair("10.0.1.2", "fd00:1::2"), pair("10.0.2.2", "fd00:2::2"), pair("10.0.3.2", "fd00:3::2")
	w := newWorld(t, [][2]netip.Addr{pod, friend, stranger})
	table := New(w.node)
	elements := func(id policy.SetID, yield func(policy.Element)) {
		for i := range pod {
			switch id {
			case "peer-1":
				yield(policy.Element{Addr: friend[i]})
			case "name-1":
				yield(policy.Element{Addr: pod[i], Protocol: 132, Port: 700})
				yield(policy.Element{Addr: friend[i], Protocol: 132, Port: 700})
			}
		}
	}
	var flows []policy.Flow
	for i := range pod {
		for _, ends := range [][2]netip.Addr{{friend[i], pod[i]}, {stranger[i], pod[i]}, {pod[i], friend[i]}, {pod[i], stranger[i]}} {
			for _, port := range []uint16{77, 78, 79, 80, 81, 82, 700, 701} {
				for _, protocol := range []uint8{6, 17, 132} {
					flows = append(flows, policy.Flow{Source: ends[0], Destination: ends[1], Protocol: protocol, Port: port})
				}
			}
		}
	}
	for _, n := range []int{2, 400} {
		for _, action := range []policy.Action{policy.Accept, policy.Deny, policy.Pass} {
			rule := policy.Rule{Action: action}
			for i := range n {
				rule.Peers = append(rule.Peers, policy.SetID(fmt.Sprint("peer-", i)))
				rule.Named = append(rule.Named, policy.SetID(fmt.Sprint("name-", i)))
				rule.Ports = append(rule.Ports, policy.Ports{Protocol: 6, First: uint16(78 + 2*i), Last: uint16(78 + 2*i)}, policy.Ports{Protocol: 17, First: uint16(78 + 3*i), Last: uint16(79 + 3*i)})
			}
			p, rest := &policy.Policy{Ref: policy.Ref{Name: "a"}, Tier: policy.Admin}, &policy.Policy{Ref: policy.Ref{Name: "b"}, Tier: policy.Admin}
			for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
				p.Rules[d] = []policy.Rule{rule, {Action: policy.Accept, AnyPeer: true, Ports: []policy.Ports{{Protocol: 6, First: 82, Last: 82}}}}
				if action != policy.Deny {
					rest.Rules[d] = []policy.Rule{{Action: policy.Deny, AnyPeer: true, AnyPort: true}}
				}
			}
			both := []*policy.Policy{p, rest}
			must(t, table.Apply([]Pod{{Addrs: pod[:], Policies: both}}, elements, nil))
			rules := 0
			for _, c := range table.have.flat().chains {
				rules += len(c.Rules)
			}
			if most := 8*n + 100; rules > most { // peers and named ports, of both directions and families
				t.Errorf("%d peers and ports take %d rules, want %d at most", n, rules, most)
			}
			must(t, rtnl.InNetns(w.node, func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
			for i, arrived := range w.arrivals(t, func(t fataler) uint64 { return refused(t, table) }, flows) {
				d := policy.Ingress
				if flows[i].Source == pod[0] || flows[i].Source == pod[1] {
					d = policy.Egress
				}
				if want := policy.Decide(both, d, flows[i], elementsOf(elements)).Allowed; arrived != want {
					t.Errorf("%s with %d peers and ports: %+v arrived: %t, want %t", action, n, flows[i], arrived, want)
				}
			}
		}
	}
	if present, err := table.Present(); err != nil || !present {
		t.Errorf("the table is not as it was applied: %v", err)
	}
	must(t, table.Remove())
}
