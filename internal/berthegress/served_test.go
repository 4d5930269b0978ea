package berthegress

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/egressgateway"
	"github.com/berthnet/berth/internal/web/webtest"
)

// A node's request is answered once the kernel serves all of the pod's addresses. A request for a pod that is not
// served is answered in time.
func TestNodesAskForClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{hold: make(chan struct{})}
		a, _ := newTestAgent(t, k)
		working(t, a)
		began := time.Now()
		answers := map[string]chan string{}
		for _, path := range []string{"/clients/pod-1?address=10.0.0.1&address=fd00::1", "/clients/pod-1?address=10.0.0.9", "/clients/pod-2?address=10.0.0.2"} {
			answers[path] = make(chan string, 1)
			go func() {
				code, body := probe(a, path)
				answers[path] <- fmt.Sprintf("%d %s after %s", code, strings.TrimSpace(body), time.Since(began))
			}()
		}
		later(time.Second)
		a.observe(egressOf("0.0.0.0/0"), sliceOf("s", v1alpha1.ServedClient{UID: "pod-1", Addresses: []string{"10.0.0.1"}}))
		later(time.Second) // while the kernel changes
		close(k.hold)
		later(time.Second)
		a.observe(egressOf("0.0.0.0/0"), sliceOf("s", v1alpha1.ServedClient{UID: "pod-1", Addresses: []string{"10.0.0.1", "fd00::1"}}))
		later(time.Minute)
		for path, want := range map[string]string{
			"/clients/pod-1?address=10.0.0.1&address=fd00::1": "200 ok after 3s",
			"/clients/pod-1?address=10.0.0.9":                 "503 pod pod-1 is served with [10.0.0.1 fd00::1], and not yet with all of [10.0.0.9] after 15s",
			"/clients/pod-2?address=10.0.0.2":                 "503 pod pod-2 is not served yet after 15s",
		} {
			if got := <-answers[path]; got != want {
				t.Errorf("%s: %s, want %s", path, got, want)
			}
		}
		for path, want := range map[string]string{
			"/clients/pod-1":                         "400 address: got 0, expected the pod's addresses, one or two",
			"/clients/pod-1?address=here":            "400 address: expected an IP address",
			"/clients/pod-1?address=::ffff:10.0.0.1": "200 ok",
		} {
			if code, body := probe(a, path); fmt.Sprintf("%d %s", code, strings.TrimSpace(body)) != want {
				t.Errorf("%s: %d %s, want %s", path, code, body, want)
			}
		}
	})
}

// The number of waiting requests is limited, and canceled ones do not count.
func TestManyAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newServedClients()
		ctx, cancel := context.WithCancel(t.Context())
		for i := range maxWaiting {
			go func() { _ = r.await(ctx, fmt.Sprint("pod-", i), nil) }()
		}
		synctest.Wait()
		w := httptest.NewRecorder()
		r.handleClient(w, httptest.NewRequest(http.MethodGet, "/clients/x?address=10.0.0.1", nil))
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "4096 requests are waiting") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		cancel()
		synctest.Wait()
		r.set([]egressgateway.Client{{UID: "x"}})
		if err := r.await(t.Context(), "x", nil); err != nil || r.waiting != 0 {
			t.Errorf("%v; %d ask", err, r.waiting)
		}
	})
}

// Pods that hold connections to a gateway block neither its kubelet's probes nor scrapes.
func TestAttacksOnGateways(t *testing.T) {
	node, scraper := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.1.0.5")
	webtest.Try(t, func(t *testing.T) webtest.Server {
		a, _ := newTestAgent(t, &fakeKernel{})
		return webtest.Server{
			At: netip.MustParseAddr("10.1.0.9"), Slow: "/clients/x?address=10.0.0.7",
			Serve: func(ctx context.Context, l net.Listener) error { return a.serve(ctx, l, []netip.Addr{node}) },
			Path:  "/metrics", Honest: []netip.Addr{node, scraper},
		}
	})
}
