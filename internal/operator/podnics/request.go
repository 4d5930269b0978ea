package podnics

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nicrequest"
)

// request is what a pod's annotations ask for, as far as the pod alone tells.
type request struct {
	vpc   string           // empty: no NICs
	first nicrequest.First // with which it was read
	nics  []nicrequest.NIC
	errs  nicrequest.Errors
}

// requestOf reads a pod's annotations. The first interface depends on the VPC. A namespace's VPC does
// not count for a pod that asks for no NICs itself and runs without any (bare): it got its network
// when it started. With most above 0 more NICs than that are an error.
func requestOf(p *corev1.Pod, namespaceVPC string, first func(vpc string) nicrequest.First, bare bool, most int) request {
	if _, asks := p.Annotations[v1alpha1.AnnotationNICs]; bare && !asks && p.Status.Phase != corev1.PodPending {
		namespaceVPC = ""
	}
	in := askedOf(p, namespaceVPC)
	var r request
	r.vpc, r.errs = in.VPC()
	r.first = first(r.vpc)
	if r.vpc == "" || len(r.errs) > 0 {
		return r
	}
	r.nics, r.errs = in.NICs(r.first, most)
	return r
}

// askedOf is a pod, of a namespace with a VPC, as package nicrequest reads it.
func askedOf(p *corev1.Pod, namespaceVPC string) nicrequest.Pod {
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	return nicrequest.Pod{Annotations: p.Annotations, NamespaceVPC: namespaceVPC, HostNetwork: p.Spec.HostNetwork, Mirror: mirror}
}

// namedObjects are the names of the PodNICs that a pod's annotation names, if it can be read.
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

// specOf is the spec of the PodNIC for a NIC of a pod.
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

// nicOf is the NIC that a PodNIC's spec describes; its index and default route are the pod's.
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

func named(nics []nicrequest.NIC, name string) (nicrequest.NIC, bool) {
	i := slices.IndexFunc(nics, func(n nicrequest.NIC) bool { return n.Name == name })
	if i < 0 {
		return nicrequest.NIC{}, false
	}
	return nics[i], true
}

// hasDefaultRoute reports whether a NIC has the pod's default route: the one that the annotation names,
// else the first interface.
func hasDefaultRoute(nics []nicrequest.NIC, n nicrequest.NIC, first nicrequest.First) bool {
	said := slices.ContainsFunc(nics, func(other nicrequest.NIC) bool { return other.DefaultRoute })
	return n.DefaultRoute || !said && first.IsNIC(n.Name)
}

// chooseHolder chooses which of the pods that name a PodNIC has it: the one that has it already, else
// the oldest that is not being deleted.
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
