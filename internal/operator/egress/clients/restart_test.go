package clients

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/transport"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// counted counts the writes of an operator.
func counted() (transport.WrapperFunc, *atomic.Int64) {
	writes := &atomic.Int64{}
	return harness.Through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/events") {
			writes.Add(1)
		}
		return next.RoundTrip(r)
	}), writes
}

// begin starts an operator, and waits until it has reconciled everything.
func (w *world) begin(through transport.WrapperFunc) {
	w.t.Helper()
	w.run(Options{}, through)
	probe := w.pod("probe", "nat") // comes after all that was there
	w.setUp(probe, "10.1.255.1")
	w.await(probe, "is ready", ready(reasonSetUp))
}

// An operator that takes over writes nothing about what is as it is to be.
func TestRestartWritesNothing(t *testing.T) {
	w := start(t, Options{})
	w.egress("nat", v1alpha1.EgressSpec{AllowedNamespaces: open()})
	w.egress("picky", v1alpha1.EgressSpec{Destinations: []string{"203.0.113.0/24"}})
	var want []string
	pods := harness.Sample(t, 10, make([]*corev1.Pod, 120))
	for i := range pods {
		pods[i] = w.pod(fmt.Sprintf("web-%d", i), "nat")
		address := fmt.Sprintf("10.1.0.%d", i)
		want = append(want, pods[i].Name+" "+address)
		w.setUp(pods[i], address)
	}
	refused := w.pod("refused", "picky")
	w.await(refused, "is refused", ready(v1alpha1.EgressNotAllowed))
	w.awaitServed("nat", want...)
	for _, p := range pods {
		w.await(p, "is ready", ready(reasonSetUp))
	}
	w.awaitCounts("nat", int32(len(pods)), 0, reasonServed)
	w.awaitCounts("picky", 0, 1, reasonServed)
	before := len(controllers.Events(t, refused))
	w.end()
	through, writes := counted()
	w.begin(through)
	w.awaitCounts("nat", int32(len(pods))+1, 0, reasonServed)
	// The probe's own: its EgressClient, its condition twice, its slice, and counts.
	if n := writes.Load(); n > 6 {
		t.Errorf("%d writes", n)
	}
	if n := len(controllers.Events(t, refused)); n != before {
		t.Errorf("%d Events, were %d", n, before)
	}
}

// What became of pods, Egresses and slices while no operator was there is made good by the
// next.
func TestChangesWhileAway(t *testing.T) {
	w := start(t, Options{})
	gone := w.egress("gone", v1alpha1.EgressSpec{AllowedNamespaces: open(), Destinations: []string{"203.0.113.0/24"}})
	anew := w.egress("anew", v1alpha1.EgressSpec{AllowedNamespaces: open(), Destinations: []string{"198.51.100.0/24"}})
	w.egress("nat", v1alpha1.EgressSpec{AllowedNamespaces: open()})
	stays, goes, moves := w.pod("stays", "nat,gone,anew"), w.pod("goes", "nat"), w.pod("moves", "nat")
	for i, p := range []*corev1.Pod{stays, goes, moves} {
		w.setUp(p, fmt.Sprintf("10.1.0.%d", i))
	}
	w.awaitServed("nat", "stays 10.1.0.0", "goes 10.1.0.1", "moves 10.1.0.2")
	w.awaitServed("gone", "stays 10.1.0.0")
	w.awaitServed("anew", "stays 10.1.0.0")
	w.end()
	w.deletePod(goes)
	w.edit(moves, `{"metadata":{"annotations":null}}`)
	harness.OK(t, w.client().Delete(context.Background(), gone))
	harness.OK(t, w.client().Delete(context.Background(), anew))
	w.egress("anew", v1alpha1.EgressSpec{AllowedNamespaces: open(), Destinations: []string{"198.51.100.0/24"}})
	slice := w.slices("nat")[0]
	slice.Clients = append(slice.Clients, v1alpha1.ServedClient{UID: "nobody", Addresses: []string{"10.9.9.9"}})
	harness.OK(t, w.operator().Update(t.Context(), &slice))
	w.run(Options{})
	w.awaitServed("nat", "stays 10.1.0.0")
	w.awaitServed("gone")
	w.awaitServed("anew", "stays 10.1.0.0")
	w.awaitNone(goes)
	w.awaitNone(moves)
	w.await(stays, "uses what is there", uses([]string{"anew", "nat"}, "gone NotFound"))
}

// A slice that somebody changes or deletes is put right.
func TestSlicesMeddledWith(t *testing.T) {
	w := start(t, Options{})
	w.egress("nat", v1alpha1.EgressSpec{AllowedNamespaces: open()})
	p := w.pod("web", "nat")
	w.setUp(p, "10.1.0.5")
	w.awaitServed("nat", "web 10.1.0.5")
	slice := w.slices("nat")[0]
	added := slice.DeepCopy()
	added.Clients = append(added.Clients, v1alpha1.ServedClient{UID: "nobody", Addresses: []string{"10.9.9.9"}})
	harness.OK(t, w.operator().Update(t.Context(), added))
	w.awaitServed("nat", "web 10.1.0.5")
	harness.OK(t, w.client().Delete(t.Context(), &slice))
	w.awaitServed("nat", "web 10.1.0.5")
	doubled := slice.DeepCopy()
	doubled.ObjectMeta.ResourceVersion, doubled.UID, doubled.Name = "", "", "nat-double"
	harness.OK(t, w.operator().Create(t.Context(), doubled))
	w.awaitServed("nat", "web 10.1.0.5")
	if got := w.slices("nat"); len(got) != 1 {
		t.Errorf("%d slices", len(got))
	}
}
