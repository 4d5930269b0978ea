package berthegress

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/egressgateway"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

func egressOf(destinations ...string) *v1alpha1.Egress {
	return &v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Name: "nat", UID: "e"}, Spec: v1alpha1.EgressSpec{Destinations: destinations}}
}

func sliceOf(uid types.UID, clients ...v1alpha1.ServedClient) *v1alpha1.EgressClientSlice {
	return &v1alpha1.EgressClientSlice{ObjectMeta: metav1.ObjectMeta{UID: uid}, Clients: clients}
}

func (a *agent) observe(e *v1alpha1.Egress, s ...*v1alpha1.EgressClientSlice) {
	a.requested(nil)
	a.update(egresses, func(c *apiCache) { c.egress = e })
	a.update(clientSlices, func(c *apiCache) {
		for _, o := range s {
			c.slices[o.UID] = o
		}
	})
}

// working runs a gateway in the bubble until the test ends, or end is called.
func working(t *testing.T, a *agent) (end context.CancelFunc, ended <-chan time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done, over := make(chan time.Duration, 1), make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-over
	})
	go func() {
		defer close(over)
		asked := make(chan time.Time, 1)
		context.AfterFunc(ctx, func() { asked <- time.Now() })
		idle := func(ctx context.Context) { <-ctx.Done() }
		if err := a.run(ctx, idle, func(ctx context.Context) error { idle(ctx); return nil }); err != nil {
			t.Error(err)
		}
		done <- time.Since(<-asked)
	}()
	synctest.Wait()
	return cancel, done
}

func probe(a *agent, path string) (int, string) {
	w := httptest.NewRecorder()
	a.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func wantProbe(t *testing.T, a *agent, path string, code int, part string) {
	t.Helper()
	if got, body := probe(a, path); got != code || !strings.Contains(body, part) {
		t.Errorf("%s: %d %q, want %d and %q", path, got, body, code, part)
	}
}

func later(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // virtual time
	synctest.Wait()
}

func TestWanted(t *testing.T) {
	c := newAPICache()
	c.egress = egressOf("203.0.113.0/24", "2001:db8::/32", "10.0.0.1/8", "everything")
	c.slices["1"] = sliceOf("1",
		v1alpha1.ServedClient{UID: "b", Addresses: []string{"10.1.0.2", "fd01::2"}},
		v1alpha1.ServedClient{UID: "a", Addresses: []string{"10.1.0.1"}})
	// A client moves from one slice to another, and is in both meanwhile.
	c.slices["2"] = sliceOf("2", v1alpha1.ServedClient{UID: "a", Addresses: []string{"10.1.0.1", "nonsense"}})
	destinations, clients, garbage := c.desired()
	if got, want := fmt.Sprint(destinations), "[203.0.113.0/24 2001:db8::/32]"; got != want {
		t.Errorf("destinations %s, want %s", got, want)
	}
	addr := netip.MustParseAddr
	want := []egressgateway.Client{{UID: "a", Addrs: []netip.Addr{addr("10.1.0.1")}}, {UID: "b", Addrs: []netip.Addr{addr("10.1.0.2"), addr("fd01::2")}}}
	if d := cmp.Diff(want, clients, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Error(d)
	}
	if len(garbage) != 3 {
		t.Errorf("passed over: %q", garbage)
	}
}

// TestReady: why a gateway is not ready, and what makes it unready again.
func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{}
		a, log := newTestAgent(t, k)
		working(t, a)
		wantProbe(t, a, "/readyz", 503, "egresses were not listed")
		a.requested(errors.New("connection refused"))
		a.requested(errors.New("connection refused"))
		wantProbe(t, a, "/readyz", 503, "connection refused")
		a.requested(nil)
		a.update(egresses, func(*apiCache) {})
		a.update(clientSlices, func(*apiCache) {})
		synctest.Wait()
		wantProbe(t, a, "/readyz", 503, "the Egress does not exist")
		if _, times, _ := k.last(); times != 0 {
			t.Error("the kernel was changed before everything was known")
		}

		k.set(func(k *fakeKernel) { k.err = fmt.Errorf("%w: module fou is not there", tunnel.ErrNoFoU) })
		a.observe(egressOf("203.0.113.0/24"), sliceOf("1", v1alpha1.ServedClient{UID: "a", Addresses: []string{"10.1.0.1", "fd01::1"}}))
		synctest.Wait()
		wantProbe(t, a, "/readyz", 503, "module fou is not there")
		wantProbe(t, a, "/metrics", 200, `berth_egress_not_ready{reason="no-fou"} 1`)
		later(time.Minute)
		if n := log.count("module fou"); n != 1 {
			t.Errorf("logged %d times", n)
		}
		k.set(func(k *fakeKernel) { k.err = nil }) // somebody loaded it
		later(time.Minute)
		wantProbe(t, a, "/readyz", 200, "ok")
		wantProbe(t, a, "/metrics", 200, `berth_egress_client_addresses{family="ipv6"} 1`)

		// The API goes away, and a change fails: who is served is served on.
		a.requested(errors.New("away"))
		k.set(func(k *fakeKernel) { k.err = errors.New("no buffer space") })
		a.update(egresses, func(c *apiCache) { c.egress = egressOf("0.0.0.0/0") })
		later(time.Minute)
		wantProbe(t, a, "/readyz", 200, "ok")
		wantProbe(t, a, "/metrics", 200, "berth_egress_api_failures_total 3")
		if n := log.count("does not answer"); n != 2 {
			t.Errorf("logged %d times that the API is away, want once each time", n)
		}
		k.set(func(k *fakeKernel) { k.err = fmt.Errorf("%w: IPv6", egressgateway.ErrNotForwarded) })
		later(time.Minute)
		wantProbe(t, a, "/readyz", 503, "not forwarded")
		k.set(func(k *fakeKernel) { k.err = fmt.Errorf("%w: 10.1.0.1", egressgateway.ErrLeftOut) })
		later(time.Minute)
		wantProbe(t, a, "/readyz", 200, "ok")
		wantProbe(t, a, "/livez", 200, "ok")
		k.set(func(k *fakeKernel) { k.hold = make(chan struct{}) })
		defer k.set(func(k *fakeKernel) { close(k.hold); k.hold = nil })
		later(4 * time.Minute)
		wantProbe(t, a, "/livez", 503, "has been in flight")
	})
}

