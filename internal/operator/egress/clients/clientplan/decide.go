package clientplan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
)

// Pod is what of a pod decides which Egresses it uses.
type Pod struct {
	Namespace           membership.Namespace
	Labels, Annotations map[string]string
	// HostNetwork tells that it is in the node's network namespace, Static that it is the
	// mirror of a static pod, Gateway that it is a gateway of an Egress.
	HostNetwork, Static, Gateway bool
}

// Decision is which Egresses a pod uses, and which it is refused.
type Decision struct {
	// Wanted tells that the pod has an EgressClient.
	Wanted bool
	// Egresses are those that it uses, ordered by namespace and name.
	Egresses []v1alpha1.EgressReference
	// Selected are those of them, as namespace/name, that select it and that it does not name.
	Selected []string
	// Refused are those that it is refused, and why, in the same order.
	Refused []v1alpha1.EgressRefusal
}

// Decide finds which Egresses a pod uses: those that its annotations name and that allow it,
// and those that select it with its namespace's consent. Of two whose destinations overlap it uses
// the one of the better rank, then the older one, then the first by namespace and name. A pod in the
// node's network, a static pod and a gateway use none: Egresses that they name are refused.
func Decide(p Pod, all Egresses) Decision {
	selecting := all.Selecting(p.Namespace)
	refs, errs := membership.Named(p.Annotations)
	d := Decision{Wanted: len(refs) > 0 || len(errs) > 0 || len(selecting) > 0 && !p.HostNetwork}
	if !d.Wanted {
		return d
	}
	if why := p.cannot(); why != "" {
		for _, ref := range refs {
			d.refuse(ref, true, v1alpha1.EgressInvalid, "%s names Egress %s, which %s: remove it", membership.Field(ref.Namespace), ref, why)
		}
		selecting, refs = nil, nil
	}
	for _, e := range errs {
		d.refuse(membership.Ref{Namespace: e.Namespace}, true, v1alpha1.EgressInvalid, "%s", e.Error())
	}
	d.take(choices(p, all, refs, selecting, &d))
	slices.SortFunc(d.Egresses, func(a, b v1alpha1.EgressReference) int {
		return membership.Ref{Namespace: a.Namespace, Name: a.Name}.Compare(membership.Ref{Namespace: b.Namespace, Name: b.Name})
	})
	slices.Sort(d.Selected)
	d.shorten()
	return d
}

// cannot is why a pod uses no Egress at all; empty: it may.
func (p Pod) cannot() string {
	switch {
	case p.HostNetwork:
		return "a pod in the node's network (spec.hostNetwork) cannot use"
	case p.Static:
		return "a static pod cannot use"
	case p.Gateway:
		return "a gateway of an Egress cannot use"
	}
	return ""
}

// rank is why a pod uses an Egress, the best reason first: no Egress takes a destination, or a
// part of one, from an Egress of a better rank.
type rank int

const (
	named      rank = iota // the pod names it
	ofOwn                  // it is in the pod's namespace and selects the pod
	ofAnothers             // it is in another namespace and selects the pod
)

// choice is an Egress that a pod may use.
type choice struct {
	*Egress
	rank rank
}

// choices are the Egresses that a pod may use: the better rank first, then the older.
func choices(p Pod, all Egresses, refs []membership.Ref, selecting []*Egress, d *Decision) (out []choice) {
	for _, e := range selecting {
		switch {
		case !e.selector.Pod(p.Labels) || slices.Contains(refs, e.Ref):
		case e.Ref.Namespace == p.Namespace.Name:
			out = append(out, choice{e, ofOwn})
		default:
			out = append(out, choice{e, ofAnothers})
		}
	}
	for _, ref := range refs {
		e := all.Get(ref)
		if e == nil {
			d.refuse(ref, true, v1alpha1.EgressNotFound, "there is no Egress %s: create it, or remove it from %s", ref, membership.Field(ref.Namespace))
			continue
		}
		if why := e.forbids(p); why != "" {
			d.refuse(ref, true, v1alpha1.EgressNotAllowed, "%s", why)
			continue
		}
		out = append(out, choice{e, named})
	}
	slices.SortFunc(out, func(a, b choice) int { return cmp.Or(cmp.Compare(a.rank, b.rank), older(a.Egress, b.Egress)) })
	return out
}

