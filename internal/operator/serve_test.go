package operator

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/test/harness"
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
		if n := asked.Load(); n != 1 {
			t.Errorf("asked %d times at once", n)
		}
		close(hang)
		if err := alive(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestProbesFollowTheChecks(t *testing.T) {
	cfg := config.Operator{MetricsAddr: freeAddress(t), HealthAddr: freeAddress(t), PprofAddr: freeAddress(t)}
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
	harness.OK(t, answersWith(cfg.HealthAddr, "/metrics", 404)())
	harness.OK(t, answersWith(cfg.PprofAddr, "/debug/pprof/", 200)())
	harness.OK(t, answersWith(cfg.MetricsAddr, "/debug/pprof/", 404)())
}

func TestAddressInUseNamesTheFlag(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	harness.OK(t, err)
	defer l.Close()
	cfg := config.Operator{MetricsAddr: freeAddress(t), HealthAddr: l.Addr().String()}
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
