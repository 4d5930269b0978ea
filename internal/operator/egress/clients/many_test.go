package clients

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

// Many clients take as many slices as they need, written a few times for all of them; one
// that goes is one write, of its slice.
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
	if got := w.slices("nat"); len(got) != (len(pods)+v1alpha1.SliceClients-1)/v1alpha1.SliceClients {
		t.Errorf("%d slices", len(got))
	}
	t.Logf("%d writes of slices", writes.Load())
	before := writes.Swap(0)
	if int(before) > len(pods)/2 {
		t.Errorf("%d writes of slices for %d clients that came at once", before, len(pods))
	}
	w.deletePod(pods[7])
	w.awaitServed("nat", append(append([]string{}, want[:7]...), want[8:]...)...)
	if n := writes.Load(); n != 1 {
		t.Errorf("%d writes of slices for one client that went", n)
	}
}
