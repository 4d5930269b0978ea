package daemon

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"

	"github.com/berthnet/berth/internal/web"
)

// localOnly refuses requests for another host's name: a web page that a person
// on this machine looks at must not read the document through a name that its
// owner resolves to 127.0.0.1.
func localOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLocalHost(r.Host) {
			http.Error(w, fmt.Sprintf("host %q is not this machine's loopback address", r.Host), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func isLocalHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	} else if len(host) > 2 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	if host == "localhost" || host == "localhost." {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

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
