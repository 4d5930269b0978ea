package podnics

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nicrequest"
)

// wish is what a pod's annotations ask for, as far as the pod alone tells.
type wish struct {
	vpc   string           // empty: no NICs
	first nicrequest.First // under which it was read
	nics  []nicrequest.NIC
	errs  nicrequest.Errors
}

// wishOf reads a pod's annotations. What its first interface is depends on the VPC. A
// namespace's VPC is none of a pod that asks for no NICs itself and runs without any already
// (bare): it got its network when it began. With most above 0 there may be no more NICs than that.
func wishOf(p *corev1.Pod, namespaceVPC string, first func(vpc string) nicrequest.First, bare bool, most int) wish {
	if _, asks := p.Annotations[v1alpha1.AnnotationNICs]; bare && !asks && p.Status.Phase != corev1.PodPending {
		namespaceVPC = ""
	}
	in := asking(p, namespaceVPC)
	var w wish
	w.vpc, w.errs = in.VPC()
	w.first = first(w.vpc)
	if w.vpc == "" || len(w.errs) > 0 {
		return w
	}
	w.nics, w.errs = in.NICs(w.first, most)
	return w
}

// asking is what a pod asks for, of a namespace with a VPC.
func asking(p *corev1.Pod, namespaceVPC string) nicrequest.Pod {
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	return nicrequest.Pod{Annotations: p.Annotations, NamespaceVPC: namespaceVPC, HostNetwork: p.Spec.HostNetwork, Mirror: mirror}
}

// namedObjects are the PodNICs that a pod's annotation names, if it can be read.
func namedObjects(p *corev1.Pod) (names []string) {
	if p.Annotations[v1alpha1.AnnotationNICs] == "" {
		return nil
	}
	entries, _ := nicrequest.Parse(p.Annotations[v1alpha1.AnnotationNICs])
	for _, e := range entries {
		if e.NIC != "" {
			names = append(names, e.NIC)
		}
	}
	return names
}

// specOf is that of the PodNIC of a pod's NIC.
func specOf(p *corev1.Pod, vpc string, n nicrequest.NIC) v1alpha1.PodNICSpec {
	spec := v1alpha1.PodNICSpec{
		VPC: vpc, Pod: &v1alpha1.PodReference{Name: p.Name, UID: string(p.UID)}, Interface: n.Name,
		SecurityGroups: n.SecurityGroups, PortID: n.PortID, Binding: v1alpha1.NICBinding(n.Binding),
	}
	if t := n.Tap; t != nil {
		spec.Tap = &v1alpha1.TapDevice{Owner: t.Owner, Group: t.Group, MultiQueue: t.MultiQueue}
	}
	for _, a := range n.Addresses {
		out := v1alpha1.NICAddress{Subnet: a.Subnet}
		if a.IP.IsValid() {
			out.IP = a.IP.String()
		}
		spec.Addresses = append(spec.Addresses, out)
	}
	return spec
}

// nicOf is the NIC that a PodNIC was made for, as far as it tells.
func nicOf(spec v1alpha1.PodNICSpec) nicrequest.NIC {
	n := nicrequest.NIC{Name: spec.Interface, SecurityGroups: spec.SecurityGroups, PortID: spec.PortID, Binding: string(spec.Binding)}
	if t := spec.Tap; t != nil {
		n.Tap = &nicrequest.Tap{Owner: t.Owner, Group: t.Group, MultiQueue: t.MultiQueue}
	}
	for _, a := range spec.Addresses {
		ip, _ := netip.ParseAddr(a.IP)
		n.Addresses = append(n.Addresses, nicrequest.Address{Subnet: a.Subnet, IP: ip})
	}
	return n
}

// named is the NIC of a list with a name in the pod, and whether there is one.
func named(nics []nicrequest.NIC, name string) (nicrequest.NIC, bool) {
	i := slices.IndexFunc(nics, func(n nicrequest.NIC) bool { return n.Name == name })
	if i < 0 {
		return nicrequest.NIC{}, false
	}
	return nics[i], true
}

// hasDefaultRoute tells whether packets to elsewhere leave by a NIC: what the annotation
// says of one of them, else it is the first interface.
func hasDefaultRoute(nics []nicrequest.NIC, n nicrequest.NIC, first nicrequest.First) bool {
	said := slices.ContainsFunc(nics, func(other nicrequest.NIC) bool { return other.DefaultRoute })
	return n.DefaultRoute || !said && first.IsNIC(n.Name)
}

// chooseHolder is the pod that has a PodNIC of which several may want to be: the one that
// has it, else the oldest that is not on its way out.
func chooseHolder(has *v1alpha1.PodReference, pods []*corev1.Pod) *corev1.Pod {
	var best *corev1.Pod
	for _, p := range pods {
		if has != nil && string(p.UID) == has.UID {
			return p
		}
		if p.DeletionTimestamp != nil {
			continue
		}
		if best == nil || cmp.Or(p.CreationTimestamp.Compare(best.CreationTimestamp.Time), cmp.Compare(p.UID, best.UID)) < 0 {
			best = p
		}
	}
	return best
}
