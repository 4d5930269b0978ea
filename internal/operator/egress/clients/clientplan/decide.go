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

// Pod is the part of a pod that determines which Egresses it uses.
type Pod struct {
	Namespace           membership.Namespace
	Labels, Annotations map[string]string
	// HostNetwork reports that the pod is in the node's network namespace, Static that it is the
	// mirror of a static pod, Gateway that it is a gateway of an Egress.
	HostNetwork, Static, Gateway bool
}

// Decision says which Egresses a pod uses, and which ones it is refused.
type Decision struct {
	// Wanted reports whether the pod has an EgressClient.
	Wanted bool
	// Egresses are the Egresses that the pod uses, ordered by namespace and name.
	Egresses []v1alpha1.EgressReference
	// Selected are the entries of Egresses, as namespace/name, that select the pod and that it does not name.
	Selected []string
	// Refused are the Egresses that the pod is refused, and why, in the same order.
	Refused []v1alpha1.EgressRefusal
}

// Decide determines which Egresses a pod uses: those that its annotations name and that allow it, and
// those that select it with its namespace's consent. Of two whose destinations overlap, it uses the
// one with the better rank, then the older one, then the first by namespace and name. A pod in the
// node's network, a static pod and a gateway use none: Egresses that they name are refused.
func Decide(p Pod, all Egresses) Decision {
	selecting := all.Selecting(p.Namespace)
	refs, errs := membership.Named(p.Annotations)
	for _, ref := range membership.NamedForCoil(p.Annotations) {
		if e := all.Get(ref); e != nil && e.CoilClients {
			refs = append(refs, ref)
		}
	}
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

// cannot returns why a pod may not use any Egress, or "" if it may.
func (p Pod) cannot() string {
	switch {
	case p.HostNetwork:
		return "a host-network pod cannot use"
	case p.Static:
		return "a static pod cannot use"
	case p.Gateway:
		return "a gateway of an Egress cannot use"
	}
	return ""
}

// rank is why a pod uses an Egress, best rank first. No Egress takes a destination, or a part of
// one, from an Egress with a better rank.
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

// choices returns the Egresses that a pod may use, best rank first, then oldest first.
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

// forbids returns why a pod that names an Egress may not use it, or "" if it may. A pod that matches
// the Egress's selector may use it: by naming the Egress, the pod consents.
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

// take adds Egresses to the decision, except those that overlap one already added.
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

// Most is the maximum length of a refusal's message in bytes.
const Most = 1024

func (d *Decision) refuse(ref membership.Ref, named bool, reason, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if len(message) > Most {
		message = strings.ToValidUTF8(message[:Most-3], "") + "..."
	}
	d.Refused = append(d.Refused, v1alpha1.EgressRefusal{Namespace: ref.Namespace, Name: ref.Name, Reason: reason, Message: message, Named: named})
}

// shorten orders the refusals and drops those that do not fit into an EgressClient, starting with
// Egresses that the pod does not name.
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

// Claim is a live pod that has an address, or whose node reports the address.
type Claim struct {
	UID, Pod string // Pod is namespace/name
	// Confirmed reports that the pod's own status has the address.
	Confirmed bool
	// Served reports that gateways already serve the pod at the address.
	Served  bool
	Created time.Time
}

// Holder returns the claim that wins an address; claims must not be empty. A claim confirmed by the
// pod's status wins, so that one node's report takes nothing from another node's pods; then a claim
// that gateways already serve; then that of the oldest pod.
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

// Unconfirmed is how long gateways serve a pod at addresses that only its node reports. A starting pod
// needs its gateways before its kubelet reports the addresses, but a stolen node token can be used to
// report the addresses of a server.
const Unconfirmed = 5 * time.Minute

// Confirmed is the result of Confirm.
type Confirmed struct {
	// Addresses are the addresses at which gateways may serve the pod.
	Addresses []string
	// Elsewhere are the addresses that contradict the kubelet.
	Elsewhere []string
	// Since is when the node first reported addresses that the kubelet had not; zero if the kubelet
	// has reported addresses, or neither has.
	Since time.Time
}

// Confirm compares the pod addresses reported by the node with those reported by the kubelet, which
// are none while the pod starts. since is from the previous result: no report of the node restarts
// the time.
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
