package feed

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
	"github.com/berthnet/berth/internal/policy/resolve"
)

// Feed follows the cluster for all nodes.
type Feed struct {
	// OfNIC reports whether an address of a pod belongs to a NIC, whose network may have the same addresses as others. It may be
	// nil. It must be set before use, and must return quickly.
	OfNIC func(types.NamespacedName, netip.Addr) bool

	mu       sync.Mutex // guards everything, including subscribers; never held while waiting
	resolver *resolve.Resolver
	nodes    map[string]map[types.NamespacedName]bool // pods by node
	on       map[types.NamespacedName]string          // node by pod
	sets     map[policy.SetID]*log                    // for sets that a subscriber has
	watchers map[policy.SetID][]*Subscriber
	byNode   map[string]*Subscriber
	assigned map[types.NamespacedName]assignment
	at       map[netip.Addr][]types.NamespacedName // pods by address
}

// New returns an empty Feed with the budget resolve.MaxMembers.
func New() *Feed { return NewLimited(resolve.MaxMembers) }

// NewLimited is New with another budget.
func NewLimited(members int) *Feed {
	return &Feed{
		resolver: resolve.NewLimited(members), nodes: map[string]map[types.NamespacedName]bool{}, on: map[types.NamespacedName]string{},
		sets: map[policy.SetID]*log{}, watchers: map[policy.SetID][]*Subscriber{}, byNode: map[string]*Subscriber{},
		assigned: map[types.NamespacedName]assignment{}, at: map[netip.Addr][]types.NamespacedName{},
	}
}

// SetPod adds or changes a pod. Addresses that its node has assigned take precedence until its status changes.
func (f *Feed) SetPod(p resolve.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a, has := f.assigned[p.NamespacedName]
	switch {
	case !has:
	case a.uid != p.UID, len(p.Addrs) > 0 && !slices.Equal(p.Addrs, a.status):
		delete(f.assigned, p.NamespacedName)
	default:
		p.Addrs = a.addrs
	}
	f.setPod(p)
}

func (f *Feed) setPod(p resolve.Pod) *resolve.Changes {
	if before := f.on[p.NamespacedName]; before != p.Node {
		f.move(p.NamespacedName, before, p.Node)
	}
	before, _ := resolve.PodOf(f.resolver, p.NamespacedName)
	f.index(p.NamespacedName, before.Addrs, p.Addrs)
	changes := f.resolver.SetPod(p)
	f.spread(changes)
	return changes
}

// move records the node that a pod is bound to, or none if the name is empty.
func (f *Feed) move(name types.NamespacedName, from, to string) {
	delete(f.nodes[from], name)
	if len(f.nodes[from]) == 0 {
		delete(f.nodes, from)
	}
	delete(f.on, name)
	if s := f.byNode[from]; s != nil {
		s.podChanged(name)
	}
	if to == "" {
		return
	}
	if f.nodes[to] == nil {
		f.nodes[to] = map[types.NamespacedName]bool{}
	}
	f.nodes[to][name], f.on[name] = true, to
}

// DeletePod removes a pod.
func (f *Feed) DeletePod(name types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.assigned, name)
	if node := f.on[name]; node != "" {
		f.move(name, node, "")
	}
	before, _ := resolve.PodOf(f.resolver, name)
	f.index(name, before.Addrs, nil)
	f.spread(f.resolver.DeletePod(name))
}

// SetNamespace sets the labels of a namespace.
func (f *Feed) SetNamespace(name string, labels map[string]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spread(f.resolver.SetNamespace(name, labels))
}

// DeleteNamespace removes the labels of a namespace.
func (f *Feed) DeleteNamespace(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spread(f.resolver.DeleteNamespace(name))
}

// SetNode sets the labels and addresses of a node.
func (f *Feed) SetNode(name string, labels map[string]string, addrs []netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spread(f.resolver.SetNode(name, labels, addrs))
}

// DeleteNode removes a node's labels and addresses.
func (f *Feed) DeleteNode(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spread(f.resolver.DeleteNode(name))
}

// SetPolicy adds or changes a policy.
func (f *Feed) SetPolicy(c compile.Compiled) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spread(f.resolver.SetPolicy(c))
}

// DeletePolicy removes a policy.
func (f *Feed) DeletePolicy(ref policy.Ref) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spread(f.resolver.DeletePolicy(ref))
}

// Loaded is called after the policies that exist at the start. From then on, the limits for new policies apply.
func (f *Feed) Loaded() {
	f.mu.Lock()
	defer f.mu.Unlock()
	resolve.Loaded(f.resolver)
}

// Refused describes the part of a policy that is not in force because its namespace's policies select too many pods of others.
func (f *Feed) Refused(ref policy.Ref) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return resolve.Refused(f.resolver, ref)
}

// UnknownPorts describes the port names in the rules of a policy that no pod concerned has, sorted.
func (f *Feed) UnknownPorts(c compile.Compiled) (problems []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	inForce := map[policy.SetID]bool{}
	if p := f.resolver.Policy(c.Policy.Ref); p != nil {
		inForce = p.Sets()
	}
	for id, s := range c.Sets {
		if !inForce[id] {
			continue
		}
		if n, _ := f.resolver.Size(id); s.Kind == compile.Ports && n == 0 {
			problems = append(problems, fmt.Sprintf("no pod that a rule applies to has a container port named %q, so the rule matches nothing", s.Port))
		}
	}
	slices.Sort(problems)
	return slices.Compact(problems)
}

// Counts returns the numbers of connected nodes, of their sets, and of the addresses in these.
func (f *Feed) Counts() (nodes, sets, addresses int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.sets {
		n, _ := f.resolver.Size(id)
		addresses += n
	}
	return len(f.byNode), len(f.sets), addresses
}

// spread records changes for each affected node.
func (f *Feed) spread(c *resolve.Changes) {
	for id, change := range c.Sets {
		watchers := f.watchers[id]
		if len(watchers) == 0 {
			continue
		}
		size, _ := f.resolver.Size(id)
		f.sets[id].add(change, size)
		for _, s := range watchers {
			s.wake()
		}
	}
	for name := range c.Pods {
		if s := f.byNode[f.on[name]]; s != nil {
			s.podChanged(name)
		}
	}
	for ref := range c.Policies {
		for _, s := range f.byNode {
			if s.policies[ref] != nil {
				s.changed[ref] = true
				s.wake()
			}
		}
	}
}

// watch records that a subscriber has a set, and returns the number of the set's next change.
func (f *Feed) watch(id policy.SetID, s *Subscriber) uint64 {
	f.watchers[id] = append(f.watchers[id], s)
	if f.sets[id] == nil {
		f.sets[id] = &log{}
	}
	return f.sets[id].next
}

// unwatch records that a subscriber no longer has a set.
func (f *Feed) unwatch(id policy.SetID, s *Subscriber) {
	left := slices.DeleteFunc(f.watchers[id], func(w *Subscriber) bool { return w == s })
	if f.watchers[id] = left; len(left) == 0 {
		delete(f.watchers, id)
		delete(f.sets, id)
	}
}
