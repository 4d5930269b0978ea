package clients

import (
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// An operator that is killed at any step leaves nothing that the next one does not finish,
// nor anybody served who is not to be.
func TestKillAtEveryFailpoint(t *testing.T) {
	for _, name := range harness.Sample(t, 9, controllers.Failpoints(t, "operator.egressclient.", 14)) {
		t.Run(name, func(t *testing.T) {
			harness.KubeClean(t)
			w := newWorld(t)
			deaths := controllers.Killed(t, operatorConfig(t), name+"=kill")
			w.live()
			if n := deaths(); n != 1 {
				t.Errorf("%d operators died", n)
			}
		})
	}
}

// live is a life with all that leads to writes.
func (w *world) live() {
	w.egress("nat", v1alpha1.EgressSpec{AllowedNamespaces: open()})
	web, goes, wrong := w.pod("web", "nat"), w.pod("goes", "nat"), w.pod("wrong", "none")
	w.setUp(web, "10.1.0.1")
	w.setUp(goes, "10.1.0.2")
	w.awaitServed("nat", "web 10.1.0.1", "goes 10.1.0.2")
	w.await(web, "is ready", ready(reasonSetUp))
	w.await(wrong, "is refused", ready(v1alpha1.EgressNotFound))
	w.awaitCounts("nat", 2, 0, reasonServed)
	w.edit(wrong, `{"metadata":{"annotations":{"egress.berth.dev/internet":"nat"}}}`)
	w.setUp(wrong, "10.1.0.3")
	w.deletePod(goes)
	w.awaitServed("nat", "web 10.1.0.1", "wrong 10.1.0.3")
	w.awaitNone(goes)
	w.edit(wrong, `{"metadata":{"annotations":null}}`)
	w.awaitNone(wrong)
	w.deletePod(web)
	w.awaitServed("nat")
	w.awaitNone(web)
	w.awaitCounts("nat", 0, 0, reasonServed)
	if s := w.slices("nat"); len(s) > 0 {
		w.t.Errorf("slices are left: %+v", s)
	}
}
