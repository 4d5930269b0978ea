package feed

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
	"github.com/berthnet/berth/internal/policy/policytest"
	"github.com/berthnet/berth/internal/policy/resolve"
	"github.com/berthnet/berth/internal/policy/wire"
)

func (f *Feed) step(s policytest.Step) {
	name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	switch s.What {
	case policytest.SetPod:
		p, _ := resolve.ReadPod(s.Pod)
		f.SetPod(p)
	case policytest.DeletePod:
		f.DeletePod(name)
	case policytest.SetNamespace:
		f.SetNamespace(s.Namespace, s.Labels)
	case policytest.DeleteNamespace:
		f.DeleteNamespace(s.Namespace)
	case policytest.SetPolicy:
		f.SetPolicy(compile.NetworkPolicy(s.Policy))
	case policytest.DeletePolicy:
		f.DeletePolicy(policy.Ref{Namespace: s.Namespace, Name: s.Name})
	case policytest.SetClusterPolicy:
		f.SetPolicy(compile.ClusterNetworkPolicy(s.ClusterPolicy))
	case policytest.DeleteClusterPolicy:
		f.DeletePolicy(policy.Ref{Name: s.Name})
	case policytest.SetNode:
		f.SetNode(s.Node, s.Labels, policytest.Outside)
	case policytest.DeleteNode:
		f.DeleteNode(s.Node)
	}
}

// known is what a node should know, or knows, in an order.
type known struct {
	Pods     map[string][]string
	Policies map[string]bool
	Sets     map[policy.SetID][]string
}

func newKnown() known {
	return known{map[string][]string{}, map[string]bool{}, map[policy.SetID][]string{}}
}

func (k known) addSet(id policy.SetID, elements func(policy.SetID, func(policy.Element))) {
	list := []string{}
	elements(id, func(e policy.Element) { list = append(list, e.Addr.String()+" "+string(rune(e.Port))) })
	slices.Sort(list)
	k.Sets[id] = list
}

// wanted is what a node should know.
func (f *Feed) wanted(node string) known {
	k := newKnown()
	for name := range f.resolver.Pods() {
		p, policies, _ := f.resolver.Policies(name)
		if p.Node != node {
			continue
		}
		k.Pods[name.String()] = []string{}
		for _, of := range policies {
			k.Pods[name.String()] = append(k.Pods[name.String()], of.String())
			k.Policies[of.String()+" as now"] = true
			for id := range of.Sets() {
				k.addSet(id, f.resolver.Elements)
			}
		}
	}
	return k
}

// follower is a node that takes updates.
type follower struct {
	*Subscriber
	state *policy.State
}

// take takes an update as it is sent.
func (n follower) take(t interface {
	Helper()
	Fatal(args ...any)
}) {
	t.Helper()
	u := n.Next()
	if u.Version == 0 {
		return
	}
	var d wire.Decoder
	parts := wire.Encode(u)
	for i, part := range parts {
		read, err := d.Add(part)
		if err != nil || (read != nil) != (i == len(parts)-1) {
			t.Fatal("part ", i, " of ", len(parts), ": ", read, err)
		}
		if read != nil {
			n.state.Take(read)
		}
	}
	n.Confirm(u.Version)
}

// knows is what it knows.
func (n follower) knows(f *Feed) known {
	k := newKnown()
	for name, uid := range n.state.Pods() {
		k.Pods[name.Namespace+"/"+name.Name] = []string{}
		policies, _ := n.state.Of(name, uid)
		for _, p := range policies {
			k.Pods[name.Namespace+"/"+name.Name] = append(k.Pods[name.Namespace+"/"+name.Name], p.String())
			if now := f.resolver.Policy(p.Ref); now != nil && cmp.Equal(p, now, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Prefix{})) {
				k.Policies[p.String()+" as now"] = true
			} else {
				k.Policies[p.String()+" as it was"] = true
			}
		}
	}
	for id := range n.state.SetIDs() {
		k.addSet(id, n.state.Elements)
	}
	return k
}

