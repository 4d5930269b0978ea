package clients

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

// Two slices that have few clients become one. While the one that takes clients cannot be written the
// other stays: no client is in none.
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
			return nil, errors.New("the API server does not answer")
		case r.Method == http.MethodPut:
			defer wrote.Add(1)
		case r.Method == http.MethodDelete && wrote.Load() == 0:
			early.Add(1)
		}
		return next.RoundTrip(r)
	}))
	w.awaitServed("nat", "a 10.1.0.1", "b 10.1.0.2", "probe 10.1.255.1")
	if n := len(w.slices("nat")); n != 1 {
		t.Errorf("%d slices", n)
	}
	if refused.Load() <= refusals || early.Load() > 0 {
		t.Errorf("%d writes, %d slices deleted before their clients were in another", refused.Load(), early.Load())
	}
}
