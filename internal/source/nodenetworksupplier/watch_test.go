package nodenetworksupplier

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

// lagging is the connection to several API servers, of which the daemon watches one that falls behind:
// it sends nothing new, and starts a watch with the state that it knows if that is recent enough.
type lagging struct {
	mu      sync.Mutex            // guards all below
	old     *v1alpha1.NodeNetwork // what it knows; nil: everything
	expired bool                  // the next watch that goes on gets that for an answer
	lists   int                   // watches that began with a list
	under   *stream               // the watch in flight
}

// stream is the body of a watch, which can be halted and ended.
type stream struct {
	io.ReadCloser
	halted chan struct{} // closed: it tells nothing more
	end    chan struct{}
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	select {
	case <-s.halted:
		<-s.end
		return 0, io.EOF
	default:
		return n, err
	}
}

func (l *lagging) do(r *http.Request, next http.RoundTripper) (*http.Response, error) {
	q := r.URL.Query()
	if q.Get("watch") == "" {
		return next.RoundTrip(r)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if q.Get("sendInitialEvents") != "true" {
		if l.expired {
			l.expired = false
			return respond(r, http.StatusGone, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`), nil
		}
		return l.keep(next.RoundTrip(r))
	}
	l.lists++
	if l.old == nil || q.Get("resourceVersion") == "" { // the latter reads from etcd
		return l.keep(next.RoundTrip(r))
	}
	object, err := json.Marshal(l.old)
	if err != nil {
		return nil, err
	}
	return respond(r, http.StatusOK, fmt.Sprintf(`{"type":"ADDED","object":%s}
{"type":"BOOKMARK","object":{"apiVersion":%q,"kind":"NodeNetwork","metadata":{"resourceVersion":%q,"annotations":{"k8s.io/initial-events-end":"true"}}}}
`, object, v1alpha1.GroupVersion.String(), l.old.ResourceVersion)), nil
}

// keep stores the current watch. l.mu is held.
func (l *lagging) keep(resp *http.Response, err error) (*http.Response, error) {
	if err == nil {
		l.under = &stream{resp.Body, make(chan struct{}), make(chan struct{})}
		resp.Body = l.under
	}
	return resp, err
}

func respond(r *http.Request, status int, body string) *http.Response {
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: io.NopCloser(bytes.NewBufferString(body)),
	}
}

// fall has the server know nothing newer than a state.
func (l *lagging) fall(o *v1alpha1.NodeNetwork) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.old = o.DeepCopy()
	l.old.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("NodeNetwork"))
	close(l.under.halted)
}

// drop ends the watch, which cannot continue where it was.
func (l *lagging) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expired = true
	close(l.under.end)
}

func (l *lagging) listed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lists
}

// A daemon that got its object from replies only, and then watches anew, may reach an API server that
// is behind. An address that was released since the state that this server knows is handed to no pod.
func TestWatchComesBackFromAnOldServer(t *testing.T) {
	l := &lagging{}
	m := startMachine(t, harness.Through(l.do))
	m.operator(give(10, 11))
	m.add(1)
	l.fall(m.reports(1))
	m.operator(releasing("10.0.0.11"))
	m.Release(key(1)) // the report meets a conflict, and so the new state
	m.released("10.0.0.11")
	m.operator(unassigned("10.0.0.11"))
	m.add(1)
	m.released()

	lists := l.listed()
	l.drop()
	m.until("another list", func() bool { return l.listed() > lists })
	if got, err := m.try(2, time.Second); err == nil {
		t.Errorf("pod 2 got %v, which was given back", got.IPv4)
	}
	m.operator(give(12, 12))
	m.gets(2, 12)
}
