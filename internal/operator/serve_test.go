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
				t.Errorf("err = %v", err)
			}
			cancel()
		}
		harness.OK(t, controllers.Same("questions at once", asked.Load(), 1))
		close(hang)
		if err := alive(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Pods that hold connections to an operator's metrics port at the node's address keep scrapes out
// no more than what the node itself asks.
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

// TestSettingsAreForThisMachine: they, and what else is served beside probes, are told
// at loopback addresses only, and under their names only.
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
			t.Errorf("settings of %s: %+v", address, got)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+introspect.SettingsPath, nil)
		harness.OK(t, err)
		req.Host = "rebound.example"
		resp, err = http.DefaultClient.Do(req)
		harness.OK(t, err)
		harness.OK(t, resp.Body.Close())
		harness.OK(t, controllers.Same("the status under another's name", resp.StatusCode, http.StatusForbidden))
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
		t.Errorf("err = %v", err)
	}
	again, err := net.Listen("tcp", cfg.MetricsAddr)
	if err != nil {
		t.Errorf("the other address is still taken: %v", err)
	} else {
		again.Close()
	}
}
