package nodenetwork

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

// Metrics count the reports to the node's NodeNetwork. They observe the supplier.
type Metrics struct {
	reports  *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewMetrics makes and registers them.
func NewMetrics(to prometheus.Registerer) Metrics {
	m := Metrics{famReports.Counter(), famReportTime.Histogram(metric.CallBuckets)}
	to.MustRegister(m.reports, m.duration)
	return m
}

// Reported counts one report.
func (m Metrics) Reported(result string, took time.Duration) {
	m.reports.WithLabelValues(result).Inc()
	m.duration.WithLabelValues().Observe(took.Seconds())
}
