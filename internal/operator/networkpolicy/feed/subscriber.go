package feed

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/policy"
)

// Subscriber is one connected node. Its state is guarded by the Feed's lock.
type Subscriber struct {
	feed  *Feed
	node  string
	ready chan struct{}
	ended chan struct{} // closed when the subscription has ended

	whole    bool                                      // the next update contains everything
	version  uint64                                    // of the last update
	pods     map[types.NamespacedName]*policy.Selected // its pods, as last sent
	policies map[policy.Ref]*sentPolicy                // policies that it has
	sets     map[policy.SetID]*sentSet                 // sets that it has
	dirty    map[types.NamespacedName]bool             // pods to send
	changed  map[policy.Ref]bool                       // policies to send
	waiting  []waiting                                 // addresses that it does not enforce yet, in order of versions
}

type sentPolicy struct {
	*policy.Policy
	pods int // number of the node's pods with the policy
}

type sentSet struct {
	policies int    // number of its policies with the set
	next     uint64 // number of the next change to send
}

// Subscribe begins a subscription of a node, which has no data yet. An earlier subscription of the node ends.
func (f *Feed) Subscribe(node string) *Subscriber {
	f.mu.Lock()
	defer f.mu.Unlock()
	if before := f.byNode[node]; before != nil {
		before.end()
	}
	s := &Subscriber{
		feed: f, node: node, ready: make(chan struct{}, 1), ended: make(chan struct{}), whole: true,
		pods: map[types.NamespacedName]*policy.Selected{}, policies: map[policy.Ref]*sentPolicy{}, sets: map[policy.SetID]*sentSet{},
		dirty: map[types.NamespacedName]bool{}, changed: map[policy.Ref]bool{},
	}
	f.byNode[node] = s
	for name := range f.nodes[node] {
		s.dirty[name] = true
	}
	s.wake()
	return s
}

// Close ends the subscription.
func (s *Subscriber) Close() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.end()
}

func (s *Subscriber) end() {
	if s.feed.byNode[s.node] != s {
		return
	}
	delete(s.feed.byNode, s.node)
	close(s.ended)
	for id := range s.sets {
		s.feed.unwatch(id, s)
	}
	for _, w := range s.waiting {
		w.ticket.confirmed()
	}
	s.waiting = nil
}

// Ended is closed when the subscription has ended, for example because the node has another one.
func (s *Subscriber) Ended() <-chan struct{} { return s.ended }

// Ready has an element when Next may have an update.
func (s *Subscriber) Ready() <-chan struct{} { return s.ready }

func (s *Subscriber) wake() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

func (s *Subscriber) podChanged(name types.NamespacedName) {
	s.dirty[name] = true
	s.wake()
}

// Next returns all changes for the node since the last call. The version is 0 if there are none.
func (s *Subscriber) Next() *policy.Update {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	u := &policy.Update{Whole: s.whole, Pods: map[policy.PodName]*policy.Selected{}, Policies: map[policy.Ref]*policy.Policy{}, Sets: policy.SetChanges{}}
	if s.feed.byNode[s.node] != s {
		return &policy.Update{}
	}
	s.whole = false
	for id, t := range s.sets { // before new sets, which are sent whole
		if l := s.feed.sets[id]; l.next != t.next {
			u.Sets[id] = s.changesOf(id, l, t.next)
			t.next = l.next
		}
	}
	for name := range s.dirty {
		s.sendPod(u, name)
	}
	for ref := range s.changed {
		s.sendPolicy(u, ref)
	}
	clear(s.dirty)
	clear(s.changed)
	maps.DeleteFunc(u.Sets, func(id policy.SetID, _ *policy.SetChange) bool { return s.sets[id] == nil })
	if u.Empty() && len(s.waiting) == 0 {
		return u
	}
	s.version++
	u.Version = s.version
	return u
}

// changesOf returns the changes of a set from a number on, or the whole set if they are no longer kept.
func (s *Subscriber) changesOf(id policy.SetID, l *log, from uint64) *policy.SetChange {
	if change := l.since(from); change != nil {
		return change
	}
	return s.wholeSet(id)
}

func (s *Subscriber) wholeSet(id policy.SetID) *policy.SetChange {
	l := s.feed.sets[id]
	if l.whole != nil && l.wholeAt == l.next {
		return l.whole
	}
	change := &policy.SetChange{Whole: true, Elements: map[policy.Element]bool{}}
	s.feed.resolver.Elements(id, func(e policy.Element) { change.Elements[e] = true })
	l.whole, l.wholeAt = change, l.next
	return change
}

// sendPod adds a pod unless the node is up to date, and the policies that are added or removed with it.
func (s *Subscriber) sendPod(u *policy.Update, name types.NamespacedName) {
	key := policy.PodName(name)
	before, known := s.pods[name]
	delete(s.pods, name)
	pod, policies, there := s.feed.resolver.Policies(name)
	switch {
	case there && pod.Node == s.node:
		selected := &policy.Selected{UID: string(pod.UID)}
		for _, p := range policies {
			selected.Policies = append(selected.Policies, p.Ref)
			s.addPolicy(u, p)
		}
		s.pods[name] = selected
		if !known || before.UID != selected.UID || !slices.Equal(before.Policies, selected.Policies) {
			u.Pods[key] = selected
		}
	case known:
		u.Pods[key] = nil
	}
	if known {
		for _, ref := range before.Policies {
			s.dropPolicy(u, ref)
		}
	}
}

// addPolicy records that one more pod has a policy.
func (s *Subscriber) addPolicy(u *policy.Update, p *policy.Policy) {
	t := s.policies[p.Ref]
	if t == nil {
		t = &sentPolicy{Policy: p}
		s.policies[p.Ref] = t
		u.Policies[p.Ref] = p
		s.addSets(u, p)
	}
	t.pods++
}

// dropPolicy records that a pod no longer has a policy.
func (s *Subscriber) dropPolicy(u *policy.Update, ref policy.Ref) {
	t := s.policies[ref]
	if t.pods--; t.pods == 0 {
		delete(s.policies, ref)
		u.Policies[ref] = nil
		s.dropSets(t.Policy)
	}
}

// sendPolicy adds a policy whose content has changed.
func (s *Subscriber) sendPolicy(u *policy.Update, ref policy.Ref) {
	t, now := s.policies[ref], s.feed.resolver.Policy(ref)
	if t == nil || now == nil || t.Policy == now {
		return
	}
	before := t.Policy
	t.Policy, u.Policies[ref] = now, now
	s.addSets(u, now)
	s.dropSets(before)
}

func (s *Subscriber) addSets(u *policy.Update, p *policy.Policy) {
	for id := range p.Sets() {
		t := s.sets[id]
		if t == nil {
			t = &sentSet{next: s.feed.watch(id, s)}
			s.sets[id] = t
			u.Sets[id] = s.wholeSet(id)
		}
		t.policies++
	}
}

func (s *Subscriber) dropSets(p *policy.Policy) {
	for id := range p.Sets() {
		if t := s.sets[id]; t.policies > 1 {
			t.policies--
		} else {
			delete(s.sets, id)
			s.feed.unwatch(id, s)
		}
	}
}
