package clients

import (
	"context"
	"errors"
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

// counted returns a transport that counts an operator's writes.
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
	probe := w.pod("probe", "nat") // queued after all existing objects
	w.setUp(probe, "10.1.255.1")
	w.await(probe, "is ready", ready(reasonSetUp))
}

// An operator that takes over writes nothing that is already as desired.
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
	// The probe's own writes: its EgressClient, its condition twice, its slice, and counts.
	if n := writes.Load(); n > 6 {
		t.Errorf("%d writes after a restart, want at most the 6 for the probe", n)
	}
	harness.OK(t, controllers.Same("Events of the refused pod", len(controllers.Events(t, refused)), before))
}

// Changes of pods, Egresses and slices while no operator runs are reconciled by the next one.
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
	w.await(stays, "uses the existing Egresses", uses([]string{"anew", "nat"}, "gone NotFound"))
}

// A slice that somebody changes or deletes is restored.
func TestChangedSlicesAreRestored(t *testing.T) {
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
	harness.OK(t, controllers.Same("slices", len(w.slices("nat")), 1))
}

// Many clients take as many slices as needed, written a few times for all of them. Removing one client
// costs one write of its slice.
func TestManyClients(t *testing.T) {
	harness.KubeClean(t)
	w := newWorld(t)
	var writes atomic.Int64
	counted := harness.Through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/egressclientslices") {
			writes.Add(1)
		}
		return next.RoundTrip(r)
	})
	w.egress("nat", v1alpha1.EgressSpec{AllowedNamespaces: open()})
	pods := harness.Sample(t, 2, make([]*corev1.Pod, 230))
	want := make([]string, len(pods))
	harness.OK(t, harness.AtOnce(len(pods), func(i int) error {
		pods[i] = w.pod(fmt.Sprintf("web-%03d", i), "nat")
		want[i] = fmt.Sprintf("web-%03d 10.1.%d.%d", i, i/100, i%100)
		return nil
	}))
	w.run(Options{}, counted)
	w.daemons.Of(t, "node-a")
	harness.OK(t, harness.AtOnce(len(pods), func(i int) error {
		w.setUp(pods[i], strings.Fields(want[i])[1])
		return nil
	}))
	w.awaitServed("nat", want...)
	w.awaitCounts("nat", int32(len(pods)), 0, reasonServed)
	harness.OK(t, controllers.Same("slices", len(w.slices("nat")), (len(pods)+v1alpha1.SliceClients-1)/v1alpha1.SliceClients))
	t.Logf("%d slice writes", writes.Load())
	before := writes.Swap(0)
	if int(before) > len(pods)/2 {
		t.Errorf("%d slice writes for %d concurrent clients, want at most half as many", before, len(pods))
	}
	w.deletePod(pods[7])
	w.awaitServed("nat", append(append([]string{}, want[:7]...), want[8:]...)...)
	harness.OK(t, controllers.Same("slice writes for one removed client", writes.Load(), 1))
}

// Two slices with few clients are merged. While the slice that takes clients cannot be written, the
// other one stays: every client is in a slice.
func TestSlicesAreMerged(t *testing.T) {
	w := start(t, Options{})
	w.egress("nat", v1alpha1.EgressSpec{AllowedNamespaces: open()})
	a, b := w.pod("a", "nat"), w.pod("b", "nat")
	w.setUp(a, "10.1.0.1")
	w.setUp(b, "10.1.0.2")
	w.awaitServed("nat", "a 10.1.0.1", "b 10.1.0.2")
	w.end()

	first := w.slices("nat")[0]
	second := first.DeepCopy()
	second.Name, second.UID, second.ResourceVersion = first.Name+"0", "", ""
	first.Clients, second.Clients = first.Clients[:1], first.Clients[1:]
	harness.OK(t, w.operator().Update(t.Context(), &first))
	harness.OK(t, w.operator().Create(t.Context(), second))

	const refusals = 3
	var refused, wrote, early atomic.Int64
	w.begin(harness.Through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if !strings.Contains(r.URL.Path, "/egressclientslices") {
			return next.RoundTrip(r)
		}
		switch {
		case r.Method == http.MethodPut && refused.Add(1) <= refusals:
			return nil, errors.New("request dropped by the test")
		case r.Method == http.MethodPut:
			defer wrote.Add(1)
		case r.Method == http.MethodDelete && wrote.Load() == 0:
			early.Add(1)
		}
		return next.RoundTrip(r)
	}))
	w.awaitServed("nat", "a 10.1.0.1", "b 10.1.0.2", "probe 10.1.255.1")
	harness.OK(t, controllers.Same("slices", len(w.slices("nat")), 1))
	if refused.Load() <= refusals || early.Load() > 0 {
		t.Errorf("%d attempts to update, want more than 3; %d slices deleted before their clients were in another one, want 0", refused.Load(), early.Load())
	}
}

// An operator killed at any step leaves nothing that its successor does not complete, and no client
// served that should not be.
func TestKillAtEveryFailpoint(t *testing.T) {
	for _, name := range harness.Sample(t, 9, controllers.Failpoints(t, "operator.egressclient.", 14)) {
		t.Run(name, func(t *testing.T) {
			harness.KubeClean(t)
			w := newWorld(t)
			deaths := controllers.Killed(t, operatorConfig(t), name+"=kill")
			w.live()
			controllers.AwaitValue(t, "killed operators", deaths, 1)
		})
	}
}

// live runs a scenario that causes every kind of write.
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
		w.t.Errorf("slices = %+v, want none", s)
	}
}

// The metrics count clients by state, and match the documented ones.
func TestMetrics(t *testing.T) {
	w := start(t, Options{})
	w.egress("nat", v1alpha1.EgressSpec{AllowedNamespaces: open()})
	w.egress("closed", v1alpha1.EgressSpec{Destinations: []string{"203.0.113.0/24"}})
	web, double := w.pod("web", "nat,closed"), w.pod("double", "nat")
	w.setUp(web, "10.1.0.5")
	w.awaitServed("nat", "web 10.1.0.5")
	w.setUp(double, "10.1.0.5")
	w.await(double, "conflicts", ready(reasonConflict))
	w.awaitCounts("nat", 1, 0, reasonWaits)
	w.awaitCounts("closed", 0, 1, reasonServed)
	harness.OK(t, controllers.Same("known pods", w.c.Known(), 2))
	gauge := func(egress, state string) string {
		return fmt.Sprintf(`berth_operator_egress_clients{egress=%q,namespace="internet",state=%q}`, egress, state)
	}
	harness.CheckMetrics(t, append(w.c.egresses.writer.metrics.Collectors(), w.c.Gauges()), Families, map[string]string{
		gauge("nat", "served"):     "1",
		gauge("nat", "stuck"):      "1",
		gauge("nat", "refused"):    "0",
		gauge("closed", "refused"): "1",
		`berth_operator_egress_client_slices{egress="nat",namespace="internet"}`:          "1",
		`berth_operator_egress_client_slices{egress="closed",namespace="internet"}`:       "0",
		`berth_operator_egress_client_writes_total{kind="slice",result="success"}`:        "1",
		`berth_operator_egress_client_writes_total{kind="slice",result="error"}`:          "0",
		`berth_operator_egress_served_seconds_count`:                                      "1",
		`berth_operator_egress_clients{egress="none",namespace="internet",state="stuck"}`: "",
	})
}
