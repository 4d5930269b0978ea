package podnics

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/watched"
)

// Watches are the kinds that the process keeps in memory for Setup.
func Watches() []*watched.Kind {
	return []*watched.Kind{watched.Nodes, watched.Namespaces, watched.Pods, PodNICs, VPCs}
}

// The fields by which the cache finds objects.
const (
	byPod    = "pod"    // PodNICs by the name of the pod that they are for, or that has them
	byNode   = "node"   // PodNICs by status.nodeName
	byUID    = "uid"    // PodNICs
	byPort   = "port"   // PodNICs by status.portID
	byObject = "object" // pods by the PodNICs that their annotation names
)

// ByVPC is the field by which the cache finds PodNICs by spec.vpc.
const ByVPC = "vpc"

// Index has the cache find objects by the fields that this package and package vpc read
// them by. It is called once for a manager, before it starts.
func Index(ctx context.Context, ix client.FieldIndexer) error {
	nic := func(o client.Object) *v1alpha1.PodNIC { return o.(*v1alpha1.PodNIC) }
	for _, i := range []struct {
		object client.Object
		field  string
		values func(client.Object) []string
	}{
		{&v1alpha1.PodNIC{}, byPod, func(o client.Object) []string { return podsOf(nic(o)) }},
		{&v1alpha1.PodNIC{}, byNode, func(o client.Object) []string { return []string{nic(o).Status.NodeName} }},
		{&v1alpha1.PodNIC{}, ByVPC, func(o client.Object) []string { return []string{nic(o).Spec.VPC} }},
		{&v1alpha1.PodNIC{}, byPort, func(o client.Object) []string { return []string{nic(o).Status.PortID} }},
		{&v1alpha1.PodNIC{}, byUID, func(o client.Object) []string { return []string{string(o.GetUID())} }},
		{&corev1.Pod{}, byObject, func(o client.Object) []string { return namedObjects(o.(*corev1.Pod)) }},
	} {
		if err := ix.IndexField(ctx, i.object, i.field, i.values); err != nil {
			return fmt.Errorf("index %T by %s: %w", i.object, i.field, err)
		}
	}
	return nil
}

// NICsOf are the PodNICs of a pod, read from a cache with Index.
func NICsOf(ctx context.Context, r client.Reader, pod client.ObjectKey) ([]v1alpha1.PodNIC, error) {
	list := &v1alpha1.PodNICList{}
	if err := r.List(ctx, list, client.InNamespace(pod.Namespace), client.MatchingFields{byPod: pod.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list PodNICs of pod %s: %w", pod, err)
	}
	return list.Items, nil
}

// podsOf are the names of the pods that a PodNIC is for and that has it.
func podsOf(o *v1alpha1.PodNIC) (names []string) {
	if o.Spec.Pod != nil {
		names = append(names, o.Spec.Pod.Name)
	}
	if has := o.Status.Pod; has != nil && (o.Spec.Pod == nil || has.Name != o.Spec.Pod.Name) {
		names = append(names, has.Name)
	}
	return names
}
