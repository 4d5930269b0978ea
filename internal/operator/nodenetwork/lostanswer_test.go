package nodenetwork

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/test/harness"
)

// deaf loses the answer to the first change of a status.
type deaf struct {
	http.RoundTripper
	armed, lost atomic.Bool
}

func (d *deaf) RoundTrip(r *http.Request) (*http.Response, error) {
	reply, err := d.RoundTripper.RoundTrip(r)
	if err == nil && reply.StatusCode == http.StatusOK && r.Method == http.MethodPatch &&
		strings.HasSuffix(r.URL.Path, "/nodenetworks/node-1/status") && d.armed.Swap(false) {
		d.lost.Store(true)
		_ = reply.Body.Close()
		return nil, errors.New("the answer was lost")
	}
	return reply, err
}

// hasReason wants the condition Degraded to have a reason.
func hasReason(want string) func(*v1alpha1.NodeNetwork) error {
	return func(o *v1alpha1.NodeNetwork) error {
		if c, _ := find(o.Status.Conditions, v1alpha1.ConditionDegraded); c.Reason != want {
			return fmt.Errorf("%+v", o.Status.Conditions)
		}
		return nil
	}
}

// Trouble is told once, too, that was written, and the answer to that lost.
func TestTroubleIsToldWithoutAnAnswer(t *testing.T) {
	harness.KubeClean(t)
	fl, d := newScript(), &deaf{}
	start(t, Options{Fleet: fl}, func(rt http.RoundTripper) http.RoundTripper {
		d.RoundTripper = rt
		return d
	})
	create(t, "node-1", nil)
	n := fl.node(t, "node-1")
	publish(t, n, inventory([]string{"10.0.0.1"}))
	n.Reconciled(eni.Status{Confirmed: true})
	until(t, "node-1", "well", hasReason(reasonAsExpected))
	d.armed.Store(true)
	n.Reconciled(eni.Status{Confirmed: true, Grows: true, Class: cloud.Throttled, LastError: "assign: slow down"})
	until(t, "node-1", "degraded", hasReason("Throttled"))
	harness.Eventually(t, limit, "an event", func() error {
		return sameList("events", told(t, "node-1"), []string{"Warning NetworkThrottled"})
	})
	if !d.lost.Load() {
		t.Error("no answer was lost")
	}
}
