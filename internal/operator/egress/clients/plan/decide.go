package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/egress/membership"
)

// Pod is one as far as it decides which Egresses it uses.
type Pod struct {
	Namespace           string
	Labels, Annotations map[string]string
	// HostNetwork tells that it is in the node's network namespace, Static that it
	// stands for a static pod of a kubelet, Gateway that it is a gateway of an Egress.
	HostNetwork, Static, Gateway bool
}

// Decision is which Egresses a pod uses, and which it may not.
type Decision struct {
	// Wanted tells that its node is to be told.
	Wanted bool
	// Egresses are those that it uses, ordered by namespace and name.
	Egresses []v1alpha1.EgressReference
	// Refused are those that it would use, and why it may not, likewise.
	Refused []v1alpha1.EgressRefusal
}

// Decide finds which Egresses a pod uses: those that its annotations name and that allow it,
// and those that select it. Of two whose destinations overlap it uses the one that it names,
// then the older one, then the first by namespace and name. A pod of the node's network, a
// static pod and a gateway use none; who names Egresses in it is told.
func Decide(p Pod, namespace map[string]string, all Egresses) Decision {
	selecting := all.Selecting(p.Namespace, namespace)
	named, errs := membership.Named(p.Annotations)
	d := Decision{Wanted: len(named) > 0 || len(errs) > 0 || len(selecting) > 0 && !p.HostNetwork}
	if !d.Wanted {
		return d
	}
	if why := p.cannot(); why != "" {
		for _, ref := range named {
			d.refuse(ref, true, v1alpha1.EgressInvalid, "%s names Egress %s, which %s: take it out", membership.Field(ref.Namespace), ref, why)
		}
		selecting, named = nil, nil
	}
	for _, e := range errs {
		d.refuse(membership.Ref{Namespace: e.Namespace}, true, v1alpha1.EgressInvalid, "%s", e.Error())
	}
	for _, e := range choices(p, namespace, all, named, selecting, &d) {
		d.take(e, slices.Contains(named, e.Ref), all)
	}
	slices.SortFunc(d.Egresses, func(a, b v1alpha1.EgressReference) int {
		return membership.Ref{Namespace: a.Namespace, Name: a.Name}.Compare(membership.Ref{Namespace: b.Namespace, Name: b.Name})
	})
	d.shorten()
	return d
}

// cannot is why a pod uses no Egress at all; empty: it may.
func (p Pod) cannot() string {
	switch {
	case p.HostNetwork:
		return "a pod of the node's network (spec.hostNetwork) cannot use"
	case p.Static:
		return "a static pod cannot use"
	case p.Gateway:
		return "a gateway of an Egress cannot use"
	}
	return ""
}

// choices are the Egresses that a pod may use, the ones that win first: those that it names,
// then those that select it, each the older first.
func choices(p Pod, namespace map[string]string, all Egresses, named []membership.Ref, selecting []*Egress, d *Decision) []*Egress {
	var first, then []*Egress
	for _, e := range selecting {
		if e.selector.Pod(p.Labels) && !slices.Contains(named, e.Ref) {
			then = append(then, e)
		}
	}
	for _, ref := range named {
		e := all.Get(ref)
		if e == nil {
			d.refuse(ref, true, v1alpha1.EgressNotFound, "there is no Egress %s: make it, or take it out of %s", ref, membership.Field(ref.Namespace))
			continue
		}
		if why := e.forbids(p, namespace); why != "" {
			d.refuse(ref, true, v1alpha1.EgressNotAllowed, "%s", why)
			continue
		}
		first = append(first, e)
	}
	slices.SortFunc(first, older)
	slices.SortFunc(then, older)
	return append(first, then...)
}

// forbids is why a pod that names an Egress may not use it; empty: it may.
func (e *Egress) forbids(p Pod, namespace map[string]string) string {
	if p.Namespace == e.Ref.Namespace || e.Selects(p.Namespace, namespace) && e.selector.Pod(p.Labels) {
		return ""
	}
	allowed, err := e.spec.AllowedNamespaces.Allows(p.Namespace, namespace)
	if allowed {
		return ""
	}
	because := ""
	if err != nil {
		because = " (" + err.Error() + ")"
	}
	return fmt.Sprintf("Egress %s does not allow pods of namespace %s%s: have its spec.allowedNamespaces or spec.clients allow them, or take it out of %s",
		e.Ref, p.Namespace, because, membership.Field(e.Ref.Namespace))
}

// take has a pod use an Egress, unless it overlaps one that it uses already.
func (d *Decision) take(e *Egress, named bool, all Egresses) {
	for _, have := range d.Egresses {
		if what := overlap(e, all.Get(membership.Ref{Namespace: have.Namespace, Name: have.Name})); what != "" {
			d.refuse(e.Ref, named, v1alpha1.EgressOverlaps,
				"%s overlap, and the pod uses the latter: have it use one of the two, or give them destinations that do not overlap", what)
			return
		}
	}
	if len(d.Egresses) == membership.MaxEgresses {
		d.refuse(e.Ref, named, v1alpha1.EgressInvalid, "the pod uses %d other Egresses, which is the most: have fewer select it or be named", membership.MaxEgresses)
		return
	}
	d.Egresses = append(d.Egresses, e.reference())
}

// Most is how long a refusal's message may be, in bytes.
const Most = 1024

func (d *Decision) refuse(ref membership.Ref, named bool, reason, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if len(message) > Most {
		message = strings.ToValidUTF8(message[:Most-3], "") + "..."
	}
	d.Refused = append(d.Refused, v1alpha1.EgressRefusal{Namespace: ref.Namespace, Name: ref.Name, Reason: reason, Message: message, Named: named})
}

// shorten orders the refusals, and leaves out those that an EgressClient has no room for:
// such that the pod does not name.
func (d *Decision) shorten() {
	slices.SortStableFunc(d.Refused, func(a, b v1alpha1.EgressRefusal) int {
		switch {
		case a.Named == b.Named:
			return 0
		case a.Named:
			return -1
		}
		return 1
	})
	d.Refused = d.Refused[:min(len(d.Refused), membership.MaxEgresses)]
	slices.SortFunc(d.Refused, func(a, b v1alpha1.EgressRefusal) int {
		return membership.Ref{Namespace: a.Namespace, Name: a.Name}.Compare(membership.Ref{Namespace: b.Namespace, Name: b.Name})
	})
}
