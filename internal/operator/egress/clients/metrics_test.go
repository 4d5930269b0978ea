package clients

import (
	"fmt"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

// The metrics say how many clients there are in which state, and are those that are
// documented.
func TestMetrics(t *testing.T) {
	w := start(t, Options{})
	w.egress("nat", v1alpha1.EgressSpec{AllowedNamespaces: open()})
	w.egress("closed", v1alpha1.EgressSpec{Destinations: []string{"203.0.113.0/24"}})
	web, double := w.pod("web", "nat,closed"), w.pod("double", "nat")
	w.setUp(web, "10.1.0.5")
	w.awaitServed("nat", "web 10.1.0.5")
	w.setUp(double, "10.1.0.5")
	w.await(double, "conflicts", ready(reasonConflict))
	w.awaitCounts("nat", 1, 0, reasonWaits)
	w.awaitCounts("closed", 0, 1, reasonServed)
	if n := w.c.Known(); n != 2 {
		t.Errorf("%d pods are known", n)
	}
	gauge := func(egress, state string) string {
		return fmt.Sprintf(`berth_operator_egress_clients{egress=%q,namespace="internet",state=%q}`, egress, state)
	}
	harness.CheckMetrics(t, append(w.c.egresses.writer.metrics.Collectors(), w.c.Gauges()), Families, map[string]string{
		gauge("nat", "served"):     "1",
		gauge("nat", "stuck"):      "1",
		gauge("nat", "refused"):    "0",
		gauge("closed", "refused"): "1",
		`berth_operator_egress_client_slices{egress="nat",namespace="internet"}`:          "1",
		`berth_operator_egress_client_slices{egress="closed",namespace="internet"}`:       "0",
		`berth_operator_egress_client_writes_total{kind="slice",result="success"}`:        "1",
		`berth_operator_egress_client_writes_total{kind="slice",result="error"}`:          "0",
		`berth_operator_egress_served_seconds_count`:                                      "1",
		`berth_operator_egress_clients{egress="none",namespace="internet",state="stuck"}`: "",
	})
}
