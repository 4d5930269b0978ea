package clients

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

// A pod from its annotation to the gateways' slice, and until it is gone.
func TestClient(t *testing.T) {
	w := start(t, Options{})
	w.egress("nat", v1alpha1.EgressSpec{AllowedNamespaces: open()})
	p := w.pod("web", "nat")
	o := w.await(p, "names it", uses([]string{"nat"}))
	if o.Spec.NodeName != "node-a" || o.Spec.PodUID != string(p.UID) || len(o.OwnerReferences) != 1 || o.OwnerReferences[0].UID != p.UID {
		t.Errorf("got %+v", o)
	}
	w.await(p, "waits", ready(reasonWaiting, "node-a"))
	w.setUp(p, "10.1.0.5", "2001:db8::5")
	w.awaitServed("nat", "web 10.1.0.5,2001:db8::5")
	w.await(p, "is ready", ready(reasonSetUp))
	w.awaitCounts("nat", 1, 0, reasonServed)
	w.status(p, corev1.PodRunning, "10.1.0.5", "2001:db8::5")
	w.deletePod(p)
	w.awaitServed("nat")
	w.awaitNone(p)
	w.awaitCounts("nat", 0, 0, reasonServed)
	if s := w.slices("nat"); len(s) > 0 {
		t.Errorf("slices are left: %+v", s)
	}
}
