// Package web is what the HTTP servers of Berth's programs have in common.
package web

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/listener"
)

// What one listener takes. A request is one of a few paths and has no body but where
// Options.MaxBody says so, its answer some kilobytes; a scraper has one connection, and
// keeps it.
const (
	// Connections is how many a listener has at a time: of its descriptors a
	// program needs the others for its work.
	Connections = 128
	perPeer     = 8

	headerTimeout = 5 * time.Second  // for a request's header
	readTimeout   = 10 * time.Second // for the whole request
	writeTimeout  = 20 * time.Second // from there to the end of the answer; probes take 5 s at most, start-up probes 19 s
	idleTimeout   = time.Minute      // between requests
	maxHeader     = 16 << 10         // bytes
	// work is how long a connection is safe from others that want its place once its
	// request is complete.
	work = time.Second
	// maxStreams is of one HTTP/2 connection, each of which costs a goroutine.
	maxStreams = 64
)

// Listen listens on host:port. Empty, which turns the listener off, gives
// nil. The error names the flag.
func Listen(flag, address string) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--%s %s: %w", flag, address, err)
	}
	return l, nil
}

// Options are what a server has besides its handler. The zero value is one whose requests
// have no bodies.
type Options struct {
	// TLS is served where it is set, with HTTP/2.
	TLS *tls.Config
	// MaxBody is the size of a request's body in bytes. 0: requests with a body are refused.
	MaxBody int
	// Allowed and Preferred are those of listener.Limits.
	Allowed, Preferred func(netip.Addr) bool
}

// Serve serves until ctx ends. A nil listener is one that is turned off. One at
// a loopback address answers this machine's programs only, whatever packets
// reach it: a packet to 127.0.0.1 can come from a pod where the kernel's route_localnet
// is on (ip-sysctl).
func Serve(ctx context.Context, l net.Listener, h http.Handler, o Options) error {
	if l == nil {
		return nil
	}
	if OnLoopback(l) {
		o.Allowed = netip.Addr.IsLoopback
	}
	limited := listener.Limit(l, listener.Limits{Total: Connections, PerPeer: perPeer, Work: work, Allowed: o.Allowed, Preferred: o.Preferred})
	server := &http.Server{
		Handler: &bodies{next: h, most: o.MaxBody}, MaxHeaderBytes: maxHeader,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		// A request that is begun does not count as work: see bodies.
		ConnState: func(c net.Conn, s http.ConnState) {
			if s != http.StateActive {
				below(c).Working(false)
			}
		},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, below(c))
		},
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if o.TLS == nil {
		return ended(server.Serve(limited))
	}
	server.TLSConfig = o.TLS
	server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug) // handshakes of whoever connects
	return ended(server.ServeTLS(limited, "", ""))
}

// connKey is by which a request's context has the listener's connection.
type connKey struct{}

// below is the listener's connection below one of a server.
func below(c net.Conn) *listener.Conn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return c.(*listener.Conn)
}

// ended is nil for a server that was closed.
func ended(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// HandleProbe answers a probe: with 200, or while check returns an error with
// 503 and that error.
func HandleProbe(mux *http.ServeMux, path string, check func() error) {
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
}

// HandleProfiles serves /debug/pprof.
func HandleProfiles(mux *http.ServeMux) {
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
}

// OnLoopback tells whether a listener is at a loopback address, where Serve answers
// this machine's programs only. A nil listener is not.
func OnLoopback(l net.Listener) bool {
	if l == nil {
		return false
	}
	tcp, ok := l.Addr().(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// LocalOnly refuses requests for another host's name: a web page that a person on this
// machine looks at must not read what is for this machine through a name that its
// owner resolves to 127.0.0.1.
func LocalOnly(next http.Handler) http.Handler {
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

// WriteJSON answers with a value, for programs and for people.
func WriteJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // the reader went away
}

// StartupPatience is how long a start-up probe waits: time for an ENI to be
// attached. With a last check of 5 s it is no longer than the probes of the chart
// wait, 20 s, and than writeTimeout.
const StartupPatience = 14 * time.Second

const (
	startupEvery = 100 * time.Millisecond // check is asked so often
	// startupWaiting is how many requests wait at a time: one has a kubelet, and where
	// others reach the address too, theirs must not take the listener's connections.
	startupWaiting = 4
)

// HandleStartup answers a start-up probe with 200: as soon as check returns nil,
// and otherwise after StartupPatience, since a program that waits for what is
// outside it has started. Where startupWaiting others wait already, it answers so at once.
// The kubelet makes an event of each probe that fails; one that waits spares it
// those of a start that is as it should be, and tells it at once when the program is ready.
func HandleStartup(mux *http.ServeMux, path string, check func() error) {
	waiting := make(chan struct{}, startupWaiting)
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		patience, cancel := context.WithTimeout(r.Context(), StartupPatience)
		defer cancel()
		select {
		case waiting <- struct{}{}:
			defer func() { <-waiting }()
		default:
			cancel()
		}
		again := time.NewTicker(startupEvery)
		defer again.Stop()
		for {
			err := check()
			if err == nil {
				fmt.Fprintln(w, "ok")
				return
			}
			select {
			case <-again.C:
			case <-patience.Done():
			}
			if patience.Err() != nil {
				fmt.Fprintln(w, "started, and not ready yet:", err)
				return
			}
		}
	})
}
