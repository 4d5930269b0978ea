package clientplan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
)

// Egress is the part of an Egress that determines which pods are its clients.
type Egress struct {
	Ref        membership.Ref
	UID        string
	Generation int64 // of the spec
	Created    time.Time
	// Gateways reports whether the Egress has a ready gateway.
	Gateways bool
	// CoilClients reports whether pods may name the Egress with Coil's annotation.
	CoilClients bool
	// Migrating reports whether clients on some nodes may still use the gateways of Coil's Egress.
	Migrating bool
	// Wrong is why spec.clients or spec.allowedNamespaces is invalid and selects nothing; nil if
	// both are valid.
	Wrong error

	spec         v1alpha1.EgressSpec
	destinations []netip.Prefix
	selector     membership.Selector
}

// Reads reports whether NewEgress would return the same for an object; false if e is nil.
func (e *Egress) Reads(o *v1alpha1.Egress) bool {
	return e != nil && e.UID == string(o.UID) && e.Generation == o.Generation && e.Gateways == (o.Status.ReadyGateways > 0) && e.CoilClients == membership.HasCoilClients(o.Annotations) && e.Migrating == migrating(o)
}

// NewEgress converts an object.
func NewEgress(o *v1alpha1.Egress) *Egress {
	e := &Egress{
		Ref: membership.Ref{Namespace: o.Namespace, Name: o.Name}, UID: string(o.UID), Generation: o.Generation, Created: o.CreationTimestamp.Time,
		Gateways: o.Status.ReadyGateways > 0, CoilClients: membership.HasCoilClients(o.Annotations), Migrating: migrating(o), spec: o.Spec,
	}
	for _, d := range o.Spec.Destinations {
		if p, err := netip.ParsePrefix(d); err == nil { // validated by the CRD
			e.destinations = append(e.destinations, p)
		}
	}
	slices.SortFunc(e.destinations, netip.Prefix.Compare)
	var wrong error
	e.selector, e.Wrong = membership.NewSelector(o.Namespace, o.Spec.Clients)
	if of := o.Spec.AllowedNamespaces; of != nil && of.Selector != nil {
		only := v1alpha1.VPCNamespaces{Selector: of.Selector}
		if _, err := only.Allows("", nil); err != nil {
			wrong = fmt.Errorf("spec.allowedNamespaces.%w", err)
		}
	}
	e.Wrong = errors.Join(e.Wrong, wrong)
	return e
}

func migrating(o *v1alpha1.Egress) bool { return o.Annotations[v1alpha1.AnnotationCoilEgress] != "" }

// SameChoice reports whether two Egresses, either of which may be nil, choose the same clients.
func (e *Egress) SameChoice(o *Egress) bool {
	if e == nil || o == nil {
		return e == o
	}
	return e.UID == o.UID && e.CoilClients == o.CoilClients && slices.Equal(e.spec.Destinations, o.spec.Destinations) &&
		equality.Semantic.DeepEqual(e.spec.Clients, o.spec.Clients) && equality.Semantic.DeepEqual(e.spec.AllowedNamespaces, o.spec.AllowedNamespaces)
}

func (e *Egress) reference() v1alpha1.EgressReference {
	return v1alpha1.EgressReference{Namespace: e.Ref.Namespace, Name: e.Ref.Name, UID: e.UID}
}

// older orders Egresses by age, then by namespace and name.
func older(a, b *Egress) int { return cmp.Or(a.Created.Compare(b.Created), a.Ref.Compare(b.Ref)) }

// overlap names two overlapping destinations of two Egresses, or returns "" if none overlap. If one has
// the default route of a family and the other a part of it, that is no overlap, since the more specific
// destination wins; but if a yields to b, a must not take a part of b's default route either.
//
// It walks the sorted destinations of both: only earlier ones that contain a destination overlap it.
// The time therefore grows linearly and not with the square of the number of destinations, which
// users could exploit.
func overlap(a, b *Egress, yields bool) string {
	type destination struct {
		netip.Prefix
		ofA bool
	}
	var around []destination // each contains the next
	for i, j := 0, 0; i < len(a.destinations) || j < len(b.destinations); {
		var d destination
		if j == len(b.destinations) || i < len(a.destinations) && a.destinations[i].Compare(b.destinations[j]) < 0 {
			d, i = destination{a.destinations[i], true}, i+1
		} else {
			d, j = destination{b.destinations[j], false}, j+1
		}
		for len(around) > 0 && !around[len(around)-1].Overlaps(d.Prefix) {
			around = around[:len(around)-1]
		}
		for _, o := range around {
			p, q := d, o
			if o.ofA {
				p, q = o, d
			}
			all, part := p.Bits() == 0 && q.Bits() > 0, p.Bits() > 0 && q.Bits() == 0
			if o.ofA != d.ofA && !all && (!part || yields) {
				return fmt.Sprintf("%s of Egress %s and %s of Egress %s", p.Prefix, a.Ref, q.Prefix, b.Ref)
			}
		}
		around = append(around, d)
	}
	return ""
}

// Egresses is the set of all Egresses. A value is immutable: With and Granting return a new one.
type Egresses struct {
	all       map[string]map[string]*Egress // by namespace and name
	selectors membership.Selectors
}

