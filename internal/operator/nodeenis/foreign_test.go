package nodeenis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// Whoever writes where the operator publishes is told of on the Node, by one
// event however often it happens. The operator's own writes are not.
func TestForeignWritesAreTold(t *testing.T) {
	fl, n := setUp(t, Options{})
	create(t, "node-2", nil)
	other := fl.node(t, "node-2")
	harness.Eventually(t, controllers.Limit, "the Node is seen", func() error { // an event before that is of another Node
		return fl.client.Get(t.Context(), client.ObjectKey{Name: "node-1"}, &corev1.Node{})
	})
	right := inventory([]string{"10.0.0.1", "10.0.0.2"})
	for i := range 3 {
		publish(t, n, right)
		publish(t, other, inventory([]string{fmt.Sprintf("10.0.1.%d", i)}))
		patch(t, fmt.Sprintf(`{"spec":{"ipam":{"available":{"10.0.0.%d":{"resource":"eni-1"}}}}}`, 10+i))
		fl.awaitCalls(t, "Invalidate", i+1)
	}
	harness.Eventually(t, controllers.Limit, "one event, counted", func() error {
		list := &eventsv1.EventList{}
		harness.OK(t, harness.KubeClient(t).List(t.Context(), list))
		for _, e := range list.Items {
			if e.Reason == "NetworkOverwritten" && (e.Series == nil || !strings.Contains(e.Note, "spec.ipam")) {
				return fmt.Errorf("%q, series %v", e.Note, e.Series)
			}
		}
		return sameList("events", told(t, "node-1"), []string{"Warning NetworkOverwritten"})
	})
	harness.OK(t, sameList("events", told(t, "node-2"), nil))
}

// late holds a write of spec.ipam back, whose sender hears that the connection
// broke, and delivers it right before the next one.
type late struct {
	mu   sync.Mutex // guards both
	arm  bool
	held *http.Request
}

func (l *late) do(r *http.Request, next http.RoundTripper) (*http.Response, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Method != http.MethodPatch || !strings.HasSuffix(r.URL.Path, "/nodenetworks/node-1") {
		return next.RoundTrip(r)
	}
	if l.arm {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		l.arm, l.held = false, r.Clone(context.Background())
		l.held.Body = io.NopCloser(bytes.NewReader(body))
		return nil, errors.New("connection lost")
	}
	if l.held != nil {
		resp, err := next.RoundTrip(l.held)
		if err != nil {
			return nil, err
		}
		resp.Body.Close()
		l.held = nil
	}
	return next.RoundTrip(r)
}

// A write whose answer was lost, and that the API server takes after all, is
// nobody else's.
func TestLateWriteIsTheOperatorsOwn(t *testing.T) {
	l := &late{}
	fl, n := setUp(t, Options{}, harness.Through(l.do))
	publish(t, n, inventory([]string{"10.0.0.1"}))
	l.mu.Lock()
	l.arm = true
	l.mu.Unlock()
	// This fails, unless the write that broke was the controller's, by which it
	// had begun to publish the same.
	_ = n.Publish(t.Context(), inventory([]string{"10.0.0.1", "10.0.0.2"}))
	harness.Eventually(t, controllers.Limit, "published", func() error {
		return n.Publish(t.Context(), inventory([]string{"10.0.0.1", "10.0.0.3"}))
	})
	harness.OK(t, available("10.0.0.1", "10.0.0.3")(get(t, "node-1")))
	l.mu.Lock()
	if l.arm || l.held != nil {
		t.Errorf("no write broke, or it was not delivered: %t, %t", l.arm, l.held != nil)
	}
	l.mu.Unlock()
	if d := fl.called("Invalidate"); d != 0 {
		t.Errorf("%d invalidations about the own write", d)
	}
	harness.OK(t, sameList("events", told(t, "node-1"), nil))
}

// An operator that is behind does not bring back what another took away.
func TestStaleWriter(t *testing.T) {
	older, stale := setUp(t, Options{Settle: time.Hour}) // the test is over by then
	all := inventory([]string{"10.0.0.1", "10.0.0.2"})
	publish(t, stale, all)
	older.end() // it learns nothing any more, and its writes still go out

	_, fresh := play(t, Options{Settle: time.Second})
	publish(t, fresh, inventory([]string{"10.0.0.1"}))
	for range 3 {
		harness.Eventually(t, controllers.Limit, "published or not", func() error {
			err := stale.Publish(t.Context(), inventory([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}))
			if slow(err) {
				return err
			}
			if !errors.Is(err, errForeign) && err != nil {
				t.Fatal(err)
			}
			return nil
		})
		harness.OK(t, available("10.0.0.1")(dropped(get(t, "node-1"), "10.0.0.3")))
	}
	if d := older.called("Invalidate"); d != 1 {
		t.Errorf("the old fleet was told to look %d times, want once", d)
	}
}

// dropped is an object without one available address.
func dropped(o *v1alpha1.NodeNetwork, address string) *v1alpha1.NodeNetwork {
	delete(o.Spec.IPAM.Available, address)
	return o
}
