package membership

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// MaxSelecting is how many Egresses of a namespace can select pods: the oldest ones. A namespace with
// an administrator's grant has no such limit. It bounds what the Egresses of a tenant cost others: so
// many selectors are evaluated for a pod whose namespace consents, and none for other pods.
const MaxSelecting = 32

// Selectors are those of all Egresses, with the namespaces that have a grant. A value is immutable:
// With and Granting return another. The zero value has none.
type Selectors struct {
	berthNamespace string
	of             map[string][]selecting // by namespace, the oldest first
	granted        map[string]bool
}

// selecting is an Egress that selects pods.
type selecting struct {
	ref      Ref
	created  time.Time
	selector Selector
}

// older orders by age, then by name.
func older(a, b selecting) int { return cmp.Or(a.created.Compare(b.created), a.ref.Compare(b.ref)) }

// NewSelectors makes a value without selectors. berthNamespace is Berth's own; empty: it is not known.
func NewSelectors(berthNamespace string) Selectors { return Selectors{berthNamespace: berthNamespace} }

// With replaces or adds the selector of an Egress, and tells whether that makes a difference.
func (s Selectors) With(ref Ref, created time.Time, selector Selector) (_ Selectors, differs bool) {
	before := s.of[ref.Namespace]
	at := slices.IndexFunc(before, func(o selecting) bool { return o.ref == ref })
	if at < 0 && !selector.Any() || at >= 0 && before[at].created.Equal(created) && before[at].selector.same(selector) {
		return s, false
	}
	now := make([]selecting, 0, len(before)+1)
	for i, o := range before {
		if i != at {
			now = append(now, o)
		}
	}
	if one := (selecting{ref, created, selector}); selector.Any() {
		i, _ := slices.BinarySearchFunc(now, one, older)
		now = slices.Insert(now, i, one)
	}
	s.of = with(s.of, ref.Namespace, now, len(now) > 0)
	return s, true
}

// Without removes the selector of an Egress, if it has one.
func (s Selectors) Without(ref Ref) (_ Selectors, differs bool) {
	return s.With(ref, time.Time{}, Selector{})
}

// Granting sets whether a namespace has a grant.
func (s Selectors) Granting(namespace string, granted bool) Selectors {
	if s.granted[namespace] != granted {
		s.granted = with(s.granted, namespace, true, granted)
	}
	return s
}

// with copies a map, and sets or deletes a key in the copy.
func with[V any](of map[string]V, key string, value V, there bool) map[string]V {
	of = maps.Clone(of)
	if !there {
		delete(of, key)
		return of
	}
	if of == nil {
		of = map[string]V{}
	}
	of[key] = value
	return of
}

// Granted tells whether a namespace has a grant.
func (s Selectors) Granted(namespace string) bool { return s.granted[namespace] }

// active are the Egresses of a namespace that select pods.
func (s Selectors) active(namespace string) []selecting {
	all := s.of[namespace]
	if !s.granted[namespace] {
		all = all[:min(len(all), MaxSelecting)]
	}
	return all
}

// Active are the names of the Egresses of a namespace that select pods.
func (s Selectors) Active(namespace string) (out []Ref) {
	for _, o := range s.active(namespace) {
		out = append(out, o.ref)
	}
	return out
}

// IsActive tells whether an Egress is among those.
func (s Selectors) IsActive(ref Ref) bool { return s.find(ref) != nil }

// find is an Egress among those that select pods; nil: it does not.
func (s Selectors) find(ref Ref) *selecting {
	of := s.active(ref.Namespace)
	if i := slices.IndexFunc(of, func(o selecting) bool { return o.ref == ref }); i >= 0 {
		return &of[i]
	}
	return nil
}

// candidates are the Egresses whose selectors must be evaluated for pods of a namespace: its
// own, those of namespaces to which it consents, and those of namespaces with a grant.
func (s Selectors) candidates(n Namespace) (out []selecting) {
	from := []string{n.Name}
	for _, name := range n.consentsTo() {
		if name == everyone {
			from = slices.AppendSeq(from, maps.Keys(s.of))
			break
		}
		from = append(from, name)
	}
	from = slices.AppendSeq(from, maps.Keys(s.granted))
	slices.Sort(from)
	for _, name := range slices.Compact(from) {
		if maySelect(name, s.granted[name], n, s.berthNamespace) {
			out = append(out, s.active(name)...)
		}
	}
	return out
}

// Of are the Egresses that may select pods of a namespace, ordered by namespace and age.
func (s Selectors) Of(n Namespace) (out []Ref) {
	for _, o := range s.candidates(n) {
		if o.selector.Namespace(n.Name, n.Labels) {
			out = append(out, o.ref)
		}
	}
	return out
}

// Selects tells whether an Egress may select pods of a namespace.
func (s Selectors) Selects(ref Ref, n Namespace) bool {
	o := s.find(ref)
	return o != nil && o.selector.Namespace(n.Name, n.Labels) && maySelect(ref.Namespace, s.granted[ref.Namespace], n, s.berthNamespace)
}

// MissesConsent tells whether an Egress's selector matches a namespace that could consent and does not.
func (s Selectors) MissesConsent(ref Ref, n Namespace) bool {
	o := s.find(ref)
	return o != nil && s.missesConsent(*o, n)
}

func (s Selectors) missesConsent(o selecting, n Namespace) bool {
	could, does := maySelect(o.ref.Namespace, true, n, s.berthNamespace), maySelect(o.ref.Namespace, s.granted[o.ref.Namespace], n, s.berthNamespace)
	return could && !does && o.selector.Namespace(n.Name, n.Labels)
}

// MissingConsent are all Egresses for which MissesConsent is true.
func (s Selectors) MissingConsent(n Namespace) (out []Ref) {
	for namespace := range s.of {
		for _, o := range s.active(namespace) {
			if s.missesConsent(o, n) {
				out = append(out, o.ref)
			}
		}
	}
	slices.SortFunc(out, Ref.Compare)
	return out
}

// ByLabels tells whether any Egress selects namespaces by their labels.
func (s Selectors) ByLabels() bool {
	for namespace := range s.of {
		if slices.ContainsFunc(s.active(namespace), func(o selecting) bool { return o.selector.ByLabels() }) {
			return true
		}
	}
	return false
}
