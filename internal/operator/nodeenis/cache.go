package nodeenis

import (
	"bytes"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/watched"
)

// Objects are all NodeNetworks, without the fields that the operator does not read.
var Objects = watched.Of(&v1alpha1.NodeNetwork{}, &v1alpha1.NodeNetworkList{}, trimObject)

// Watches are the kinds that the cache of a manager with Setup keeps.
func Watches() []*watched.Kind {
	return []*watched.Kind{
		watched.Nodes,
		Objects,
		watched.Of(&v1alpha1.NodeNetworkTemplate{}, &v1alpha1.NodeNetworkTemplateList{}, nil),
		watched.WaitingPods,
	}
}

// trimObject is trim as a cache.TransformFunc.
func trimObject(in any) (any, error) {
	if o, ok := in.(*v1alpha1.NodeNetwork); ok {
		trim(o)
	}
	return in, nil
}

// trim makes a NodeNetwork small. It drops the names of pods, which are for people, and all managed
// fields except who wrote spec.ipam.available, and shares the few IDs of ENIs. Every state that
// is kept is trimmed, whether from the watch or from the answer to a write.
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

// ownEntry keeps, without its set of fields, the operator's entry for spec.ipam, if the operator
// owns spec.ipam.available. It does not once anybody else has changed that (Kubernetes
// documentation, "Server-Side Apply", field management).
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
