package addresspool

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
)

// CacheByObject is what of each kind the process keeps in memory, for
// cache.Options of the ctrl.Manager that Setup gets. Of Nodes it is also what
// the controller of NodeNetworks needs.
func CacheByObject() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&v1alpha1.AddressPool{}:  {Transform: trim},
		&v1alpha1.AddressBlock{}: {Transform: trim},
		&v1alpha1.BlockRequest{}: {Transform: trim},
		&corev1.Node{}:           {Transform: trim},
		namespaceMeta(""):        {Transform: trim},
	}
}

// trim is a cache.TransformFunc: it takes off what nobody here reads.
func trim(in any) (any, error) {
	switch o := in.(type) {
	case *corev1.Node:
		o.ObjectMeta = metav1.ObjectMeta{
			Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
			CreationTimestamp: o.CreationTimestamp, DeletionTimestamp: o.DeletionTimestamp,
		}
		o.Spec = corev1.NodeSpec{ProviderID: o.Spec.ProviderID, Taints: outOfService(o)}
		o.Status = corev1.NodeStatus{Conditions: readiness(o), Allocatable: podRoom(o)}
	case *metav1.PartialObjectMetadata:
		kept := metav1.ObjectMeta{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion}
		if pool, ok := o.Annotations[v1alpha1.AnnotationPool]; ok {
			kept.Annotations = map[string]string{v1alpha1.AnnotationPool: pool}
		}
		o.ObjectMeta = kept
	case client.Object:
		o.SetManagedFields(nil)
	}
	return in, nil
}

func outOfService(n *corev1.Node) []corev1.Taint {
	for _, t := range n.Spec.Taints {
		if t.Key == corev1.TaintNodeOutOfService {
			return []corev1.Taint{{Key: t.Key}}
		}
	}
	return nil
}

func podRoom(n *corev1.Node) corev1.ResourceList {
	if pods, ok := n.Status.Allocatable[corev1.ResourcePods]; ok {
		return corev1.ResourceList{corev1.ResourcePods: pods}
	}
	return nil
}

func readiness(n *corev1.Node) []corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return []corev1.NodeCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	return nil
}

// The fields by which the cache finds objects.
const (
	byPool    = "pool"
	byNode    = "node"
	byRequest = "request"
)

func indexFields(ctx context.Context, ix client.FieldIndexer) error {
	for _, i := range []struct {
		object client.Object
		field  string
		value  func(client.Object) string
	}{
		{&v1alpha1.AddressBlock{}, byPool, func(o client.Object) string { return o.(*v1alpha1.AddressBlock).PoolName }},
		{&v1alpha1.AddressBlock{}, byNode, func(o client.Object) string { return o.(*v1alpha1.AddressBlock).NodeName }},
		{&v1alpha1.AddressBlock{}, byRequest, func(o client.Object) string { return string(o.(*v1alpha1.AddressBlock).RequestUID) }},
		{&v1alpha1.BlockRequest{}, byPool, func(o client.Object) string { return o.(*v1alpha1.BlockRequest).Spec.PoolName }},
		{&v1alpha1.BlockRequest{}, byNode, func(o client.Object) string { return o.(*v1alpha1.BlockRequest).Spec.NodeName }},
	} {
		if err := ix.IndexField(ctx, i.object, i.field, func(o client.Object) []string { return []string{i.value(o)} }); err != nil {
			return err
		}
	}
	return nil
}
