package resolve

import (
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
)

// selection is a selector with the objects that it selects. Policies share selections.
type selection struct {
	compile.Selector
	id       policy.SetID
	subjects map[policy.Ref]*policy.Policy // policies whose pods it selects
	users    map[policy.Ref]bool           // policies with its set in a rule
	pods     map[*pod]bool                 // selected, unless Kind is Nodes
	elements map[policy.Element]int        // number of pods or nodes with the element
}

func newSelection(s compile.Selector, id policy.SetID) *selection {
	return &selection{
		Selector: s, id: id,
		subjects: map[policy.Ref]*policy.Policy{}, users: map[policy.Ref]bool{},
		pods: map[*pod]bool{}, elements: map[policy.Element]int{},
	}
}

// selects reports whether the selection selects a pod, given that it selects the pod's namespace.
func (s *selection) selects(p *pod) bool { return s.Labels.Matches(labels.Set(p.Labels)) }

// of returns the elements of a pod in the set.
func (s *selection) of(p Pod) []policy.Element {
	var list []policy.Element
	for _, a := range p.Addrs {
		if s.Kind != compile.Ports {
			list = append(list, policy.Element{Addr: a})
			continue
		}
		for _, port := range p.Ports {
			if port.Name == s.Port && (s.Protocol == 0 || s.Protocol == port.Protocol) {
				list = append(list, policy.Element{Addr: a, Protocol: port.Protocol, Port: port.Number})
			}
		}
	}
	return list
}

// change adds and removes elements, and records the new and removed ones in changes.
func (s *selection) change(changes *Changes, remove, add []policy.Element) {
	for _, e := range add {
		if s.elements[e]++; s.elements[e] == 1 {
			changes.element(s, e, true)
		}
	}
	for _, e := range remove {
		if s.elements[e]--; s.elements[e] == 0 {
			delete(s.elements, e)
			changes.element(s, e, false)
		}
	}
}
