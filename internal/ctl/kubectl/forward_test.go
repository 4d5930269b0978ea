package kubectl

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/internal/node/introspect"
)

// kubelets is an API server with kubelets behind it, as far as port forwarding
// goes: it connects to what listens, which is a handler for each pod.
type kubelets struct {
	*httptest.Server
	mu     sync.Mutex // guards asked
	asked  []string   // path and port of each request
	behind map[string]http.Handler
	refuse map[string]string // what a kubelet says in place of connecting
	held   chan struct{}     // closed when what never answers may end
}

func newKubelets(t *testing.T) *kubelets {
	k := &kubelets{behind: map[string]http.Handler{}, refuse: map[string]string{}, held: make(chan struct{})}
	k.Server = httptest.NewServer(http.HandlerFunc(k.serve))
	t.Cleanup(func() { close(k.held); k.CloseClientConnections(); k.Close() })
	return k
}

// config is the configuration of its clients.
func (k *kubelets) config() *rest.Config { return &rest.Config{Host: k.URL, BearerToken: "token"} }

func (k *kubelets) serve(w http.ResponseWriter, r *http.Request) {
	pod := strings.TrimSuffix(r.URL.Path[strings.LastIndex(strings.TrimSuffix(r.URL.Path, "/portforward"), "/")+1:], "/portforward")
	switch {
	case r.Header.Get("Authorization") != "Bearer token":
		k.status(w, http.StatusUnauthorized, "Unauthorized")
		return
	case k.refuse[pod] == "forbidden":
		k.status(w, http.StatusForbidden, `pods "`+pod+`" is forbidden: User "eve" cannot create resource "pods/portforward"`)
		return
	case k.refuse[pod] == "hang":
		<-k.held
		return
	case r.Method == http.MethodGet: // by WebSocket, which this one does not know
		k.status(w, http.StatusBadRequest, "unable to upgrade")
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
		return
	}
	streams := make(chan httpstream.Stream, 2)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	var data, failed httpstream.Stream
	for range 2 {
		if s := <-streams; s.Headers().Get(corev1.StreamType) == corev1.StreamTypeData {
			data = s
		} else {
			failed = s
		}
	}
	k.mu.Lock()
	k.asked = append(k.asked, r.URL.Path+":"+data.Headers().Get(corev1.PortHeader))
	k.mu.Unlock()
	if why := k.refuse[pod]; why != "" {
		_, _ = failed.Write([]byte(why))
		_ = failed.Close()
		_ = data.Reset()
		<-conn.CloseChan()
		return
	}
	_ = failed.Close()
	k.answer(data, k.behind[pod])
	_ = data.Close()
	<-conn.CloseChan()
}

func (k *kubelets) status(w http.ResponseWriter, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Message: message,
		Reason: map[int]metav1.StatusReason{401: metav1.StatusReasonUnauthorized, 403: metav1.StatusReasonForbidden, 400: metav1.StatusReasonBadRequest}[code],
	})
}

