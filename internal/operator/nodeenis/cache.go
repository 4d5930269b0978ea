package nodeenis

import (
	"bytes"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/watched"
)

// Objects are all NodeNetworks, without their bookkeeping.
var Objects = &watched.Kind{
	Object: &v1alpha1.NodeNetwork{}, List: func() client.ObjectList { return &v1alpha1.NodeNetworkList{} },
	Cache: cache.ByObject{Transform: trimObject},
}

// Watches are the kinds that the process keeps in memory for Setup: NodeNetworks, their
// templates, Nodes, and the pods that wait for an address.
func Watches() []*watched.Kind {
	return []*watched.Kind{
		watched.Nodes,
		Objects,
		{Object: &v1alpha1.NodeNetworkTemplate{}, List: func() client.ObjectList { return &v1alpha1.NodeNetworkTemplateList{} }},
		watched.WaitingPods,
	}
}

// trimObject is a cache.TransformFunc: it takes off what nobody here reads.
func trimObject(in any) (any, error) {
	if o, ok := in.(*v1alpha1.NodeNetwork); ok {
		trim(o)
	}
	return in, nil
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
