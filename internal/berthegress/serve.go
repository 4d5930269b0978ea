package berthegress

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/web"
)

// serve serves HTTP until ctx ends. Connections from the addresses of the pod's node are preferred, so that its
// kubelet's probes succeed while pods use up the others.
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
