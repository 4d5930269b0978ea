package operator

import (
	"log/slog"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/berthnet/berth/internal/config"
)

// The timeout of requests for the Lease is not that of all requests of the operator: it would end watches after seconds, and lists
// of many objects would never succeed.
func TestTimeoutOfTheLeaseIsItsOwn(t *testing.T) {
	c := &rest.Config{Host: "https://192.0.2.1"}
	if _, err := newLease(t.Context(), c, config.Operator{LeaderSettings: config.LeaderSettings{RenewDeadline: 10 * time.Second}}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if c.Timeout != 0 || c.UserAgent != "" {
		t.Errorf("the operator's requests have timeout %v and user agent %q, want those of its own settings", c.Timeout, c.UserAgent)
	}
}
