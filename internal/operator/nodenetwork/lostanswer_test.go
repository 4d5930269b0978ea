package nodenetwork

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/test/harness"
)

// Trouble is told once, too, that was written, and the answer to that lost.
func TestTroubleIsToldWithoutAnAnswer(t *testing.T) {
	var armed, lost atomic.Bool // the answer to the first change of a status
	_, n := setUp(t, Options{}, harness.Through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		reply, err := next.RoundTrip(r)
		if err == nil && reply.StatusCode == http.StatusOK && r.Method == http.MethodPatch &&
			strings.HasSuffix(r.URL.Path, "/nodenetworks/node-1/status") && armed.Swap(false) {
			lost.Store(true)
			_ = reply.Body.Close()
			return nil, errors.New("the answer was lost")
		}
		return reply, err
	}))
	publish(t, n, inventory([]string{"10.0.0.1"}))
	n.Reconciled(eni.Status{Confirmed: true})
	until(t, "node-1", "well", degraded(reasonAsExpected))
	armed.Store(true)
	n.Reconciled(eni.Status{Confirmed: true, Grows: true, Class: cloud.Throttled, LastError: "assign: slow down"})
	until(t, "node-1", "degraded", degraded("Throttled"))
	awaitEvents(t, "Warning NetworkThrottled")
	if !lost.Load() {
		t.Error("no answer was lost")
	}
}
