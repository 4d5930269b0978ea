package apifake

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
)

// Do lets a request take place, or returns why it does not. Its context ends with the program that
// makes it.
type Do func(ctx context.Context, call func(context.Context) error) error

// Transport sends requests of programs in this process to Servers, by host name. Client-go uses
// http.DefaultTransport for kubeconfig files of Kubeconfig.
type Transport struct {
	mu    sync.Mutex
	hosts map[string]host // guarded by mu
}

type host struct {
	server *Server
	do     Do
}

// Kubeconfig writes a file by which one program reaches a server, as the host of a name.
// Each of its requests is made by do.
func (t *Transport) Kubeconfig(dir, name string, s *Server, do Do) (path string, err error) {
	t.mu.Lock()
	if t.hosts == nil {
		t.hosts = map[string]host{}
	}
	t.hosts[name] = host{s, do}
	t.mu.Unlock()
	path = filepath.Join(dir, name+".kubeconfig")
	return path, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: fake, cluster: {server: "http://%s"}}]
contexts: [{name: fake, context: {cluster: fake, user: fake}}]
users: [{name: fake, user: {}}]
current-context: fake
`, name), 0o600)
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer r.Body.Close()
	}
	t.mu.Lock()
	h, ok := t.hosts[r.URL.Host]
	t.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("there is no host %s", r.URL.Host)
	}
	if r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1" {
		return h.watch(r)
	}
	recorder := httptest.NewRecorder()
	err := h.do(r.Context(), func(ctx context.Context) error {
		if ctx.Err() != nil { // the program was halted meanwhile
			return context.Cause(ctx)
		}
		h.server.ServeHTTP(recorder, r)
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := recorder.Result()
	out.Request = r
	return out, nil
}

// watch answers with a body that lasts until its reader or the program ends.
func (h host) watch(r *http.Request) (*http.Response, error) {
	if err := h.do(r.Context(), func(context.Context) error { return nil }); err != nil {
		return nil, err
	}
	body, w := io.Pipe()
	go func() {
		_ = h.do(r.Context(), func(ctx context.Context) error {
			defer context.AfterFunc(ctx, func() { _ = w.Close() })()
			return h.server.watch(ctx, r, w)
		})
		_ = w.Close() // it ends as a connection does, whatever ended it
	}()
	return &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: stream{body}, ContentLength: -1, Request: r,
	}, nil
}

// stream is a body that ends with EOF also when its reader closes it. Any other error would make
// client-go's filter of metadata (watch.Filter) wait forever for a reader that is gone.
type stream struct{ *io.PipeReader }

// Read implements io.Reader.
func (s stream) Read(p []byte) (int, error) {
	n, err := s.PipeReader.Read(p)
	if err != nil {
		err = io.EOF
	}
	return n, err
}
