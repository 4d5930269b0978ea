package membership

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berthnet/berth/api/v1alpha1"
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

// With replaces or adds the selector of an Egress, and reports whether that makes a difference.
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

// Granted reports whether a namespace has a grant.
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

// IsActive reports whether an Egress is among those.
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

// Selects reports whether an Egress may select pods of a namespace.
func (s Selectors) Selects(ref Ref, n Namespace) bool {
	o := s.find(ref)
	return o != nil && o.selector.Namespace(n.Name, n.Labels) && maySelect(ref.Namespace, s.granted[ref.Namespace], n, s.berthNamespace)
}

// MissesConsent reports whether an Egress's selector matches a namespace that could consent and does not.
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

// ByLabels reports whether any Egress selects namespaces by their labels.
func (s Selectors) ByLabels() bool {
	for namespace := range s.of {
		if slices.ContainsFunc(s.active(namespace), func(o selecting) bool { return o.selector.ByLabels() }) {
			return true
		}
	}
	return false
}

// Selector is spec.clients of an Egress. The zero value selects nothing.
type Selector struct {
	own        string          // the Egress's namespace, where namespaces is nil
	namespaces labels.Selector // nil: own alone
	pods       labels.Selector // nil: nothing is selected
}

// NewSelector reads spec.clients of an Egress in a namespace; nil selects nothing. The error names
// the invalid selector.
func NewSelector(namespace string, of *v1alpha1.EgressClientSelector) (Selector, error) {
	if of == nil {
		return Selector{}, nil
	}
	s := Selector{own: namespace, pods: labels.Everything()}
	var err error
	if of.NamespaceSelector != nil {
		if s.namespaces, err = of.NamespaceSelector.Compile(); err != nil {
			return Selector{}, fmt.Errorf("spec.clients.namespaceSelector: %w", err)
		}
	}
	if of.PodSelector != nil {
		if s.pods, err = of.PodSelector.Compile(); err != nil {
			return Selector{}, fmt.Errorf("spec.clients.podSelector: %w", err)
		}
	}
	return s, nil
}

// Any reports whether it can select anything at all.
func (s Selector) Any() bool { return s.pods != nil }

// Namespace reports whether pods of a namespace with some labels may be selected: those that Pod
// matches.
func (s Selector) Namespace(name string, has map[string]string) bool {
	switch {
	case s.pods == nil:
		return false
	case s.namespaces == nil:
		return name == s.own
	}
	return s.namespaces.Matches(labels.Set(has))
}

// Pod reports whether a pod with some labels is selected in a selected namespace.
func (s Selector) Pod(has map[string]string) bool {
	return s.pods != nil && s.pods.Matches(labels.Set(has))
}

// ByLabels reports whether it selects namespaces by labels.
func (s Selector) ByLabels() bool { return s.namespaces != nil }

// same reports whether two select the same pods.
func (s Selector) same(o Selector) bool {
	equal := func(a, b labels.Selector) bool {
		return (a == nil) == (b == nil) && (a == nil || a.String() == b.String())
	}
	return s.own == o.own && equal(s.namespaces, o.namespaces) && equal(s.pods, o.pods)
}

// Namespace is what of a Namespace decides which Egresses may select its pods.
type Namespace struct {
	Name                string
	Labels, Annotations map[string]string
}

// ReadNamespace reads the metadata of a Namespace.
func ReadNamespace(o metav1.Object) Namespace {
	return Namespace{Name: o.GetName(), Labels: o.GetLabels(), Annotations: o.GetAnnotations()}
}

// Granted reports whether an administrator lets Egresses of the namespace select pods of others
// without their consent.
func (n Namespace) Granted() bool { return n.Labels[v1alpha1.LabelEgressMaySelect] == "true" }

// everyone stands for all namespaces in a namespace's consent.
const everyone = "*"

// consentsTo are the namespaces whose Egresses may select pods of this one.
func (n Namespace) consentsTo() []string {
	value := n.Annotations[v1alpha1.AnnotationEgressSelectableFrom]
	if value == "" {
		return nil
	}
	names := strings.Split(value, ",")
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	return names
}

// Same reports whether two states of a Namespace make no difference to any Egress.
func (n Namespace) Same(o Namespace) bool {
	const key = v1alpha1.AnnotationEgressSelectableFrom
	return n.Annotations[key] == o.Annotations[key] && maps.Equal(n.Labels, o.Labels)
}

// systemNamespaces are those of Kubernetes itself. No Egress of another namespace selects their
// pods, with or without consent: every pod loses DNS when CoreDNS is cut off.
var systemNamespaces = []string{metav1.NamespaceSystem, metav1.NamespacePublic, "kube-node-lease"}

// maySelect reports whether Egresses of a namespace may select pods of another namespace. Berth's
// own is a system namespace too.
func maySelect(from string, granted bool, of Namespace, berthNamespace string) bool {
	switch {
	case from == of.Name:
		return true
	case of.Name == berthNamespace || slices.Contains(systemNamespaces, of.Name):
		return false
	}
	return granted || slices.ContainsFunc(of.consentsTo(), func(name string) bool { return name == from || name == everyone })
}
