package plan

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/egress/membership"
)

// Egress is one as far as it decides who its clients are.
type Egress struct {
	Ref        membership.Ref
	UID        string
	Generation int64 // of the spec
	Created    time.Time
	// Gateways tells that it has one that is ready.
	Gateways bool
	// Wrong is what of spec.clients or spec.allowedNamespaces cannot be read; then it
	// selects nothing by that. Nil: nothing.
	Wrong error

	spec         v1alpha1.EgressSpec
	destinations []netip.Prefix
	selector     membership.Selector
}

// Reads tells whether NewEgress would read an object as this; nil reads none.
func (e *Egress) Reads(o *v1alpha1.Egress) bool {
	return e != nil && e.UID == string(o.UID) && e.Generation == o.Generation && e.Gateways == (o.Status.ReadyGateways > 0)
}

// NewEgress reads one.
func NewEgress(o *v1alpha1.Egress) *Egress {
	e := &Egress{
		Ref: membership.Ref{Namespace: o.Namespace, Name: o.Name}, UID: string(o.UID), Generation: o.Generation, Created: o.CreationTimestamp.Time,
		Gateways: o.Status.ReadyGateways > 0, spec: o.Spec,
	}
	for _, d := range o.Spec.Destinations {
		if p, err := netip.ParsePrefix(d); err == nil { // the definition has checked it
			e.destinations = append(e.destinations, p)
		}
	}
	var wrong error
	e.selector, e.Wrong = membership.NewSelector(o.Namespace, o.Spec.Clients)
	if of := o.Spec.AllowedNamespaces; of != nil && of.Selector != nil {
		only := v1alpha1.VPCNamespaces{Selector: of.Selector}
		_, wrong = only.Allows("", nil)
	}
	e.Wrong = errors.Join(e.Wrong, wrong)
	return e
}

// SameChoice tells whether two, each of which may be nil for none, choose the same clients.
func (e *Egress) SameChoice(o *Egress) bool {
	if e == nil || o == nil {
		return e == o
	}
	return e.UID == o.UID && slices.Equal(e.spec.Destinations, o.spec.Destinations) &&
		equality.Semantic.DeepEqual(e.spec.Clients, o.spec.Clients) && equality.Semantic.DeepEqual(e.spec.AllowedNamespaces, o.spec.AllowedNamespaces)
}

// Selects tells whether pods of a namespace with some labels may be selected; nil: none is.
func (e *Egress) Selects(namespace string, has map[string]string) bool {
	return e != nil && e.selector.Namespace(namespace, has)
}

func (e *Egress) reference() v1alpha1.EgressReference {
	return v1alpha1.EgressReference{Namespace: e.Ref.Namespace, Name: e.Ref.Name, UID: e.UID}
}

// older orders by age, then by namespace and name.
func older(a, b *Egress) int { return cmp.Or(a.Created.Compare(b.Created), a.Ref.Compare(b.Ref)) }

// overlap tells what of two Egresses cannot be told apart by a pod that uses both; empty:
// nothing. That the one has all addresses of a family and the other some is no overlap.
func overlap(a, b *Egress) string {
	for _, p := range a.destinations {
		for _, q := range b.destinations {
			if p.Overlaps(q) && (p.Bits() == 0) == (q.Bits() == 0) {
				return fmt.Sprintf("%s of Egress %s and %s of Egress %s", p, a.Ref, q, b.Ref)
			}
		}
	}
	return ""
}

// Egresses are all there are. A value is never changed: With makes another.
type Egresses struct {
	all       map[membership.Ref]*Egress
	selecting []*Egress
}

// Get is one; nil: there is none.
func (e Egresses) Get(ref membership.Ref) *Egress { return e.all[ref] }

// With are all, with one instead of the one of its name; nil: without it.
func (e Egresses) With(ref membership.Ref, one *Egress) Egresses {
	out := Egresses{all: make(map[membership.Ref]*Egress, len(e.all)+1)}
	for r, o := range e.all {
		if r != ref {
			out.add(o)
		}
	}
	if one != nil {
		out.add(one)
	}
	return out
}

// NewEgresses are all of some.
func NewEgresses(all []*Egress) Egresses {
	out := Egresses{all: make(map[membership.Ref]*Egress, len(all))}
	for _, e := range all {
		out.add(e)
	}
	return out
}

func (e *Egresses) add(one *Egress) {
	e.all[one.Ref] = one
	if one.selector.Any() {
		e.selecting = append(e.selecting, one)
	}
}

// Selecting are those that may select pods of a namespace with some labels.
func (e Egresses) Selecting(namespace string, has map[string]string) (out []*Egress) {
	for _, one := range e.selecting {
		if one.Selects(namespace, has) {
			out = append(out, one)
		}
	}
	return out
}

// SelectsAny tells whether an Egress may select anything; nil does not.
func (e *Egress) SelectsAny() bool { return e != nil && e.selector.Any() }
