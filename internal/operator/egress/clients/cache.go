package clients

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/operator/egress"
	"github.com/berthnet/berth/internal/operator/watched"
)

// The kinds of Berth's own that the cache keeps for clients, in addition to Egresses.
var (
	EgressClients      = watched.Of(&v1alpha1.EgressClient{}, &v1alpha1.EgressClientList{}, nil)
	EgressClientSlices = watched.Of(&v1alpha1.EgressClientSlice{}, &v1alpha1.EgressClientSliceList{}, nil)
)

// Watches are the kinds that the cache of a manager with Setup keeps.
func Watches() []*watched.Kind {
	return append([]*watched.Kind{watched.Namespaces, watched.EgressPods, egress.Egresses, EgressClients, EgressClientSlices}, egress.Makers...)
}

// The fields by which the cache finds objects.
const (
	byEgress  = "egress"        // pods by the Egresses that they name, EgressClients by those that they use or may not use, slices by their own
	byAddress = "egressaddress" // pods by their addresses, EgressClients by those that their nodes report
)

// annotated is a further value of byEgress, for pods that name any Egress.
const annotated = "*"

// Index has the cache find objects by the fields that this package reads them by. It is
// called once for a manager, before the manager starts.
func Index(ctx context.Context, ix client.FieldIndexer) error {
	return watched.Index(ctx, ix,
		watched.By(byEgress, namedBy), watched.By(byAddress, addressesOf),
		watched.By(byEgress, usedBy), watched.By(byAddress, reportedAddresses),
		watched.ByOne(byEgress, func(o *v1alpha1.EgressClientSlice) string { return refOfSlice(o).String() }),
	)
}

// namedBy are the Egresses that a pod's annotations name.
func namedBy(p *corev1.Pod) (out []string) {
	if !membership.Annotated(p.Annotations) {
		return nil
	}
	named, _ := membership.Named(p.Annotations)
	for _, ref := range named {
		out = append(out, ref.String())
	}
	return append(out, annotated)
}

// usedBy are the Egresses that a pod uses, or is refused.
func usedBy(o *v1alpha1.EgressClient) []string {
	all := map[string]bool{}
	for _, r := range o.Spec.Egresses {
		all[r.Namespace+"/"+r.Name] = true
	}
	for _, r := range o.Spec.Refused {
		all[r.Namespace+"/"+r.Name] = true
	}
	return slices.Collect(maps.Keys(all))
}

// addressesOf are a pod's addresses by its kubelet. A pod without a sandbox has none: the kubelet
// still reports those of the last sandbox.
func addressesOf(p *corev1.Pod) (out []string) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionFalse {
			return nil
		}
	}
	for _, ip := range p.Status.PodIPs {
		if a := canonical(ip.IP); a != "" {
			out = append(out, a)
		}
	}
	return out
}

// canonical is an address as netip writes it, so that texts can be compared; empty: it is none.
func canonical(address string) string {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return ""
	}
	return a.Unmap().String()
}

// reportedAddresses are the addresses from which a pod sends, by the daemon of its node.
func reportedAddresses(o *v1alpha1.EgressClient) (out []string) {
	n := o.Status.Node
	if n == nil || n.State == v1alpha1.EgressClientGone {
		return nil
	}
	for _, ip := range n.Addresses {
		if a := canonical(ip); a != "" {
			out = append(out, a)
		}
	}
	return out
}

// refOfSlice is the Egress that a slice belongs to.
func refOfSlice(o client.Object) membership.Ref {
	return membership.Ref{Namespace: o.GetNamespace(), Name: o.GetLabels()[v1alpha1.LabelEgress]}
}

// uidOfOwner is the UID of the Egress that a slice was made for.
func uidOfOwner(o client.Object) string {
	for _, ref := range o.GetOwnerReferences() {
		if ref.Kind == "Egress" {
			return string(ref.UID)
		}
	}
	return ""
}