// forbids is why a pod that names an Egress may not use it; empty: it may. A pod that the Egress's
// selector matches may: by naming the Egress it consents.
func (e *Egress) forbids(p Pod) string {
	of := p.Namespace
	if of.Name == e.Ref.Namespace || e.selector.Namespace(of.Name, of.Labels) && e.selector.Pod(p.Labels) {
		return ""
	}
	allowed, err := e.spec.AllowedNamespaces.Allows(of.Name, of.Labels)
	if allowed {
		return ""
	}
	because := ""
	if err != nil {
		because = " (spec.allowedNamespaces." + err.Error() + ")"
	}
	return fmt.Sprintf("Egress %s does not allow pods of namespace %s%s: have its spec.allowedNamespaces or spec.clients allow them, or remove it from %s",
		e.Ref, of.Name, because, membership.Field(e.Ref.Namespace))
}

// take has a pod use Egresses, except those that overlap one that it uses already.
func (d *Decision) take(choices []choice) {
	var used []choice
next:
	for _, e := range choices {
		for _, have := range used {
			if what := overlap(e.Egress, have.Egress, e.rank > have.rank); what != "" {
				d.refuse(e.Ref, e.rank == named, v1alpha1.EgressOverlaps,
					"%s overlap, and the pod uses the latter: have it use one of the two, or change their destinations so that they do not overlap", what)
				continue next
			}
		}
		if len(used) == membership.MaxEgresses {
			d.refuse(e.Ref, e.rank == named, v1alpha1.EgressInvalid, "the pod uses %d other Egresses, which is the limit: have fewer Egresses select it, or name fewer", membership.MaxEgresses)
			continue
		}
		used = append(used, e)
		d.Egresses = append(d.Egresses, e.reference())
		if e.rank != named {
			d.Selected = append(d.Selected, e.Ref.String())
		}
	}
}

// Most is the longest message of a refusal, in bytes.
const Most = 1024

func (d *Decision) refuse(ref membership.Ref, named bool, reason, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if len(message) > Most {
		message = strings.ToValidUTF8(message[:Most-3], "") + "..."
	}
	d.Refused = append(d.Refused, v1alpha1.EgressRefusal{Namespace: ref.Namespace, Name: ref.Name, Reason: reason, Message: message, Named: named})
}

// shorten orders the refusals, and leaves out those for which an EgressClient has no room, first
// of Egresses that the pod does not name.
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

// Claim is a live pod that has an address, or whose node reports it.
type Claim struct {
	UID, Pod string // Pod is namespace/name
	// Confirmed tells that the pod's own status has the address.
	Confirmed bool
	// Served tells that gateways serve the pod there.
	Served  bool
	Created time.Time
}

// Holder is the claim that wins an address, of at least one. A claim that a pod's status confirms
// comes first, so that a report of one node takes nothing from another node's pods; then that of a
// pod that gateways serve already; then that of the oldest pod.
func Holder(claims []Claim) Claim {
	best := claims[0]
	for _, c := range claims[1:] {
		if cmp.Or(first(c.Confirmed, best.Confirmed), first(c.Served, best.Served), c.Created.Compare(best.Created), strings.Compare(c.UID, best.UID)) < 0 {
			best = c
		}
	}
	return best
}

// first orders true before false.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// Unconfirmed is how long gateways serve a pod at addresses that only its node reports. A starting
// pod needs its gateways before its kubelet reports the addresses. Whoever stole a node's token may
// report the addresses of a server.
const Unconfirmed = 5 * time.Minute

// Confirmed is the result of Confirm.
type Confirmed struct {
	// Addresses are those at which gateways may serve the pod.
	Addresses []string
	// Elsewhere are those that contradict the kubelet.
	Elsewhere []string
	// Since is when the node first reported addresses without the kubelet; zero: the kubelet has
	// reported some, or neither has.
	Since time.Time
}

// Confirm compares the addresses of a pod that its node reports with those that its kubelet reports,
// which are none while the pod starts. since is that of the last result: nothing that the node
// reports restarts the time.
func Confirm(node, kubelet []string, since, now time.Time) Confirmed {
	if len(kubelet) > 0 {
		var c Confirmed
		for _, a := range node {
			if slices.Contains(kubelet, a) {
				c.Addresses = append(c.Addresses, a)
			} else {
				c.Elsewhere = append(c.Elsewhere, a)
			}
		}
		return c
	}
	if since.IsZero() && len(node) > 0 {
		since = now
	}
	if now.Before(since.Add(Unconfirmed)) {
		return Confirmed{Addresses: node, Since: since}
	}
	return Confirmed{Since: since}
}
