package resolve

import (
	"maps"
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
)

// view is what somebody knows who follows a Resolver's changes.
type view struct {
	sets     map[policy.SetID]map[policy.Element]bool
	pods     map[types.NamespacedName][]policy.Ref
	policies map[policy.Ref]*policy.Policy
}

func newView() view {
	return view{map[policy.SetID]map[policy.Element]bool{}, map[types.NamespacedName][]policy.Ref{}, map[policy.Ref]*policy.Policy{}}
}

func (v view) follow(r *Resolver, c *Changes) {
	for id, change := range c.Sets {
		if change.Whole {
			v.sets[id] = map[policy.Element]bool{}
		}
		for e, came := range change.Elements {
			if came {
				v.sets[id][e] = true
			} else {
				delete(v.sets[id], e)
			}
		}
	}
	for name := range c.Pods {
		v.pods[name] = refs(r, name)
		if _, there := r.pods[name]; !there {
			delete(v.pods, name)
		}
	}
	for ref := range c.Policies {
		if v.policies[ref] = r.Policy(ref); v.policies[ref] == nil {
			delete(v.policies, ref)
		}
	}
	named := map[policy.SetID]bool{} // sets that no policy names are dropped
	for _, p := range v.policies {
		maps.Copy(named, p.Sets())
	}
	maps.DeleteFunc(v.sets, func(id policy.SetID, _ map[policy.Element]bool) bool { return !named[id] })
}

func refs(r *Resolver, name types.NamespacedName) (list []policy.Ref) {
	_, policies, _ := r.Policies(name)
	for _, p := range policies {
		list = append(list, p.Ref)
	}
	return list
}

// stateOf is all of a Resolver's knowledge as a view.
func stateOf(r *Resolver) view {
	v := newView()
	for name := range r.pods {
		v.pods[name] = refs(r, name)
	}
	for ref, c := range r.policies {
		v.policies[ref] = c.Policy
		for id := range c.Sets {
			v.sets[id] = map[policy.Element]bool{}
			r.Elements(id, func(e policy.Element) { v.sets[id][e] = true })
		}
	}
	return v
}

// cluster is what a Resolver was given.
type cluster struct {
	namespaces map[string]map[string]string
	pods       map[types.NamespacedName]Pod
	nodes      map[string]node
	policies   map[policy.Ref]compile.Compiled
}

// anew is a Resolver that is given the same at once.
func (c cluster) anew() *Resolver {
	r := New()
	for _, p := range c.policies {
		r.SetPolicy(p)
	}
	for name, n := range c.nodes {
		r.SetNode(name, n.labels, n.addrs)
	}
	for _, p := range c.pods {
		r.SetPod(p)
	}
	for name, labels := range c.namespaces {
		r.SetNamespace(name, labels)
	}
	return r
}

// step does something to the cluster.
func (c cluster) step(s policytest.Step, r *Resolver) *Changes {
	name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	ref, clusterRef := policy.Ref{Namespace: s.Namespace, Name: s.Name}, policy.Ref{Name: s.Name}
	switch s.What {
	case policytest.SetPod:
		c.pods[name], _ = ReadPod(s.Pod)
		return r.SetPod(c.pods[name])
	case policytest.DeletePod:
		delete(c.pods, name)
		return r.DeletePod(name)
	case policytest.SetNamespace:
		c.namespaces[s.Namespace] = s.Labels
		return r.SetNamespace(s.Namespace, s.Labels)
	case policytest.DeleteNamespace:
		delete(c.namespaces, s.Namespace)
		return r.DeleteNamespace(s.Namespace)
	case policytest.SetPolicy:
		c.policies[ref] = compile.NetworkPolicy(s.Policy)
		return r.SetPolicy(c.policies[ref])
	case policytest.DeletePolicy:
		delete(c.policies, ref)
		return r.DeletePolicy(ref)
	case policytest.SetClusterPolicy:
		c.policies[clusterRef] = compile.ClusterNetworkPolicy(s.ClusterPolicy)
		return r.SetPolicy(c.policies[clusterRef])
	case policytest.DeleteClusterPolicy:
		delete(c.policies, clusterRef)
		return r.DeletePolicy(clusterRef)
	case policytest.SetNode:
		c.nodes[s.Node] = node{s.Labels, policytest.Outside}
		return r.SetNode(s.Node, s.Labels, policytest.Outside)
	}
	delete(c.nodes, s.Node)
	return r.DeleteNode(s.Node)
}

// After any sequence of changes a Resolver knows what one knows that sees the cluster for the first time, and so
// does who followed the changes.
func TestFollowsTheCluster(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := cluster{map[string]map[string]string{}, map[types.NamespacedName]Pod{}, map[string]node{}, map[policy.Ref]compile.Compiled{}}
		r, followed := New(), newView()
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			followed.follow(r, c.step(policytest.DrawStep(t), r))
			want := stateOf(c.anew())
			if diff := cmp.Diff(want, stateOf(r), cmp.AllowUnexported(view{}), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
				t.Fatalf("the resolver knows otherwise: (-anew +known)\n%s", diff)
			}
			if diff := cmp.Diff(want, followed, cmp.AllowUnexported(view{}), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
				t.Fatalf("the changes tell otherwise: (-anew +followed)\n%s", diff)
			}
		}
		for name := range c.pods {
			r.DeletePod(name)
		}
		for name := range c.namespaces {
			r.DeleteNamespace(name)
		}
		for _, ref := range slices.Collect(maps.Keys(c.policies)) {
			r.DeletePolicy(ref)
		}
		for name := range c.nodes {
			r.DeleteNode(name)
		}
		if n := len(r.namespaces) + len(r.pods) + len(r.nodes) + len(r.policies) + len(r.selections); n > 0 {
			t.Fatalf("%d entries are left of an empty cluster: %+v", n, r)
		}
	})
}
