package clients

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/operator/egress"
	"github.com/berthnet/berth/internal/operator/watched"
)

// The kinds of Berth's own that are kept in memory for clients, besides Egresses.
var (
	EgressClients = &watched.Kind{
		Object: &v1alpha1.EgressClient{}, List: func() client.ObjectList { return &v1alpha1.EgressClientList{} },
		Cache: cache.ByObject{Transform: cache.TransformStripManagedFields()},
	}
	EgressClientSlices = &watched.Kind{
		Object: &v1alpha1.EgressClientSlice{}, List: func() client.ObjectList { return &v1alpha1.EgressClientSliceList{} },
		Cache: cache.ByObject{Transform: cache.TransformStripManagedFields()},
	}
)

// Watches are the kinds that the process keeps in memory for Setup.
func Watches() []*watched.Kind {
	return append([]*watched.Kind{watched.Namespaces, watched.EgressPods, egress.Egresses, EgressClients, EgressClientSlices}, egress.Makers...)
}

// The fields by which the cache finds objects.
const (
	byEgress  = "egress"        // pods by the Egresses that they name, EgressClients by those that they use or may not, slices by their own
	byAddress = "egressaddress" // pods by their addresses, EgressClients by those that their nodes say
)

// annotated is what byEgress has besides for pods that name any.
const annotated = "*"

// Index has the cache find objects by the fields that this package reads them by. It is
// called once for a manager, before it starts.
func Index(ctx context.Context, ix client.FieldIndexer) error {
	for _, i := range []struct {
		object client.Object
		field  string
		values func(client.Object) []string
	}{
		{&corev1.Pod{}, byEgress, func(o client.Object) []string { return namedBy(o.(*corev1.Pod)) }},
		{&corev1.Pod{}, byAddress, func(o client.Object) []string { return addressesOf(o.(*corev1.Pod)) }},
		{&v1alpha1.EgressClient{}, byEgress, func(o client.Object) []string { return usedBy(o.(*v1alpha1.EgressClient)) }},
		{&v1alpha1.EgressClient{}, byAddress, func(o client.Object) []string { return said(o.(*v1alpha1.EgressClient)) }},
		{&v1alpha1.EgressClientSlice{}, byEgress, func(o client.Object) []string { return []string{refOfSlice(o).String()} }},
	} {
		if err := ix.IndexField(ctx, i.object, i.field, i.values); err != nil {
			return fmt.Errorf("index %T by %s: %w", i.object, i.field, err)
		}
	}
	return nil
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

// usedBy are the Egresses that a pod uses, or would use and may not.
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

// addressesOf are a pod's, which the kubelet says. While a pod has no sandbox the kubelet says those of the last one.
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

// canonical is an address as netip writes it, empty if it is none: so that two ways to write one are the same.
func canonical(address string) string {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return ""
	}
	return a.Unmap().String()
}

// said are the addresses from which a pod sends, which the daemon of its node says.
func said(o *v1alpha1.EgressClient) (out []string) {
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