// Whenever a node takes what it is sent, after any sequence of changes, it knows the policies of its own pods and the
// sets that these name, and nothing else.
func TestNodesKnowWhatTheirPodsNeed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := New()
		nodes := map[string]follower{}
		subscribe := func(name string) { nodes[name] = follower{f.Subscribe(name), policy.NewState()} }
		subscribe("one")
		subscribe("two")
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0, 1:
				n := nodes[rapid.SampledFrom([]string{"one", "two"}).Draw(t, "taker")]
				n.take(t)
				if diff := cmp.Diff(f.wanted(n.node), n.knows(f)); diff != "" {
					t.Fatalf("node %s knows otherwise: (-wanted +known)\n%s", n.node, diff)
				}
			case 2:
				if rapid.IntRange(0, 4).Draw(t, "again") == 0 {
					subscribe("two")
				}
			default:
				f.step(policytest.DrawStep(t))
			}
		}
		for _, n := range nodes {
			n.take(t)
			if diff := cmp.Diff(f.wanted(n.node), n.knows(f)); diff != "" {
				t.Fatalf("node %s knows otherwise at last: (-wanted +known)\n%s", n.node, diff)
			}
			select {
			case <-n.Ready():
				if u := n.Next(); !u.Empty() {
					t.Fatalf("node %s is told more: %+v", n.node, u)
				}
			default:
			}
			n.Close()
		}
		if n := len(f.watchers) + len(f.sets) + len(f.byNode); n > 0 {
			t.Fatalf("%d watchers, sets and subscribers are left", n)
		}
	})
}

// A new pod's addresses count as known once the nodes that allow it enforce them.
func TestAddressesAreConfirmed(t *testing.T) {
	f := New()
	server, client := pod("server", "one", "10.0.0.1"), pod("client", "two")
	f.SetPod(server)
	f.SetPod(client)
	f.SetPolicy(compile.NetworkPolicy(allowClients()))
	one := follower{f.Subscribe("one"), policy.NewState()}
	one.take(t)
	if _, err := f.Assign("one", client.NamespacedName, client.UID, addrs("10.0.0.2"), false); err == nil {
		t.Error("a node assigns addresses to another node's pod")
	}
	if _, err := f.Assign("two", client.NamespacedName, "another", addrs("10.0.0.2"), false); err == nil {
		t.Error("a node assigns addresses to a pod that is gone")
	}
	done, err := f.Assign("two", client.NamespacedName, client.UID, addrs("10.0.0.2"), false)
	if err != nil {
		t.Fatal(err)
	}
	u := one.Next()
	one.state.Take(u)
	if closed(done) {
		t.Error("confirmed before the node that allows it enforces it")
	}
	if !one.state.Has(only(t, one.state), policy.Element{Addr: addrs("10.0.0.2")[0]}) {
		t.Error("the node that allows it was not told")
	}
	one.Confirm(u.Version)
	if !closed(done) {
		t.Error("not confirmed although the node that allows it enforces it")
	}
	client.Labels = map[string]string{"app": "client", "new": "label"} // its status has no addresses yet
	f.SetPod(client)
	one.take(t)
	if !one.state.Has(only(t, one.state), policy.Element{Addr: addrs("10.0.0.2")[0]}) {
		t.Error("the address was forgotten before the pod's status has it")
	}
	f.DeletePod(client.NamespacedName)
	one.take(t)
	if one.state.Has(only(t, one.state), policy.Element{Addr: addrs("10.0.0.2")[0]}) {
		t.Error("the address outlives the pod")
	}
	done, err = f.Assign("one", server.NamespacedName, server.UID, addrs("10.0.0.3"), false)
	if err != nil || !closed(done) {
		t.Errorf("an address that no policy names has to be confirmed: %v", err)
	}
}

// A node is not sent a pod whose policies stay as they are, as when the node itself assigned an address.
func TestNodesAreNotToldWhatTheyKnow(t *testing.T) {
	f := New()
	f.SetPolicy(compile.NetworkPolicy(allowClients()))
	f.SetPod(pod("server", "one"))
	s := f.Subscribe("one")
	if u := s.Next(); len(u.Pods) != 1 {
		t.Errorf("the node is told about %d pods, expected 1", len(u.Pods))
	}
	if _, err := f.Assign("one", pod("server", "one").NamespacedName, "server", addrs("10.0.0.1"), false); err != nil {
		t.Fatal(err)
	}
	if u := s.Next(); u.Version != 0 {
		t.Errorf("the node is told what it knows: %+v", u)
	}
	other := pod("server", "one", "10.0.0.1")
	other.UID = "another"
	f.SetPod(other)
	if u := s.Next(); len(u.Pods) != 1 || len(u.Policies) != 0 {
		t.Errorf("the node is told %+v about another pod of the name, expected the pod", u)
	}
}
