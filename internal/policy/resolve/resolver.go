package resolve

import (
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
)

// Pod is the part of a pod that policies depend on. Host-network pods are not included: their addresses are the node's.
type Pod struct {
	types.NamespacedName
	UID    types.UID
	Node   string
	Labels map[string]string
	Addrs  []netip.Addr // empty until the pod has addresses
	Ports  []NamedPort
}

// same reports whether two states of a pod are equivalent for all policies.
func (p Pod) same(o Pod) bool {
	return p.UID == o.UID && p.Node == o.Node && maps.Equal(p.Labels, o.Labels) && slices.Equal(p.Addrs, o.Addrs) && slices.Equal(p.Ports, o.Ports)
}

// NamedPort is a named port of a container.
type NamedPort struct {
	Name     string
	Protocol uint8
	Number   uint16
}

// Resolver tracks pods, namespaces, nodes and policies. It is not safe for concurrent use.
type Resolver struct {
	namespaces map[string]*namespace
	pods       map[types.NamespacedName]*pod
	nodes      map[string]node
	policies   map[policy.Ref]compile.Compiled // the parts in force
	selections map[policy.SetID]*selection
	budget     budget
}

type namespace struct {
	name   string
	exists bool // otherwise, only its pods are known yet
	labels map[string]string
	pods   map[*pod]bool
	by     map[*selection]bool // selections that can select its pods
}

type pod struct {
	Pod
	by map[*selection]bool // selections that select it
}

type node struct {
	labels map[string]string
	addrs  []netip.Addr
}

// New returns an empty Resolver with the budget MaxMembers.
func New() *Resolver { return NewLimited(MaxMembers) }

// NewLimited is New with another budget.
func NewLimited(members int) *Resolver {
	return &Resolver{
		namespaces: map[string]*namespace{}, pods: map[types.NamespacedName]*pod{}, nodes: map[string]node{},
		policies: map[policy.Ref]compile.Compiled{}, selections: map[policy.SetID]*selection{},
		budget: newBudget(members),
	}
}

// Changes are the effects of a change of the cluster on nodes, which take effect atomically.
type Changes struct {
	Sets policy.SetChanges // changes of the sets in policies
	// Pods are pods whose policies, node or addresses may have changed, and pods that are gone.
	Pods map[types.NamespacedName]bool
	// Policies are policies whose content has changed, and policies that are gone.
	Policies map[policy.Ref]bool
}

func newChanges() *Changes {
	return &Changes{Sets: policy.SetChanges{}, Pods: map[types.NamespacedName]bool{}, Policies: map[policy.Ref]bool{}}
}

// element records that an element was added or removed.
func (c *Changes) element(s *selection, e policy.Element, came bool) {
	if len(s.users) > 0 {
		c.Sets.Of(s.id).Note(e, came)
	}
}

// SetPod adds or changes a pod.
func (r *Resolver) SetPod(in Pod) *Changes {
	changes := newChanges()
	p := r.pods[in.NamespacedName]
	switch {
	case p == nil:
		p = &pod{Pod: in, by: map[*selection]bool{}}
		r.pods[in.NamespacedName] = p
		r.namespace(in.Namespace).pods[p] = true
	case p.same(in):
		return changes
	}
	before := p.Pod
	p.Pod = in
	changes.Pods[in.NamespacedName] = true
	for s := range r.namespace(in.Namespace).by {
		r.review(changes, s, p, before)
	}
	return changes
}

// review updates a selection for a pod of a namespace that it selects.
func (r *Resolver) review(changes *Changes, s *selection, p *pod, before Pod) {
	var remove, add []policy.Element
	if p.by[s] {
		remove = s.of(before)
	}
	if selects := s.selects(p); selects {
		add = s.of(p.Pod)
		s.pods[p], p.by[s] = true, true
	} else {
		delete(s.pods, p)
		delete(p.by, s)
	}
	if len(s.subjects) > 0 {
		changes.Pods[p.NamespacedName] = true
	}
	s.change(changes, remove, add)
}

// DeletePod removes a pod.
func (r *Resolver) DeletePod(name types.NamespacedName) *Changes {
	changes := newChanges()
	p := r.pods[name]
	if p == nil {
		return changes
	}
	changes.Pods[name] = true
	for s := range p.by {
		s.change(changes, s.of(p.Pod), nil)
		delete(s.pods, p)
	}
	delete(r.pods, name)
	ns := r.namespace(name.Namespace)
	delete(ns.pods, p)
	r.dropIfEmpty(ns)
	return changes
}

