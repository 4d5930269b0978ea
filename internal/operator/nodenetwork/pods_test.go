package nodenetwork

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// Where the cache has all pods, as beside VPC ports, what becomes of those that do not wait
// for an address is no work for their node.
func TestPodsThatDoNotWait(t *testing.T) {
	_, n := setUp(t, Options{})
	fl := newScript()
	h := (&Controller{fleet: fl, nodes: map[string]*node{"node-1": n}}).podEvents()
	pod := func(phase corev1.PodPhase, ip, node string) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase, PodIP: ip}}
	}
	waits, starts := pod(corev1.PodPending, "", "node-1"), pod(corev1.PodPending, "10.0.0.4", "node-1")
	runs, unbound := pod(corev1.PodRunning, "10.0.0.4", "node-1"), pod(corev1.PodPending, "", "")
	update := func(before, after *corev1.Pod) {
		h.Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, nil)
	}
	h.Create(t.Context(), event.CreateEvent{Object: runs}, nil)
	update(starts, runs)
	update(runs, runs)
	h.Delete(t.Context(), event.DeleteEvent{Object: runs}, nil)
	if k := fl.called("Kick"); k != 0 {
		t.Errorf("%d kicks for pods that do not wait", k)
	}
	h.Create(t.Context(), event.CreateEvent{Object: waits}, nil)
	update(unbound, waits)
	update(waits, starts)
	h.Delete(t.Context(), event.DeleteEvent{Object: waits}, nil)
	if k := fl.called("Kick"); k != 4 {
		t.Errorf("%d kicks for 4 changes of pods that wait", k)
	}
}
