package operator

import (
	"io"
	"strings"

	"github.com/berthnet/berth/internal/metric"
)

// WriteMetricsReference writes the metrics of all features as the page docs/reference/operator-metrics.md.
func WriteMetricsReference(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`# Metrics of berth-operator

<!-- Generated from internal/operator by "make generate". -->

Served at /metrics on --metrics-address in the Prometheus text format, besides
the Go runtime's and the process's own, and those of controller-runtime
(controller_runtime_*, workqueue_*, rest_client_*, leader_election_*). Durations
are in seconds. Only the operator that leads knows of nodes and subnets: one
that stands by has 0 or nothing there.

`)
	var all []metric.Family
	for _, f := range newFeatures() {
		all = append(all, f.families...)
	}
	metric.WriteTable(&b, all)
	_, err := io.WriteString(w, b.String())
	return err
}
