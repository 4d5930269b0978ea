package nodenetworksupplier

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/source/enisource"
	"github.com/berthnet/berth/test/harness"
)

// releasing sets the operator's list of candidates.
func releasing(list ...string) func(*v1alpha1.NodeNetwork) {
	return func(o *v1alpha1.NodeNetwork) { o.Spec.IPAM.Releasing = list }
}

// unassigned removes addresses that EC2 unassigned.
func unassigned(list ...string) func(*v1alpha1.NodeNetwork) {
	return func(o *v1alpha1.NodeNetwork) {
		for _, a := range list {
			delete(o.Spec.IPAM.Available, a)
			o.Spec.IPAM.Releasing = slices.DeleteFunc(o.Spec.IPAM.Releasing, func(r string) bool { return r == a })
		}
	}
}

// released waits until the daemon has confirmed exactly these addresses.
func (m *machine) released(want ...string) {
	m.T.Helper()
	m.appears("released: "+cmp.Diff(nil, want), func(o *v1alpha1.NodeNetwork) bool { return slices.Equal(o.Status.IPAM.Released, want) })
}

func TestHandshake(t *testing.T) {
	m := startMachine(t)
	m.operator(give(10, 13))
	m.add(1) // gets 10.0.0.10

	m.operator(releasing("10.0.0.10", "10.0.0.12", "10.0.0.13"))
	m.released("10.0.0.12", "10.0.0.13") // without the pod's address
	inv, _, err := enisource.Files{Dir: m.Dir}.Load()
	if err != nil || len(inv.Releasing) != 2 {
		t.Errorf("stored releasing = %+v, error %v; want 2 stored before the confirmation", inv.Releasing, err)
	}
	m.gets(2, 11)    // the only remaining one
	m.getsNothing(3) // the operator may take the others at any time

	m.operator(releasing("10.0.0.10", "10.0.0.13")) // 12 is kept after all
	m.gets(3, 12)
	m.released("10.0.0.13")

	m.operator(unassigned("10.0.0.13"))
	m.released()
	m.Release(key(1))
	m.released("10.0.0.10") // once it has cooled
	m.getsNothing(4)
}

func TestPrefixesAreReleasedAsAWhole(t *testing.T) {
	m := startMachine(t)
	m.operator(func(o *v1alpha1.NodeNetwork) {
		give(1, 0)(o)
		o.Spec.IPAM.Available["10.0.0.32/28"] = v1alpha1.AvailableAddress{Resource: eth1}
		o.Spec.IPAM.Available["10.0.0.64/28"] = v1alpha1.AvailableAddress{Resource: eth1}
	})
	m.gets(1, 32)
	m.operator(releasing("10.0.0.32/28", "10.0.0.64/28"))
	m.released("10.0.0.64/28")
	m.Release(key(1))
	m.released("10.0.0.32/28", "10.0.0.64/28")
}

// gate delays the daemon's reports.
type gate struct {
	mu   sync.Mutex    // guards both
	shut chan struct{} // nil: open
	held chan struct{} // receives an element for each delayed request
}

func (g *gate) do(r *http.Request, next http.RoundTripper) (*http.Response, error) {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut != nil && r.Method == http.MethodPatch {
		select {
		case g.held <- struct{}{}:
		default:
		}
		<-shut
	}
	return next.RoundTrip(r)
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut, g.held = make(chan struct{}), make(chan struct{}, 1)
}

// await returns once a report is delayed.
func (g *gate) await(t *testing.T) {
	t.Helper()
	select {
	case <-g.held:
	case <-time.After(longest):
		g.open()
		t.Fatal("timed out waiting for a report")
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.shut)
	g.shut = nil
}

// The operator removes an address from the list and adds it again before the daemon's answer to the first
// change has arrived. The address stays withdrawn throughout, because the operator may rely on the
// confirmation that it still sees.
func TestRelistedBeforeTheAnswer(t *testing.T) {
	g := &gate{}
	m := startMachine(t, harness.Through(g.do))
	m.operator(give(10, 11))
	m.operator(releasing("10.0.0.11"))
	m.released("10.0.0.11")
	m.add(1)
	m.reports(1)

	g.close()
	m.operator(releasing())
	g.await(t) // the answer is in flight
	m.operator(releasing("10.0.0.11"))
	m.getsNothing(2) // the operator does not know yet that it is not released
	g.open()
	m.getsNothing(2) // the operator may take it
	m.released("10.0.0.11")

	m.operator(releasing())
	m.gets(2, 11)
	m.released()
}

// An address that vanishes while a pod holds it stays with the pod, and is reported once.
func TestAddressOfRunningPodVanishes(t *testing.T) {
	m := startMachine(t)
	m.operator(give(10, 11))
	m.add(1)
	m.operator(unassigned("10.0.0.10"))
	m.add(2)
	m.reports(2)
	m.operator(give(10, 10)) // the address may be assigned elsewhere meanwhile
	m.operator(unassigned("10.0.0.10"))
	m.getsNothing(3)
	m.gets(1, 10) // keeps its address
	m.Release(key(1))
	m.reports(1)
	if n := m.Log.Count("a running pod is cut off"); n < 1 || n > 2 {
		t.Errorf("logged %d times, want 1 or 2", n)
	}
}