// NewEgresses returns a set without grants by administrators. berthNamespace is Berth's own namespace,
// or "" if unknown.
func NewEgresses(berthNamespace string, all []*Egress) Egresses {
	out := Egresses{all: map[string]map[string]*Egress{}, selectors: membership.NewSelectors(berthNamespace)}
	for _, e := range all {
		if out.all[e.Ref.Namespace] == nil {
			out.all[e.Ref.Namespace] = map[string]*Egress{}
		}
		out.all[e.Ref.Namespace][e.Ref.Name] = e
		out.selectors, _ = out.selectors.With(e.Ref, e.Created, e.selector)
	}
	return out
}

// Get returns an Egress, or nil if it does not exist.
func (e Egresses) Get(ref membership.Ref) *Egress { return e.all[ref.Namespace][ref.Name] }

// With replaces or adds an Egress, or removes it if one is nil.
func (e Egresses) With(ref membership.Ref, one *Egress) Egresses {
	of := maps.Clone(e.all[ref.Namespace])
	if of == nil {
		of = map[string]*Egress{}
	}
	if one == nil {
		delete(of, ref.Name)
		e.selectors, _ = e.selectors.Without(ref)
	} else {
		of[ref.Name] = one
		e.selectors, _ = e.selectors.With(ref, one.Created, one.selector)
	}
	e.all = maps.Clone(e.all)
	if e.all[ref.Namespace] = of; len(of) == 0 {
		delete(e.all, ref.Namespace)
	}
	return e
}

// Granting sets whether an administrator lets the Egresses of a namespace select pods of other namespaces.
func (e Egresses) Granting(namespace string, granted bool) Egresses {
	e.selectors = e.selectors.Granting(namespace, granted)
	return e
}

// Selectors returns the selectors of all Egresses.
func (e Egresses) Selectors() membership.Selectors { return e.selectors }

// Selecting returns the Egresses that may select pods of a namespace.
func (e Egresses) Selecting(n membership.Namespace) (out []*Egress) {
	for _, ref := range e.selectors.Of(n) {
		out = append(out, e.Get(ref))
	}
	return out
}

// NotSelected returns why an Egress does not select a pod although its selector matches, or "" if it
// selects the pod or its selector does not match.
func (e Egresses) NotSelected(ref membership.Ref, p Pod) string {
	one := e.Get(ref)
	switch {
	case one == nil || !one.selector.Namespace(p.Namespace.Name, p.Namespace.Labels) || !one.selector.Pod(p.Labels) || e.selectors.Selects(ref, p.Namespace):
		return ""
	case !e.selectors.IsActive(ref):
		return fmt.Sprintf("Egress %s no longer selects the pod: %s", ref, tooMany(ref.Namespace))
	}
	return fmt.Sprintf("Egress %s no longer selects the pod: namespace %s does not let Egresses of namespace %s select its pods, see its annotation %s",
		ref, p.Namespace.Name, ref.Namespace, v1alpha1.AnnotationEgressSelectableFrom)
}

func tooMany(namespace string) string {
	return fmt.Sprintf("namespace %s has %d older Egresses with spec.clients, which is the limit: name Egresses in pods' annotations, delete some, or have a cluster administrator label the namespace %s=true",
		namespace, membership.MaxSelecting, v1alpha1.LabelEgressMaySelect)
}

// TooMany returns why an Egress with a selector selects nothing because its namespace has too many such
// Egresses, or "" if it selects pods or has no selector.
func (e Egresses) TooMany(one *Egress) string {
	if !one.selector.Any() || e.selectors.IsActive(one.Ref) {
		return ""
	}
	return tooMany(one.Ref.Namespace)
}

// NoConsent explains why an Egress does not select pods of namespaces without consent, and what to do.
// It names no namespaces, as the author of an Egress may not be allowed to list them.
func (e *Egress) NoConsent() string {
	lists := ""
	if s, err := e.spec.Clients.NamespaceSelector.Compile(); err == nil && len(s.String()) <= Most/2 {
		lists = fmt.Sprintf(" (kubectl get namespaces -l '%s' lists them)", s)
	}
	return fmt.Sprintf("spec.clients.namespaceSelector selects namespaces that do not let Egresses of namespace %s select their pods%s: "+
		"a cluster administrator annotates each with %s=%s, or labels namespace %s %s=true",
		e.Ref.Namespace, lists, v1alpha1.AnnotationEgressSelectableFrom, e.Ref.Namespace, e.Ref.Namespace, v1alpha1.LabelEgressMaySelect)
}

// Changed returns the Egresses that choose other clients after a change of one: that one, and those of
// its namespace that move into or out of the limit.
func Changed(before, now Egresses, ref membership.Ref) (out []membership.Ref) {
	was, is := before.selectors.Active(ref.Namespace), now.selectors.Active(ref.Namespace)
	if !before.Get(ref).SameChoice(now.Get(ref)) {
		out = append(out, ref)
	}
	for _, lists := range [][2][]membership.Ref{{was, is}, {is, was}} {
		for _, o := range lists[0] {
			if o != ref && !slices.Contains(lists[1], o) {
				out = append(out, o)
			}
		}
	}
	return out
}
