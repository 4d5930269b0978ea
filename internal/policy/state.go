package policy

import (
	"iter"
	"maps"
	"slices"
)

// PodName names a pod.
type PodName struct{ Namespace, Name string }

// Selected lists the policies that select a pod, in the order of Compare.
type Selected struct {
	UID      string // a pod of the same name with another UID is another pod
	Policies []Ref
}

// Update is a change that is sent to a node, and applied atomically.
type Update struct {
	Version  uint64
	Whole    bool                  // it replaces the whole state
	Pods     map[PodName]*Selected // nil if the pod is gone
	Policies map[Ref]*Policy       // nil if no pod of the node has the policy any more
	Sets     SetChanges            // changes of the sets in these policies
}

// Empty reports whether an update changes nothing.
func (u *Update) Empty() bool {
	return !u.Whole && len(u.Pods)+len(u.Policies)+len(u.Sets) == 0
}

// State is a node's state: its pods, the policies that select them, and the sets in these policies. It must not be used
// concurrently.
type State struct {
	version  uint64
	pods     map[PodName]Selected
	policies map[Ref]*Policy
	sets     map[SetID]map[Element]struct{}
	lists    map[PodName][]*Policy // results of Of since the last change
}

// NewState returns an empty State.
func NewState() *State {
	return &State{pods: map[PodName]Selected{}, policies: map[Ref]*Policy{}, sets: map[SetID]map[Element]struct{}{}, lists: map[PodName][]*Policy{}}
}

// Take applies an update, and reports whether policies or pods have changed, and not only sets.
func (s *State) Take(u *Update) (rules bool) {
	if u.Whole {
		*s = *NewState()
	}
	s.version = u.Version
	for name, p := range u.Pods {
		if p == nil {
			delete(s.pods, name)
		} else {
			s.pods[name] = *p
		}
	}
	for ref, p := range u.Policies {
		if p == nil {
			delete(s.policies, ref)
		} else {
			s.policies[ref] = p
		}
	}
	for id, change := range u.Sets {
		s.change(id, change)
	}
	if rules = u.Whole || len(u.Pods)+len(u.Policies) > 0; rules {
		clear(s.lists)
		s.dropSets()
	}
	return rules
}

func (s *State) change(id SetID, change *SetChange) {
	elements := s.sets[id]
	if elements == nil || change.Whole {
		elements = map[Element]struct{}{}
		s.sets[id] = elements
	}
	for e, came := range change.Elements {
		if came {
			elements[e] = struct{}{}
		} else {
			delete(elements, e)
		}
	}
}

// dropSets drops the sets that no policy names.
func (s *State) dropSets() {
	named := map[SetID]bool{}
	for _, p := range s.policies {
		maps.Copy(named, p.Sets())
	}
	maps.DeleteFunc(s.sets, func(id SetID, _ map[Element]struct{}) bool { return !named[id] })
}

// Version returns the version of the last update, or 0.
func (s *State) Version() uint64 { return s.version }

// Of returns the policies of a pod in the order of evaluation. The list must not be modified. ok is false if the pod is not known.
func (s *State) Of(name PodName, uid string) (list []*Policy, ok bool) {
	p, known := s.pods[name]
	if !known || p.UID != uid {
		return nil, false
	}
	if list, ok = s.lists[name]; ok {
		return list, true
	}
	for _, ref := range p.Policies {
		if policy := s.policies[ref]; policy != nil {
			list = append(list, policy)
		}
	}
	slices.SortFunc(list, Compare)
	s.lists[name] = list
	return list, true
}

// Has implements Sets.
func (s *State) Has(id SetID, e Element) bool {
	_, has := s.sets[id][e]
	return has
}

// Elements calls yield for each element of a set.
func (s *State) Elements(id SetID, yield func(Element)) {
	for e := range s.sets[id] {
		yield(e)
	}
}

// Pods returns the known pods and their UIDs.
func (s *State) Pods() iter.Seq2[PodName, string] {
	return func(yield func(PodName, string) bool) {
		for name, p := range s.pods {
			if !yield(name, p.UID) {
				return
			}
		}
	}
}

// Policies returns the known policies. The map changes with the state.
func (s *State) Policies() map[Ref]*Policy { return s.policies }

// SetIDs returns the known sets.
func (s *State) SetIDs() iter.Seq[SetID] { return maps.Keys(s.sets) }

// Whole returns the whole state as an update.
func (s *State) Whole() *Update {
	u := &Update{Version: s.version, Whole: true, Pods: map[PodName]*Selected{}, Policies: maps.Clone(s.policies), Sets: SetChanges{}}
	for name, p := range s.pods {
		u.Pods[name] = &p
	}
	for id, elements := range s.sets {
		change := &SetChange{Whole: true, Elements: make(map[Element]bool, len(elements))}
		for e := range elements {
			change.Elements[e] = true
		}
		u.Sets[id] = change
	}
	return u
}

// Size returns how many elements a set has.
func (s *State) Size(id SetID) int { return len(s.sets[id]) }
