// Package web is the common part of the HTTP servers of Berth's programs.
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

// Limits of a listener. A request has one of a few paths, and no body unless Options.MaxBody is set;
// its reply has a few kilobytes. A scraper keeps one connection open.
const (
	// Connections bounds the connections of a listener: the program needs descriptors for other purposes.
	Connections = 128
	perPeer     = 8

	headerTimeout = 5 * time.Second  // for a request's header
	readTimeout   = 10 * time.Second // for the whole request
	writeTimeout  = 20 * time.Second // from the request to the end of the reply; probes take up to 5 s, startup probes 19 s
	idleTimeout   = time.Minute      // between requests
	maxHeader     = 16 << 10         // bytes
	// work is how long a connection is protected from replacement once its request is complete.
	work = time.Second
	// maxStreams bounds the streams of an HTTP/2 connection, each of which costs a goroutine.
	maxStreams = 64
)

// Listen listens on host:port. It returns nil for "", which disables the listener. The error names the
// flag.
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

// Options configure a server. With the zero value, requests have no bodies.
type Options struct {
	// TLS enables TLS, with HTTP/2.
	TLS *tls.Config
	// MaxBody is the maximum size of a request body in bytes. 0: requests with a body are rejected.
	MaxBody int
	// Allowed and Preferred are passed to listener.Limits.
	Allowed, Preferred func(netip.Addr) bool
}

// Serve serves until ctx ends. A nil listener is disabled. On a loopback address it serves only
// programs of this machine: where route_localnet is on (ip-sysctl), packets to 127.0.0.1 can come
// from pods.
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
		// An incomplete request does not count as busy: see bodies.
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
	server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug) // failed handshakes, which any peer can cause
	return ended(server.ServeTLS(limited, "", ""))
}

// connKey is the key of the listener's connection in a request's context.
type connKey struct{}

// below returns the listener's connection that a server's connection wraps.
func below(c net.Conn) *listener.Conn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return c.(*listener.Conn)
}

// ended returns nil for the error of a server that was closed.
func ended(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// HandleProbe answers a probe with 200, or with 503 and the error that check returns.
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

// OnLoopback reports whether a listener has a loopback address, where Serve serves only programs of
// this machine. It is false for nil.
func OnLoopback(l net.Listener) bool {
	if l == nil {
		return false
	}
	tcp, ok := l.Addr().(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// LocalOnly rejects requests for other host names: a web page in a browser on this machine must not
// read local data through a name that resolves to 127.0.0.1.
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

// WriteJSON replies with a value, indented.
func WriteJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // the client closed the connection
}

// StartupPatience is how long a startup probe waits, time enough to attach an ENI. Together with a
// last check of 5 s it must not exceed the 20 s of the chart's probes, nor writeTimeout.
const StartupPatience = 14 * time.Second

const (
	startupEvery = 100 * time.Millisecond // interval of check
	// startupWaiting bounds the number of waiting requests: a kubelet makes one, and others must not
	// occupy the listener's connections.
	startupWaiting = 4
)

// HandleStartup answers a startup probe with 200 as soon as check returns nil, and otherwise after
// StartupPatience, since a program that waits for something external has started. Beyond startupWaiting
// it answers immediately. The kubelet writes an Event for each failed probe; a waiting probe avoids
// these, and reports readiness immediately.
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