// SetNamespace sets the labels of a namespace.
func (r *Resolver) SetNamespace(name string, of map[string]string) *Changes {
	changes := newChanges()
	ns := r.namespace(name)
	if ns.exists && maps.Equal(ns.labels, of) {
		return changes
	}
	ns.exists, ns.labels = true, of
	r.reviewNamespace(changes, ns)
	return changes
}

// DeleteNamespace removes the labels of a namespace.
func (r *Resolver) DeleteNamespace(name string) *Changes {
	changes := newChanges()
	ns := r.namespace(name)
	ns.exists, ns.labels = false, nil
	r.reviewNamespace(changes, ns)
	r.dropIfEmpty(ns)
	return changes
}

// namespace returns the state of a namespace, which it creates if missing.
func (r *Resolver) namespace(name string) *namespace {
	ns := r.namespaces[name]
	if ns == nil {
		ns = &namespace{name: name, pods: map[*pod]bool{}, by: map[*selection]bool{}}
		r.namespaces[name] = ns
		r.reviewNamespace(newChanges(), ns)
	}
	return ns
}

func (r *Resolver) dropIfEmpty(ns *namespace) {
	if !ns.exists && len(ns.pods) == 0 {
		delete(r.namespaces, ns.name)
	}
}

// reviewNamespace finds the selections that can select pods of a namespace, and reviews its pods for those that have changed.
func (r *Resolver) reviewNamespace(changes *Changes, ns *namespace) {
	for _, s := range r.selections {
		may := s.maySelect(ns)
		if may == ns.by[s] {
			continue
		}
		if !may {
			delete(ns.by, s)
			for p := range ns.pods {
				r.unselect(changes, s, p)
			}
			continue
		}
		ns.by[s] = true
		for p := range ns.pods {
			r.review(changes, s, p, p.Pod)
		}
	}
}

// maySelect reports whether the selection can select pods of a namespace.
func (s *selection) maySelect(ns *namespace) bool {
	switch {
	case s.Kind == compile.Nodes:
		return false
	case s.Namespace != "":
		return s.Namespace == ns.name
	}
	return ns.exists && s.MatchesNamespace(ns.name, ns.labels)
}

func (r *Resolver) unselect(changes *Changes, s *selection, p *pod) {
	if !p.by[s] {
		return
	}
	s.change(changes, s.of(p.Pod), nil)
	delete(s.pods, p)
	delete(p.by, s)
	if len(s.subjects) > 0 {
		changes.Pods[p.NamespacedName] = true
	}
}

// SetNode sets a node's labels and addresses.
func (r *Resolver) SetNode(name string, of map[string]string, addrs []netip.Addr) *Changes {
	return r.changeNode(name, node{labels: of, addrs: addrs})
}

// DeleteNode removes a node.
func (r *Resolver) DeleteNode(name string) *Changes { return r.changeNode(name, node{}) }

func (r *Resolver) changeNode(name string, now node) *Changes {
	changes := newChanges()
	before := r.nodes[name]
	if len(now.addrs) == 0 {
		delete(r.nodes, name)
	} else {
		r.nodes[name] = now
	}
	for _, s := range r.selections {
		if s.Kind == compile.Nodes {
			s.change(changes, s.ofNode(before), s.ofNode(now))
		}
	}
	return changes
}

// ofNode returns the elements of a node in the set.
func (s *selection) ofNode(n node) []policy.Element {
	var list []policy.Element
	if s.Labels.Matches(labels.Set(n.labels)) {
		for _, a := range n.addrs {
			list = append(list, policy.Element{Addr: a})
		}
	}
	return list
}

// SetPolicy adds or changes a policy. If it exceeds the budget of its namespace (MaxMembers), only a part is in force.
func (r *Resolver) SetPolicy(c compile.Compiled) *Changes {
	changes := newChanges()
	ref := c.Policy.Ref
	before, had := r.policies[ref]
	if over, is := r.budget.over[ref]; is {
		before = over.Compiled
	}
	if had && before.Subject.ID() == c.Subject.ID() && reflect.DeepEqual(before.Policy, c.Policy) {
		return changes
	}
	r.budget.set(r, changes, c)
	r.budget.admit(r, changes, ref.Namespace)
	return changes
}

