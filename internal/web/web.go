// Package web is what the HTTP servers of Berth's programs have in common.
package web

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/berthnet/berth/internal/listener"
)

// What one listener takes. A request is one of a few paths and has no body, its
// answer some kilobytes; a scraper has one connection, and keeps it.
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

// Serve serves until ctx ends. A nil listener is one that is turned off. One at
// a loopback address answers this machine's programs only, whatever packets
// reach it.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	if l == nil {
		return nil
	}
	server := newServer(h, func(c net.Conn) *listener.Conn { return c.(*listener.Conn) })
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	return ended(server.Serve(limited(l)))
}

// ServeTLS is Serve with TLS, as a configuration has it, and HTTP/2.
func ServeTLS(ctx context.Context, l net.Listener, h http.Handler, with *tls.Config) error {
	if l == nil {
		return nil
	}
	server := newServer(h, func(c net.Conn) *listener.Conn { return c.(*tls.Conn).NetConn().(*listener.Conn) })
	server.TLSConfig = with
	server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug) // handshakes of whoever connects
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	return ended(server.ServeTLS(limited(l), "", ""))
}

func newServer(h http.Handler, below func(net.Conn) *listener.Conn) *http.Server {
	return &http.Server{
		Handler: h, MaxHeaderBytes: maxHeader,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		ConnState: func(c net.Conn, s http.ConnState) { below(c).Working(s == http.StateActive) },
	}
}

func limited(l net.Listener) net.Listener {
	return listener.Limit(l, listener.Limits{Total: Connections, PerPeer: perPeer, LocalOnly: OnLoopback(l)})
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
