package operator

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/planner"
	"github.com/berthnet/berth/internal/web"
	"github.com/berthnet/berth/internal/web/webtest"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

func TestAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		var asked atomic.Int32
		alive := answers("the fleet", func() { asked.Add(1); <-hang })
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), probeTimeout)
			if err := alive(ctx); err == nil || !strings.Contains(err.Error(), "the fleet does not answer") {
				t.Errorf("alive() = %v, want it to say that the fleet does not answer", err)
			}
			cancel()
		}
		harness.OK(t, controllers.Same("concurrent calls", asked.Load(), 1))
		close(hang)
		if err := alive(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Pods that hold connections to an operator's metrics port on the node's address open cannot block scrapes, except those from the node itself.
func TestAttacksOnOperators(t *testing.T) {
	node, scraper := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.1.0.5")
	webtest.Try(t, func(*testing.T) webtest.Server {
		fine := func(context.Context) error { return nil }
		f := &front{ready: func(context.Context) error { return errStarting }, alive: fine}
		mux := f.probes()
		web.HandleMetrics(mux, prometheus.NewRegistry())
		return webtest.Server{
			At: node, Slow: "/startupz", Path: "/metrics", Honest: []netip.Addr{node, scraper},
			Serve: func(ctx context.Context, l net.Listener) error { return web.Serve(ctx, l, mux, web.Options{}) },
		}
	})
}

func TestProbesFollowTheChecks(t *testing.T) {
	cfg := config.Operator{OperatorWatching: config.OperatorWatching{MetricsAddr: freeAddress(t), HealthAddr: freeAddress(t), PprofAddr: freeAddress(t)}}
	f, err := newFront(cfg, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	harness.OK(t, err)
	t.Cleanup(f.close)
	expect := func(path string, status int) {
		t.Helper()
		for _, a := range []string{cfg.MetricsAddr, cfg.HealthAddr} {
			harness.Eventually(t, limit, path, answersWith(a, path, status))
		}
	}
	expect("/readyz", 503)
	expect("/livez", 200)
	fine := func(context.Context) error { return nil }
	f.watch(fine, fine)
	expect("/readyz", 200)
	f.watch(fine, func(ctx context.Context) error { return errStarting })
	expect("/livez", 503)
	harness.OK(t, answersWith(cfg.MetricsAddr, "/metrics", 200)())
	harness.OK(t, answersWith(cfg.HealthAddr, "/metrics", 200)())
	harness.OK(t, answersWith(cfg.PprofAddr, "/debug/pprof/", 200)())
	harness.OK(t, answersWith(cfg.MetricsAddr, "/debug/pprof/", 404)())
}

// TestSettingsAreForThisMachine: settings, and everything else served in addition to probes, are available only on loopback addresses, and only
// under these addresses' names.
func TestSettingsAreForThisMachine(t *testing.T) {
	loader := config.NewOperatorLoader(pflag.NewFlagSet("", pflag.ContinueOnError))
	cfg, err := loader.Load([]string{"BERTH_CLUSTER_NAME=prod", "BERTH_EC2_ENDPOINT=http://me:secret@ec2", "BERTH_CLUSTER=typo"})
	harness.OK(t, err)
	all := func(address string) string {
		_, port, err := net.SplitHostPort(address)
		harness.OK(t, err)
		return "0.0.0.0:" + port
	}
	inside, outside := cfg, cfg
	inside.MetricsAddr, inside.HealthAddr = freeAddress(t), freeAddress(t)
	outside.MetricsAddr, outside.HealthAddr = all(freeAddress(t)), all(freeAddress(t))
	for _, cfg := range []config.Operator{inside, outside} {
		f, err := newFront(cfg, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
		harness.OK(t, err)
		t.Cleanup(f.close)
	}
	for _, address := range []string{inside.MetricsAddr, inside.HealthAddr} {
		resp, err := http.Get("http://" + address + introspect.SettingsPath)
		harness.OK(t, err)
		var got introspect.Settings
		harness.OK(t, errors.Join(json.NewDecoder(resp.Body).Decode(&got), resp.Body.Close()))
		name, _ := got.Get("cluster-name")
		endpoint, _ := got.Get("ec2-endpoint")
		if name != "prod" || strings.Contains(endpoint, "secret") || !strings.Contains(endpoint, "@ec2") || !slices.Contains(got.Unknown, "BERTH_CLUSTER") || got.Version == "" {
			t.Errorf("settings served at %s = %+v", address, got)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+introspect.SettingsPath, nil)
		harness.OK(t, err)
		req.Host = "rebound.example"
		resp, err = http.DefaultClient.Do(req)
		harness.OK(t, err)
		harness.OK(t, resp.Body.Close())
		harness.OK(t, controllers.Same("status of a request with another host name", resp.StatusCode, http.StatusForbidden))
	}
	for _, wanted := range []struct {
		address, path string
		status        int
	}{
		{outside.MetricsAddr, introspect.SettingsPath, 404}, {outside.HealthAddr, introspect.SettingsPath, 404},
		{outside.MetricsAddr, "/metrics", 200}, {outside.HealthAddr, "/metrics", 404}, {outside.HealthAddr, "/livez", 200},
	} {
		harness.OK(t, answersWith(strings.Replace(wanted.address, "0.0.0.0", "127.0.0.1", 1), wanted.path, wanted.status)())
	}
}

func TestAddressInUseNamesTheFlag(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	harness.OK(t, err)
	defer l.Close()
	cfg := config.Operator{OperatorWatching: config.OperatorWatching{MetricsAddr: freeAddress(t), HealthAddr: l.Addr().String()}}
	if _, err := newFront(cfg, prometheus.NewRegistry(), slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "--health-address "+cfg.HealthAddr) {
		t.Errorf("newFront() error = %v, want it to name the flag and the address", err)
	}
	again, err := net.Listen("tcp", cfg.MetricsAddr)
	if err != nil {
		t.Errorf("the other address was not released: %v", err)
	} else {
		again.Close()
	}
}

// The planner's page and API are served on the address that is set, and simulate in a child process.
func TestPlannerIsServed(t *testing.T) {
	cfg := config.Operator{OperatorWatching: config.OperatorWatching{MetricsAddr: freeAddress(t), PlannerAddr: freeAddress(t)}}
	f, err := newFront(cfg, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	harness.OK(t, err)
	t.Cleanup(f.close)
	harness.Eventually(t, limit, "the page", answersWith(cfg.PlannerAddr, "/", 200))
	harness.OK(t, answersWith(cfg.MetricsAddr, "/api/types", 404)())
	body := `{"duration": "5m", "subnets": [{"name": "a", "cidr": "10.0.0.0/24"}], "nodes": [{"name": "n", "instanceType": "m5.large", "count": 1, "subnets": ["a"]}]}`
	resp, err := http.Post("http://"+cfg.PlannerAddr+"/api/simulate", "application/json", strings.NewReader(body))
	harness.OK(t, err)
	var r planner.Result
	err = json.NewDecoder(resp.Body).Decode(&r)
	harness.OK(t, errors.Join(err, resp.Body.Close()))
	if len(r.Alternatives) != 1 || r.Alternatives[0].Totals.PeakHeld != 10 {
		t.Errorf("result = %+v, want 10 addresses held", r)
	}
}
