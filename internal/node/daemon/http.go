package daemon

import (
	"net/http"

	"github.com/berthnet/berth/internal/web"
)

// monitoringHandler serves what a cluster's monitoring asks for.
func (f *Front) monitoringHandler() http.Handler {
	mux := http.NewServeMux()
	web.HandleMetrics(mux, f.Metrics.Registry)
	f.handleProbes(mux)
	return mux
}

func (f *Front) handleProbes(mux *http.ServeMux) {
	web.HandleProbe(mux, "/livez", func() error { return nil })
	web.HandleProbe(mux, "/readyz", f.readiness)
	web.HandleStartup(mux, "/startupz", f.readiness)
}
