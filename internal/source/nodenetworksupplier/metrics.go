package nodenetworksupplier

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/source"
)

var (
	famReports    = metric.New("berth_nodenetwork_reports_total", "counter", "Reports on this node's addresses to its NodeNetwork object, in operator mode, by result: success, conflict (the object had changed; another report follows) or error.", "result")
	famReportTime = metric.New("berth_nodenetwork_report_duration_seconds", "histogram", "Time that these reports took.")
)

// Reference is what operator mode adds to the page of metrics.
var Reference = source.Reference{Families: []metric.Family{famReports, famReportTime}}

// CountReports registers metrics of the reports to the node's NodeNetwork. What it
// returns counts one: it is a Config's Reported.
func CountReports(to prometheus.Registerer) func(result string, took time.Duration) {
	reports, duration := famReports.Counter(), famReportTime.Histogram(metric.CallBuckets)
	to.MustRegister(reports, duration)
	return func(result string, took time.Duration) {
		reports.WithLabelValues(result).Inc()
		duration.WithLabelValues().Observe(took.Seconds())
	}
}