// TestRepairs: the kernel is compared once a minute, and failures are retried.
func TestRepairs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{err: errors.New("busy")}
		a, _ := newTestAgent(t, k)
		working(t, a)
		a.observe(egressOf("0.0.0.0/0"))
		later(30 * time.Second)
		if _, times, _ := k.last(); times < 4 || times > 12 {
			t.Errorf("%d attempts in 30 s", times)
		}
		k.set(func(k *fakeKernel) { k.err = nil })
		later(30 * time.Second)
		_, before, _ := k.last()
		later(10 * time.Minute)
		if _, times, forgot := k.last(); times-before != 10 || forgot < 10 {
			t.Errorf("%d comparisons in 10 min, %d anew", times-before, forgot)
		}
	})
}

// TestStartsWithoutAPI: a gateway takes over the state of an earlier process during an outage of the API.
func TestStartsWithoutAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{found: true}
		a, _ := newTestAgent(t, k)
		working(t, a)
		a.requested(errors.New("connection refused"))
		later(10 * time.Minute)
		wantProbe(t, a, "/readyz", 200, "ok")
		if _, times, _ := k.last(); times != 0 {
			t.Error("the kernel was changed though nothing is known")
		}
		a.observe(egressOf("203.0.113.0/24"), sliceOf("1", v1alpha1.ServedClient{UID: "a", Addresses: []string{"10.1.0.1"}}))
		synctest.Wait()
		if s, _, _ := k.last(); len(s.Clients) != 1 || len(s.Destinations) != 1 || s.Link != "eth0" || s.Port != 5555 {
			t.Errorf("applied %+v", s)
		}
	})
}

// TestEnds: a terminating gateway serves connections until they end or the grace period is over, and follows its
// clients meanwhile.
func TestEnds(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lasts time.Duration // connections, from when it is asked to end
		want  time.Duration
		tells string
	}{
		{"nothing to serve", 0, 10 * time.Second, "no connection is left"},
		{"connections end", 30 * time.Second, 31 * time.Second, "no connection is left"},
		{"connections that do not end", time.Hour, 58 * time.Second, "the grace period is over"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &fakeKernel{open: 3}
				a, log := newTestAgent(t, k)
				end, ended := working(t, a)
				a.observe(egressOf("0.0.0.0/0"))
				synctest.Wait()
				if tt.lasts == 0 {
					k.set(func(k *fakeKernel) { k.open = 0 })
				}
				end()
				synctest.Wait()
				wantProbe(t, a, "/readyz", 200, "ok")
				wantProbe(t, a, "/metrics", 200, "berth_egress_ending 1")
				a.update(clientSlices, func(c *apiCache) {
					c.slices["2"] = sliceOf("2", v1alpha1.ServedClient{UID: "late", Addresses: []string{"10.1.0.7"}})
				})
				synctest.Wait()
				if s, _, _ := k.last(); len(s.Clients) != 1 {
					t.Error("it does not follow its clients any more")
				}
				time.AfterFunc(tt.lasts+time.Millisecond, func() { k.set(func(k *fakeKernel) { k.open = 0 }) })
				if took := <-ended; took != tt.want {
					t.Errorf("ended after %v, want %v", took, tt.want)
				}
				if log.count(tt.tells) != 1 {
					t.Errorf("log: %q", log.text)
				}
			})
		})
	}
}

// TestMetrics: the kernel's counters by family.
func TestMetrics(t *testing.T) {
	a, _ := newTestAgent(t, &fakeKernel{})
	_, body := probe(a, "/metrics")
	for _, want := range []string{
		`berth_egress_translated_packets_total{direction="out",family="ipv4"} 7`,
		`berth_egress_translated_bytes_total{direction="out",family="ipv4"} 700`,
		`berth_egress_dropped_packets_total{family="ipv6",reason="not-a-client"} 3`,
		`berth_egress_dropped_bytes_total{family="ipv6",reason="not-a-client"} 300`,
		"berth_egress_connections 42", "berth_egress_connections_limit 1000", "berth_egress_connections_refused_total 5",
		`berth_egress_not_ready{reason="clients-unknown"} 1`, "berth_egress_apply_failures_total 0",
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	for _, f := range families {
		if f.Name != applies.Name && !strings.Contains(body, "\n"+f.Name) { // a histogram without observations has none
			t.Errorf("%s is described and not there", f.Name)
		}
	}
}