// DeletePolicy removes a policy.
func (r *Resolver) DeletePolicy(ref policy.Ref) *Changes {
	changes := newChanges()
	if c, had := r.policies[ref]; had {
		delete(r.policies, ref)
		delete(r.budget.over, ref)
		if delete(r.budget.inNamespace[ref.Namespace], ref); len(r.budget.inNamespace[ref.Namespace]) == 0 {
			delete(r.budget.inNamespace, ref.Namespace)
		}
		changes.Policies[ref] = true
		r.release(changes, c, nil)
		r.budget.admit(r, changes, ref.Namespace)
	}
	return changes
}

// release drops a policy's references to selections that its new state does not use, or all of them if that is nil.
func (r *Resolver) release(changes *Changes, before compile.Compiled, now *compile.Compiled) {
	ref := before.Policy.Ref
	if subject := before.Subject.ID(); now == nil || now.Subject.ID() != subject {
		s := r.selections[subject]
		changes.allPods(s)
		delete(s.subjects, ref)
		r.forget(s)
	}
	for id := range before.Sets {
		if now != nil {
			if _, still := now.Sets[id]; still {
				continue
			}
		}
		if s := r.selections[id]; s != nil {
			delete(s.users, ref)
			r.forget(s)
		}
	}
}

// selection returns the selection of a selector, which it creates if missing.
func (r *Resolver) selection(changes *Changes, selector compile.Selector) *selection {
	id := selector.ID()
	s := r.selections[id]
	if s != nil {
		return s
	}
	s = newSelection(selector, id)
	r.selections[id] = s
	for _, n := range r.nodes {
		if s.Kind == compile.Nodes {
			s.change(changes, nil, s.ofNode(n))
		}
	}
	for _, ns := range r.candidates(s) {
		if s.maySelect(ns) {
			ns.by[s] = true
			for p := range ns.pods {
				r.review(changes, s, p, p.Pod)
			}
		}
	}
	return s
}

// candidates returns the namespaces whose pods a selection can select.
func (r *Resolver) candidates(s *selection) []*namespace {
	switch {
	case s.Kind == compile.Nodes:
		return nil
	case s.Namespace != "":
		return []*namespace{r.namespace(s.Namespace)}
	}
	return slices.Collect(maps.Values(r.namespaces))
}

// forget drops a selection that no policy uses.
func (r *Resolver) forget(s *selection) {
	if len(s.subjects)+len(s.users) > 0 {
		return
	}
	delete(r.selections, s.id)
	for p := range s.pods {
		delete(p.by, s)
	}
	for _, ns := range r.candidates(s) {
		delete(ns.by, s)
		r.dropIfEmpty(ns)
	}
}

// allPods records all pods of a selection as changed.
func (c *Changes) allPods(s *selection) {
	for p := range s.pods {
		c.Pods[p.NamespacedName] = true
	}
}

// whole records all elements of a set that was unused before.
func (c *Changes) whole(s *selection) {
	change := &policy.SetChange{Whole: true}
	for e := range s.elements {
		change.Note(e, true)
	}
	c.Sets[s.id] = change
}

// Policies returns the policies of a pod in the order of evaluation. ok is false if there is no such pod.
func (r *Resolver) Policies(name types.NamespacedName) (p Pod, list []*policy.Policy, ok bool) {
	known := r.pods[name]
	if known == nil {
		return Pod{}, nil, false
	}
	for s := range known.by {
		list = slices.AppendSeq(list, maps.Values(s.subjects))
	}
	slices.SortFunc(list, policy.Compare)
	return known.Pod, list, true
}

// PodOf returns a pod, without its policies. ok is false if there is no such pod.
func PodOf(r *Resolver, name types.NamespacedName) (p Pod, ok bool) {
	known := r.pods[name]
	if known == nil {
		return Pod{}, false
	}
	return known.Pod, true
}

// Pods calls yield for each pod.
func (r *Resolver) Pods() iter.Seq[types.NamespacedName] { return maps.Keys(r.pods) }

// Policy returns a policy, or nil.
func (r *Resolver) Policy(ref policy.Ref) *policy.Policy { return r.policies[ref].Policy }

// Elements calls yield for each element of a set.
func (r *Resolver) Elements(id policy.SetID, yield func(policy.Element)) {
	if s := r.selections[id]; s != nil {
		for e := range s.elements {
			yield(e)
		}
	}
}

// Has implements policy.Sets.
func (r *Resolver) Has(id policy.SetID, e policy.Element) bool {
	s := r.selections[id]
	return s != nil && s.elements[e] > 0
}

// Size returns the number of elements of a set, and of pods that its selector selects.
func (r *Resolver) Size(id policy.SetID) (elements, pods int) {
	if s := r.selections[id]; s != nil {
		return len(s.elements), len(s.pods)
	}
	return 0, 0
}
