package branchcapacity

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/nodenetwork"
)

// capacityOf is how many branch interfaces the pods of a Node may have, by its NodeNetwork
// (nil: there is none); 0 without a trunk of Berth's. A trunk that is not wanted any more
// takes no further pods, so that it can go. A Node that does not say which instance it is
// has none either: no branch could be bound to it.
func capacityOf(n *corev1.Node, o *v1alpha1.NodeNetwork) int64 {
	if o == nil || nodenetwork.InstanceOf(n.Spec.ProviderID) != o.Spec.InstanceID {
		return 0
	}
	t := o.Status.ENI.Trunk
	if t == nil || t.ID == "" || t.Reason != "" {
		return 0
	}
	return int64(limits.Branches(o.Spec.InstanceType))
}

// says tells whether a Node's capacity is a number of branch interfaces. One of none does
// not name them at all: a kubelet that starts again ends the pods that ask for a resource of
// which its Node has 0, and lets those be whose resource it does not know
// (kubernetes/pkg/kubelet/lifecycle/predicate.go, removeMissingExtendedResources).
func says(n *corev1.Node, capacity int64) bool {
	q, named := n.Status.Capacity[v1alpha1.ResourceBranches]
	return named == (capacity > 0) && q.Value() == capacity
}
