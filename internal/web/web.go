// Package web is what the HTTP servers of Berth's programs have in common.
package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
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

// Serve serves until ctx ends. A nil listener is one that is turned off.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	if l == nil {
		return nil
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
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
