package podnics

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

// waits is what the pod of a NIC waits for, and since when, as this process has seen it.
// Zero times: for nothing.
type waits struct {
	bound   time.Time // for the port to be bound to the pod's node
	plugged time.Time // for the node to plug it
}

// progress is how far the NIC of a pod has come.
type progress int

const (
	unneeded  progress = iota // no pod that has a node waits for it
	unbound                   // it is not bound to the pod's node
	unplugged                 // it is, and the node has not said that it has plugged it
	inPlace
)

// progressOf judges a PodNIC by its status. pod is the one that is to have it; nil: none.
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

// at takes in that the NIC is at a stage now, and tells whether it was plugged while this
// process looked on.
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

// starts tells whether a pod has not begun to run: of others the age tells nothing of how
// long they waited for a NIC.
func starts(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodPending || pod.Status.Phase == ""
}

// longest is how long pods have waited.
type longest struct{ bound, plugged time.Duration }