// answer serves one request on a connection.
func (k *kubelets) answer(data io.ReadWriter, h http.Handler) {
	req, err := http.ReadRequest(bufio.NewReader(data))
	if err != nil {
		return
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	_ = w.Result().Write(frames{data})
}

// frames writes no more at a time than a frame of SPDY takes.
type frames struct{ w io.Writer }

func (f frames) Write(b []byte) (n int, err error) {
	for part := range slices.Chunk(b, 32<<10) {
		m, err := f.w.Write(part)
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

// serving is a berthd's introspection address.
func serving(doc introspect.Document) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+introspect.Path, func(w http.ResponseWriter, r *http.Request) {
		if host, _, _ := net.SplitHostPort(r.Host); host != "localhost" {
			http.Error(w, "not for "+r.Host, http.StatusForbidden)
			return
		}
		_ = json.NewEncoder(w).Encode(doc)
	})
	mux.HandleFunc("GET "+introspect.PodPath, func(w http.ResponseWriter, r *http.Request) {
		v := introspect.Pod{Namespace: r.FormValue("namespace"), Name: r.FormValue("name"), Node: doc.Node, Time: doc.Time}
		for _, a := range doc.Allocated {
			if a.Namespace == v.Namespace && a.Pod == v.Name {
				v.Attachments = append(v.Attachments, introspect.Attachment{Allocated: a, State: "ready", HostLink: "bthabcdefghijkl", MTU: 9001, Checked: true,
					Rules: []string{"IPv4 512 table 19000"}})
			}
		}
		_ = json.NewEncoder(w).Encode(v)
	})
	return mux
}

func daemonOn(name string, port uint16) daemon {
	p := berthd(name, "", true)
	d := daemonOf(&p)
	d.port = port
	return d
}

func TestForwarding(t *testing.T) {
	k := newKubelets(t)
	k.behind["berthd-node-a"], k.behind["berthd-node-x"] = serving(document("node-a")), serving(document("node-a"))
	k.behind["berthd-old"] = http.NotFoundHandler()
	k.behind["berthd-web"] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") })
	k.behind["berthd-huge"] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, maxAnswer+1)) })
	k.behind["berthd-starting"] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "berthd is starting: waiting for the metadata service", http.StatusServiceUnavailable)
	})
	k.refuse["berthd-gone"] = "error forwarding port 6666: connection refused"
	k.refuse["berthd-forbidden"] = "forbidden"
	k.refuse["berthd-hangs"] = "hang"
	dial, err := connect.Forwarder(k.config())
	if err != nil {
		t.Fatal(err)
	}
	p := nodeClient{dial: dial, timeout: time.Minute}
	doc, err := p.document(t.Context(), daemonOn("node-a", 7777))
	if err != nil || doc.Totals.Allocated != 3 {
		t.Fatalf("%+v, %v", doc.Totals, err)
	}
	view, err := p.pod(t.Context(), daemonOn("node-a", 7777), "shop", "web-0")
	if err != nil || len(view.Attachments) != 1 {
		t.Errorf("%+v, %v", view, err)
	}
	k.mu.Lock()
	asked := strings.Join(k.asked, " ")
	k.mu.Unlock()
	if want := "/api/v1/namespaces/kube-system/pods/berthd-node-a/portforward:7777"; asked != want+" "+want {
		t.Errorf("asked %s", asked)
	}
	for name, want := range map[string]string{
		"node-x": "it answers for node node-a", "old": "older than this program", "web": "is not berthd's", "huge": "exceeds 16 MiB",
		"starting": "waiting for the metadata service", "gone": "connection refused", "forbidden": `cannot create resource "pods/portforward"`,
	} {
		if _, err := p.document(t.Context(), daemonOn(name, 6666)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", name, err, want)
		}
	}
	if _, err := p.document(t.Context(), daemonOn("node-a", 0)); err == nil || !strings.Contains(err.Error(), "disabled") {
		t.Errorf("without introspection: %v", err)
	}
	p.timeout = 100 * time.Millisecond
	if _, err := p.document(t.Context(), daemonOn("hangs", 6666)); err == nil || !strings.Contains(err.Error(), "no answer within 100ms") {
		t.Errorf("of a node that hangs: %v", err)
	}
	stranger, err := connect.Forwarder(&rest.Config{Host: k.URL, BearerToken: "other"})
	if err != nil {
		t.Fatal(err)
	}
	p.timeout = time.Minute
	p.dial = stranger
	if _, err := p.document(t.Context(), daemonOn("node-a", 6666)); err == nil || !strings.Contains(err.Error(), "Unauthorized") {
		t.Errorf("with another token: %v", err)
	}
}

// pipes returns a dialer that connects to the handlers of nodes directly.
func pipes(handlers map[string]http.Handler) connect.Dialer {
	return func(_ context.Context, pod *corev1.Pod, _ uint16) (net.Conn, error) {
		h := handlers[pod.Spec.NodeName]
		if h == nil {
			return nil, errors.New("nobody listens")
		}
		here, there := net.Pipe()
		go func() {
			defer there.Close()
			(&kubelets{}).answer(there, h)
		}()
		return here, nil
	}
}

// A limited number of nodes is asked at a time. A node that does not answer affects only its own row.
func TestManyAreAskedAFewAtATime(t *testing.T) {
	const parallel = 5
	var mu sync.Mutex
	now, most := 0, 0
	full := make(chan struct{})
	handlers := map[string]http.Handler{}
	var daemons []daemon
	for i := range 200 {
		name := fmt.Sprintf("node-%03d", i)
		daemons = append(daemons, daemonOn(name, 6666))
		if i%10 == 7 {
			continue // nobody listens
		}
		inner := serving(document(name))
		handlers[name] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			now++
			most = max(most, now)
			if most == parallel && full != nil {
				close(full)
				full = nil
			}
			wait := full
			mu.Unlock()
			if wait != nil { // until as many as may be are at work
				<-wait
			}
			inner.ServeHTTP(w, r)
			mu.Lock()
			now--
			mu.Unlock()
		})
	}
	p := nodeClient{dial: pipes(handlers), timeout: time.Minute, parallel: parallel}
	last := 0
	answers := p.documents(t.Context(), daemons, func(n int) {
		mu.Lock()
		defer mu.Unlock()
		last = max(last, n)
	})
	failed := 0
	for _, a := range answers {
		if a.err != nil {
			failed++
		}
		if a.doc.Allocated != nil {
			t.Fatal("documents of all nodes are kept whole")
		}
	}
	if most != parallel || len(answers) != 200 || failed != 20 || last != 200 {
		t.Errorf("%d at a time, %d answers, %d failed, progress %d", most, len(answers), failed, last)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, a := range p.documents(ctx, daemons[:7], func(int) {}) {
		if a.err == nil {
			t.Errorf("%s was asked after the end", name)
		}
	}
}
