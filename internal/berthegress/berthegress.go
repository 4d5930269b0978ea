// Package berthegress is berth-egress, the program in a gateway's pod. It reconciles the kernel
// (internal/kernel/egressgateway) with the Egress and its clients.
//
//	berthegress.go  assembles the parts and runs them; the web server with metrics and probes
//	cache.go        watches the Kubernetes API and caches its objects
//	agent.go        the reconcile loop, readiness, and graceful termination
//	served.go       answers nodes that wait until one of their clients is served
//	metrics.go      the metrics
package berthegress

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/kernel/egressgateway"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/version"
	"github.com/berthnet/berth/internal/web"
)

// Run runs a gateway until ctx has ended and no connection is left or the grace period is over. Its kernel state stays
// for the next process, and is removed with the pod.
func Run(ctx context.Context, cfg config.Gateway, log *slog.Logger) error {
	log.Info("starting", "version", version.String(), "egress", cfg.EgressName, "namespace", cfg.Namespace, "addresses", cfg.PodIPs)
	if len(cfg.Unknown) > 0 {
		log.Warn("ignoring unknown environment variables with the prefix BERTH_", "names", cfg.Unknown)
	}
	api, err := newClient(cfg)
	if err != nil {
		return err
	}
	kernel, err := egressgateway.OpenOwn()
	if err != nil {
		return fmt.Errorf("open the pod's network namespace: %w", err)
	}
	defer kernel.Close()
	listener, err := web.Listen("metrics-address", cfg.MetricsAddr)
	if err != nil {
		return err
	}
	log.Info("serving", "address", listener.Addr().String())
	routers, err := kernel.Routers()
	if err != nil {
		log.Warn("cannot find the pod's router: only connections from --host-ips are preferred at --metrics-address", "err", err)
	}
	near := append(routers, cfg.HostIPs...)
	a := newAgent(cfg, kernel, clock.Real{}, log)
	return a.run(ctx, func(ctx context.Context) { a.follow(ctx, api) }, func(ctx context.Context) error {
		return a.serve(ctx, listener, near)
	})
}

func newClient(cfg config.Gateway) (*kubeapi.Client, error) {
	rc, err := kubeapi.Config(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	rc.UserAgent = "berth-egress/" + version.String()
	api, err := kubeapi.New(rc)
	if err != nil {
		return nil, err
	}
	return api.In(cfg.Namespace), nil
}

// run watches, reconciles and serves until it may end.
func (a *agent) run(ctx context.Context, follow func(context.Context), serve func(context.Context) error) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var parts sync.WaitGroup
	parts.Go(func() { follow(work) })
	parts.Go(func() {
		if err := serve(work); err != nil {
			a.log.Error("the web server ended", "err", err)
		}
	})
	parts.Go(func() { a.reconcile(work) })
	<-ctx.Done()
	a.end()
	stop()
	parts.Wait()
	a.log.Info("ended")
	return nil
}

// serve serves HTTP until ctx ends. Connections from the addresses of the pod's node are preferred, so that its
// kubelet's probes succeed when pods use up the others.
func (a *agent) serve(ctx context.Context, l net.Listener, node []netip.Addr) error {
	return web.Serve(ctx, l, a.handler(), web.Options{Preferred: func(peer netip.Addr) bool { return slices.Contains(node, peer) }})
}

// handler serves metrics, probes, and requests of nodes about clients.
func (a *agent) handler() http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), a)
	for _, c := range a.counts.all() {
		reg.MustRegister(c)
	}
	mux := http.NewServeMux()
	web.HandleMetrics(mux, reg)
	web.HandleProbe(mux, "/livez", a.alive)
	web.HandleProbe(mux, "/readyz", func() error {
		_, err := a.ready()
		return err
	})
	mux.HandleFunc("GET "+v1alpha1.EgressClientsPath+"{uid}", a.served.handleClient)
	return mux
}
