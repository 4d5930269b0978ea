package nodenetwork

import (
	"bytes"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
)

// CacheByObject is what of each kind the process keeps in memory, for
// cache.Options of the ctrl.Manager that Setup gets: all NodeNetworks without
// their bookkeeping, of Nodes what tells whether they live, and only the pods
// that wait for an address.
func CacheByObject() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&v1alpha1.NodeNetwork{}: {Transform: trimObject},
		&corev1.Node{}:          {Transform: trimObject},
		&corev1.Pod{}:           {Transform: trimObject, Field: waitingPods()},
	}
}

// waitingPods selects pods that are bound to a node, are to have an address of
// their own and have none yet. The API server filters, so that of 100,000 pods
// only those few are ever sent.
func waitingPods() fields.Selector {
	return fields.AndSelectors(
		fields.OneTermNotEqualSelector("spec.nodeName", ""),
		fields.OneTermEqualSelector("spec.hostNetwork", "false"),
		fields.OneTermEqualSelector("status.phase", string(corev1.PodPending)),
		fields.OneTermEqualSelector("status.podIP", ""),
	)
}

// trimObject is a cache.TransformFunc: it takes off what nobody here reads.
func trimObject(in any) (any, error) {
	switch o := in.(type) {
	case *v1alpha1.NodeNetwork:
		trim(o)
	case *corev1.Node:
		o.ObjectMeta = bare(o.ObjectMeta)
		o.Spec = corev1.NodeSpec{ProviderID: o.Spec.ProviderID}
		o.Status = corev1.NodeStatus{Conditions: readyCondition(o)}
	case *corev1.Pod:
		o.ObjectMeta = bare(o.ObjectMeta)
		o.Spec = corev1.PodSpec{NodeName: o.Spec.NodeName}
		o.Status = corev1.PodStatus{}
	}
	return in, nil
}

// bare is what the caches need of metadata.
func bare(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
	}
}

func readyCondition(n *corev1.Node) []corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return nil
}

// trim makes a NodeNetwork small: names of pods are for people, the IDs of ENIs
// are the same few strings over and over, and of the managed fields only who
// wrote spec.ipam.available matters. Used on every state that is kept, whether
// from the watch or from the answer to a write.
func trim(o *v1alpha1.NodeNetwork) {
	o.ManagedFields = ownEntry(o.ManagedFields)
	o.Annotations, o.Labels = nil, nil
	ids := map[string]string{}
	same := func(id string) string {
		if s, ok := ids[id]; ok {
			return s
		}
		ids[id] = id
		return id
	}
	for id := range o.Status.ENI.ENIs {
		ids[id] = id
	}
	for a, at := range o.Spec.IPAM.Available {
		o.Spec.IPAM.Available[a] = v1alpha1.AvailableAddress{Resource: same(at.Resource)}
	}
	for a, u := range o.Status.IPAM.Used {
		u.Owner, u.Resource = "", same(u.Resource)
		o.Status.IPAM.Used[a] = u
	}
}

// ownEntry keeps, without its set of fields, the operator's entry for
// spec.ipam, if spec.ipam.available is the operator's. It is not once anybody
// else changed it (Kubernetes documentation, "Server-Side Apply", field management).
func ownEntry(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	for _, e := range entries {
		own := e.Manager == v1alpha1.OwnerOperator && e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == ""
		if own && (e.FieldsV1 == nil || bytes.Contains(e.FieldsV1.GetRawBytes(), []byte(`"f:available"`))) {
			e.FieldsV1 = nil
			return []metav1.ManagedFieldsEntry{e}
		}
	}
	return nil
}

// byOperator tells whether an operator, this or another, wrote the object's
// spec.ipam.available last.
func byOperator(o *v1alpha1.NodeNetwork) bool { return len(o.ManagedFields) > 0 }

// publishedAt is when an operator last changed spec.ipam; zero when unknown.
func publishedAt(o *v1alpha1.NodeNetwork) time.Time {
	if !byOperator(o) || o.ManagedFields[0].Time == nil {
		return time.Time{}
	}
	return o.ManagedFields[0].Time.Time
}
