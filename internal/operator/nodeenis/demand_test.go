package nodeenis

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/queue"
)

// Where the cache has all pods, as beside VPC ports, what becomes of those that do not wait
// for an address is no work for their node.
func TestPodsThatDoNotWait(t *testing.T) {
	_, n := setUp(t, Options{})
	fl := newScript()
	h := queue.OnChange((&Controller{fleet: fl, nodes: map[string]*node{"node-1": n}}).podChanged)
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

// A pod whose first interface is one of its NICs waits for no address.
func TestPodsThatTakeNoAddress(t *testing.T) {
	for nics, want := range map[string]bool{
		"": false, "[]": false, "[{}]": false, "[{name: eth1}]": false, "- [eth0": false, "[{name: eth00}]": false, "[{nic: eth0}]": false,
		"[{name: eth0}]": true, "[{}, {name: eth0, nic: db}]": true, "- {}\n- name: eth0\n": true,
	} {
		if got := hasFirst(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationNICs: nics}}}); got != want {
			t.Errorf("%q: got %v, want %v", nics, got, want)
		}
	}
}
