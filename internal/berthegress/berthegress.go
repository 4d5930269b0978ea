// Package berthegress is berth-egress, the program in a gateway's pod: it keeps the kernel as the Egress
// and its clients ask for (internal/kernel/egressgateway), and shows how it does.
//
//	berthegress.go  puts the parts together and runs them
//	book.go         what the Kubernetes API says, and what follows of it
//	follow.go       hearing of it
//	keep.go         the loop that keeps the kernel so
//	end.go          ending in order
//	roster.go       whom the kernel serves, for nodes that ask
//	serve.go        metrics and probes
//	metrics.go      what there is to count
package berthegress

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/kernel/egressgateway"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/version"
	"github.com/berthnet/berth/internal/web"
)

// Run is a gateway until ctx ends and nobody needs it any more, or its grace period is over. What it set up
// in the kernel stays: it goes with the pod, and the next process takes it over.
func Run(ctx context.Context, cfg config.Gateway, log *slog.Logger) error {
	log.Info("starting", "version", version.String(), "egress", cfg.EgressName, "namespace", cfg.Namespace, "addresses", cfg.PodIPs)
	if len(cfg.Unknown) > 0 {
		log.Warn("environment variables that begin with BERTH_ and mean nothing: typing errors?", "names", cfg.Unknown)
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
		log.Warn("the pod's router is not known: only --host-ips has places kept at --metrics-address", "err", err)
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

// run follows, keeps and serves until it may end.
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
	parts.Go(func() { a.keep(work) })
	<-ctx.Done()
	a.end()
	stop()
	parts.Wait()
	a.log.Info("ended")
	return nil
}
