package podnics

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

// waits is since when the pod of a NIC has waited, as this process has seen it. Zero times: it does not.
type waits struct {
	bound   time.Time // for the port to be bound to its node
	plugged time.Time // for the node to plug it
}

// progress is the state of a NIC that a pod may wait for.
type progress int

const (
	unneeded  progress = iota // no pod with a node needs it
	unbound                   // it is not bound to the pod's node
	unplugged                 // it is bound, and the node has not reported it plugged
	inPlace
)

// progressOf is the progress of a PodNIC by its status. pod is the one that is to have it; nil: none.
func progressOf(o *v1alpha1.PodNIC, pod *corev1.Pod) progress {
	st := o.Status
	switch {
	case pod == nil || pod.Spec.NodeName == "" || o.DeletionTimestamp != nil || st.Phase == v1alpha1.PhaseReleasing:
		return unneeded
	case !isBound(st) || st.NodeName != pod.Spec.NodeName || st.Pod == nil || st.Pod.UID != string(pod.UID):
		return unbound
	case st.Node == nil || st.Node.State != v1alpha1.NodePlugged || st.Node.PortID != st.PortID:
		return unplugged
	}
	return inPlace
}

func isBound(st v1alpha1.PodNICStatus) bool {
	return st.Phase == v1alpha1.PhaseBound || st.Phase == v1alpha1.PhaseActive
}

// at records the progress of the NIC at now, and tells whether it was plugged since this process first saw the pod wait.
func (w *waits) at(s progress, now time.Time) (done bool) {
	before := *w
	*w = waits{}
	switch s {
	case unbound:
		w.bound = now
		if !before.bound.IsZero() {
			w.bound = before.bound
		}
	case unplugged:
		w.plugged = now
		if !before.plugged.IsZero() {
			w.plugged = before.plugged
		}
	case inPlace:
		return before != waits{}
	case unneeded:
	}
	return false
}

// starts tells whether a pod is starting. The age of a running pod does not say how long it waited for a NIC.
func starts(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodPending || pod.Status.Phase == ""
}

// longest is how long pods have waited.
type longest struct{ bound, plugged time.Duration }
