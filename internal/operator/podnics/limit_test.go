package podnics

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

// A node that has as many NICs of a VPC as it may takes another once one is gone.
func TestNodeLimit(t *testing.T) {
	w := start(t, Options{})
	spec, most := specA(), int32(1)
	spec.MaxNICsPerNode = &most
	w.nets.set("a", Opened{Provider: w.Provider, Network: blue, Spec: spec})
	w.pod("first", "")
	w.schedule("first", "node-a")
	w.awaitNIC("first", "eth0", "is bound", boundAt("node-a"))
	w.pod("second", "")
	w.schedule("second", "node-a")
	w.awaitNIC("second", "eth0", "waits", condition(v1alpha1.ConditionBound, metav1.ConditionFalse, reasonNodeLimit, "node-a has 1 NICs"))
	w.awaitEvent("second", reasonNodeLimit, "spec.maxNICsPerNode")
	w.deletePod("first")
	w.awaitNIC("second", "eth0", "is bound", boundAt("node-a"))
}

// A namespace's quota of PodNICs is kept, and the pod told.
func TestNamespaceQuota(t *testing.T) {
	w := start(t, Options{})
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "nics"}}
	q.Spec.Hard = corev1.ResourceList{"count/podnics.berth.dev": resource.MustParse("0")}
	harness.OK(t, w.client().Create(t.Context(), q))
	q.Status.Hard, q.Status.Used = q.Spec.Hard, q.Spec.Hard // as Kubernetes' own controller does
	harness.OK(t, w.client().Status().Update(t.Context(), q))
	t.Cleanup(func() { _ = harness.KubeClient(t).Delete(t.Context(), q) })
	w.pod("web", "")
	w.awaitEvent("web", "NICRefused", "exceeded quota")
	harness.OK(t, w.client().Delete(t.Context(), q))
	w.awaitNIC("web", "eth0", "has a port", in(v1alpha1.PhaseCreated))
}

// An operator that is started finds each port again, and makes none.
func TestRestart(t *testing.T) {
	w := start(t, Options{})
	w.pod("web", `[{}, {subnet: web}]`)
	w.schedule("web", "node-a")
	before := map[string]*v1alpha1.PodNIC{}
	for _, name := range []string{"eth0", "eth1"} {
		before[name] = w.awaitNIC("web", name, "is bound", boundAt("node-a"))
	}
	w.end()
	w.Front.ResetCalls()
	w.pod("next", "")
	w.Plug(before["eth0"].Status.PortID, "node-a")
	w.run(Options{})
	w.awaitNIC("next", "eth0", "has a port", in(v1alpha1.PhaseCreated))
	w.awaitNIC("web", "eth0", "is active", in(v1alpha1.PhaseActive))
	for name, o := range before {
		if now := w.nicsOf("web")[name]; now == nil || now.Status.PortID != o.Status.PortID {
			t.Errorf("was %+v, is %+v", o.Status, now)
		}
	}
	w.awaitPorts(3, "no port is made twice")
	if n := w.Front.Count("Create"); n != 1 {
		t.Errorf("%d calls of Create", n)
	}
}

// An API server that is away holds up what needs it, and no port is lost.
func TestAPIServerAway(t *testing.T) {
	w := start(t, Options{})
	w.pod("web", "")
	o := w.awaitNIC("web", "eth0", "has a port", in(v1alpha1.PhaseCreated))
	w.schedule("web", "node-a")
	back := harness.WithoutAPIServer(t)
	w.Remove(o.Status.PortID)
	back()
	w.awaitNIC("web", "eth0", "is bound", boundAt("node-a"))
	w.awaitPorts(1, "one port")
}
