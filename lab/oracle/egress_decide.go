package oracle

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berthnet/berth/api/v1alpha1"
)

// gatewayOf returns the Egress of a gateway pod, by label and owner.
func gatewayOf(p *corev1.Pod) string {
	name := p.Labels[v1alpha1.LabelEgress]
	owner := metav1.GetControllerOf(p)
	if name == "" || owner == nil || owner.Kind != "ReplicaSet" || !strings.HasPrefix(owner.Name, name+"-") {
		return ""
	}
	return p.Namespace + "/" + name
}

// named returns the Egresses that a pod's annotations name; for an invalid name, only the namespace.
func named(p *corev1.Pod) (refs, invalid []string) {
	for _, k := range slices.Sorted(maps.Keys(p.Annotations)) {
		namespace, ok := strings.CutPrefix(k, v1alpha1.AnnotationEgressPrefix)
		if !ok {
			continue
		}
		var list []string
		for _, name := range strings.Split(p.Annotations[k], ",") {
			name = strings.TrimSpace(name)
			if name == "" || slices.Contains(list, namespace+"/"+name) {
				list = nil
				break
			}
			list = append(list, namespace+"/"+name)
		}
		if list == nil {
			invalid = append(invalid, namespace+"/")
		}
		refs = append(refs, list...)
	}
	return refs, invalid
}

// selects reports whether an Egress selects pods of a namespace, and whether it selects a pod there.
func selects(e *v1alpha1.Egress, namespace string, has labels.Set, pod labels.Set) (some, it bool) {
	of := e.Spec.Clients
	if of == nil {
		return false, false
	}
	matches := func(s *v1alpha1.LabelSelector, has labels.Set, unset bool) bool {
		if s == nil {
			return unset
		}
		selector, err := s.Compile()
		return err == nil && selector.Matches(has)
	}
	some = matches(of.NamespaceSelector, has, namespace == e.Namespace)
	return some, some && matches(of.PodSelector, pod, true)
}

// systemNamespaces are the namespaces whose pods an Egress of another namespace cannot select.
var systemNamespaces = []string{"kube-system", "kube-public", "kube-node-lease"}

// consents reports whether a namespace consents to the selection of its pods by Egresses of another namespace.
func consents(of, to *corev1.Namespace) bool {
	if of.Name == to.Name {
		return true
	}
	if slices.Contains(systemNamespaces, of.Name) {
		return false
	}
	for _, name := range strings.Split(of.Annotations[v1alpha1.AnnotationEgressSelectableFrom], ",") {
		if name = strings.TrimSpace(name); name == "*" || name == to.Name {
			return true
		}
	}
	return to.Labels[v1alpha1.LabelEgressMaySelect] == "true"
}

// allows reports whether pods of a namespace may name an Egress.
func allows(e *v1alpha1.Egress, namespace string, has labels.Set) bool {
	a := e.Spec.AllowedNamespaces
	if namespace == e.Namespace || a == nil {
		return namespace == e.Namespace
	}
	s, err := metav1.LabelSelectorAsSelector(a.Selector)
	return slices.Contains(a.Names, "*") || slices.Contains(a.Names, namespace) || a.Selector != nil && err == nil && s.Matches(has)
}

// decide determines the Egresses that a pod uses and those that are refused.
func (v *egressView) decide(p *corev1.Pod) {
	if p.Spec.NodeName == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return
	}
	uid := string(p.UID)
	refs, invalid := named(p)
	refused := map[string]string{}
	for _, ref := range invalid {
		refused[ref] = v1alpha1.EgressInvalid
	}
	ranks, selected := v.ranked(p, refs, refused)
	wanted := len(refs)+len(invalid) > 0 || selected && !p.Spec.HostNetwork
	if !wanted {
		return
	}
	v.refused[uid] = refused
	for _, ref := range refs {
		if v.egresses[ref] == nil {
			refused[ref] = v1alpha1.EgressNotFound
		}
	}
	if _, gateway := p.Labels[v1alpha1.LabelEgress]; gateway || p.Spec.HostNetwork {
		for _, ref := range refs {
			refused[ref] = v1alpha1.EgressInvalid
		}
		return
	}
	v.use(uid, ranks)
}

// ranked returns the Egresses that a pod may use: those that it names, then those of its own namespace that select
// it, then those of other namespaces. It reports whether any may select pods of the namespace, and records refusals.
func (v *egressView) ranked(p *corev1.Pod, refs []string, refused map[string]string) (ranks [3][]*v1alpha1.Egress, selected bool) {
	of := v.namespaces[p.Namespace]
	for _, ref := range slices.Sorted(maps.Keys(v.egresses)) {
		e := v.egresses[ref]
		some, it := selects(e, p.Namespace, of.Labels, p.Labels)
		may := consents(of, v.namespaces[e.Namespace])
		selected = selected || some && may
		switch {
		case slices.Contains(refs, ref) && !it && !allows(e, p.Namespace, of.Labels):
			refused[ref] = v1alpha1.EgressNotAllowed
		case slices.Contains(refs, ref):
			ranks[0] = append(ranks[0], e)
		case it && e.Namespace == p.Namespace:
			ranks[1] = append(ranks[1], e)
		case it && may:
			ranks[2] = append(ranks[2], e)
		}
	}
	return ranks, selected
}

// use selects the Egresses of a pod that do not overlap, by rank and then by age. An Egress never takes over a part of
// the destinations of one selected before it.
func (v *egressView) use(uid string, ranks [3][]*v1alpha1.Egress) {
	older := func(a, b *v1alpha1.Egress) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}
	rank := map[*v1alpha1.Egress]int{}
	for i, of := range ranks {
		slices.SortStableFunc(of, older)
		for _, e := range of {
			rank[e] = i
		}
	}
	for _, e := range slices.Concat(ranks[:]...) {
		if slices.ContainsFunc(v.uses[uid], func(o *v1alpha1.Egress) bool { return overlap(e, o, rank[o] < rank[e]) }) {
			v.refused[uid][key(e).String()] = v1alpha1.EgressOverlaps
			continue
		}
		v.uses[uid] = append(v.uses[uid], e)
		ref := key(e).String()
		if v.served[ref] == nil {
			v.served[ref] = map[string][]netip.Addr{}
		}
		var addrs []netip.Addr
		if runs := v.pods[uid]; runs != nil {
			addrs = slices.SortedFunc(slices.Values(runs.Addrs), netip.Addr.Compare)
		}
		v.served[ref][uid] = addrs
	}
}

func destinations(e *v1alpha1.Egress) (out []netip.Prefix) {
	for _, d := range e.Spec.Destinations {
		out = append(out, netip.MustParsePrefix(d)) // validated by the CRD
	}
	return out
}

// overlap reports whether a pod that uses one Egress cannot also use another. With weaker, the other one may not
// contain any part of the first one's destinations.
func overlap(e, used *v1alpha1.Egress, weaker bool) bool {
	for _, p := range destinations(e) {
		for _, q := range destinations(used) {
			if p.Overlaps(q) && ((p.Bits() == 0) == (q.Bits() == 0) || weaker && p.Bits() > 0) {
				return true
			}
		}
	}
	return false
}