// refusal fails the daemon's reports while it is on.
type refusal struct {
	mu   sync.Mutex // guards both
	on   bool
	last []byte // the last rejected report
}

func (r *refusal) do(q *http.Request, next http.RoundTripper) (*http.Response, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.on || q.Method != http.MethodPatch {
		return next.RoundTrip(q)
	}
	var err error
	if r.last, err = io.ReadAll(q.Body); err != nil {
		return nil, err
	}
	return respond(q, http.StatusServiceUnavailable, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":503}`), nil
}

func (r *refusal) turn(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.on, r.last = on, nil
}

// refused reports whether a report on a state of the object was rejected.
func (r *refusal) refused(o *v1alpha1.NodeNetwork) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Contains(r.last, fmt.Appendf(nil, `"resourceVersion":%q`, o.ResourceVersion))
}

// After a restart, a confirmed address is free again only once a report without it was accepted. That
// holds if the file is lost, as after a reboot, if the report was made on an older state of the object,
// and if both happen one after the other, as when another client empties the status. A rejected report does not
// count.
func TestReleasedAddressesAcrossARestart(t *testing.T) {
	fileLost := func(m *machine) {
		if err := os.RemoveAll(m.Dir); err != nil {
			m.T.Fatal(err)
		}
	}
	reportLost := func(m *machine) {
		m.operator(func(o *v1alpha1.NodeNetwork) { o.Status.IPAM.Released = nil })
	}
	nothing := func(*machine) {}
	for name, tt := range map[string]struct{ before, after func(*machine) }{
		"file lost":              {fileLost, nothing},
		"report not seen":        {reportLost, nothing},
		"report lost":            {nothing, reportLost},
		"file lost, then report": {fileLost, reportLost},
	} {
		t.Run(name, func(t *testing.T) {
			r := &refusal{}
			m := startMachine(t, harness.Through(r.do))
			m.operator(give(10, 10))
			m.operator(releasing("10.0.0.10"))
			m.released("10.0.0.10")
			m.stop()
			m.operator(releasing())
			tt.before(m)
			r.turn(true)
			m.start()
			m.until("a report is rejected", func() bool { return r.refused(m.object()) })
			tt.after(m)
			m.until("a report on the current object is rejected", func() bool { return r.refused(m.object()) })
			m.getsNothing(1) // the operator does not know yet that it is not released
			r.turn(false)
			m.add(1)
			m.released()
		})
	}
}

// Reports and the handshake succeed although another client writes to the object continuously, and each
// report applies to one state of the object only.
func TestConflictStorm(t *testing.T) {
	m := newMachine(t)
	m.begin()
	m.operator(give(10, 49))
	stop := make(chan struct{})
	var storm sync.WaitGroup
	defer storm.Wait()
	defer close(stop)
	storm.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			o := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
			body := fmt.Appendf(nil, `{"metadata":{"annotations":{"storm":"%d"}}}`, i)
			_ = m.API.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, body))
		}
	})
	for i := 1; i <= 10; i++ {
		m.add(i)
		m.appears("the pod's address is reported", func(o *v1alpha1.NodeNetwork) bool { return int(o.Status.IPAM.UsedCount) == i })
	}
	m.operator(func(o *v1alpha1.NodeNetwork) { o.Spec.IPAM.Releasing = []string{"10.0.0.49"} })
	m.appears("the address is released", func(o *v1alpha1.NodeNetwork) bool { return len(o.Status.IPAM.Released) == 1 })
}

// lagging is the connection to several API servers, of which the watched one falls behind:
// it sends nothing new, and starts a watch with the state that it knows if that is recent enough.
type lagging struct {
	mu      sync.Mutex            // guards the fields below
	old     *v1alpha1.NodeNetwork // the latest state that it knows; nil: up to date
	expired bool                  // the next resumed watch fails as expired
	lists   int                   // number of watches that started with a list
	under   *stream               // the current watch
}

// stream is the body of a watch, which can be halted and ended.
type stream struct {
	io.ReadCloser
	halted chan struct{} // closed: it delivers no more events
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
	if l.old == nil || q.Get("resourceVersion") == "" { // without a resource version it reads from etcd
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

// fall makes the server know nothing newer than o.
func (l *lagging) fall(o *v1alpha1.NodeNetwork) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.old = o.DeepCopy()
	l.old.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("NodeNetwork"))
	close(l.under.halted)
}

// drop ends the watch in a way that it cannot resume.
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

// A daemon that got its object only from replies, and then watches again, may reach an API server that
// lags behind. No pod gets an address that was released since the state that this server knows.
func TestWatchResumesAtLaggingServer(t *testing.T) {
	l := &lagging{}
	m := startMachine(t, harness.Through(l.do))
	m.operator(give(10, 11))
	m.add(1)
	l.fall(m.reports(1))
	m.operator(releasing("10.0.0.11"))
	m.Release(key(1)) // the report conflicts, so the daemon reads the new state
	m.released("10.0.0.11")
	m.operator(unassigned("10.0.0.11"))
	m.add(1)
	m.released()

	lists := l.listed()
	l.drop()
	m.until("another list", func() bool { return l.listed() > lists })
	if got, err := m.try(2, time.Second); err == nil {
		t.Errorf("pod 2 got %v, which was released", got.IPv4)
	}
	m.operator(give(12, 12))
	m.gets(2, 12)
}
