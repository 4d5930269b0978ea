package clients

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/metric"
)

var (
	famClients = metric.New("berth_operator_egress_clients", "gauge", "Pods that use an Egress, or would, by state: served (its gateways serve them), stuck (they may use it, and are not served) or refused (they may not use it).", "namespace", "egress", "state")
	famSlices  = metric.New("berth_operator_egress_client_slices", "gauge", "EgressClientSlices of an Egress.", "namespace", "egress")
	famWrites  = metric.New("berth_operator_egress_client_writes_total", "counter", "Writes about clients of Egresses at the Kubernetes API, by kind of object (client, slice, or status of an Egress) and result: success or error.", "kind", "result")
	famServed  = metric.New("berth_operator_egress_served_seconds", "histogram", "Time from when the operator saw that a node had set up a client until it had written the client to a slice for the gateways.")
)

// Families are the metrics, for the page that documents them.
var Families = []metric.Family{famClients, famSlices, famWrites, famServed}

// The kinds of objects that are written.
const (
	kindClient = "client"
	kindSlice  = "slice"
	kindStatus = "status"
)

// Metrics count the work for clients. They are safe for concurrent use.
type Metrics struct {
	writes *prometheus.CounterVec
	served *prometheus.HistogramVec
}

// NewMetrics makes metrics that are not registered.
func NewMetrics() *Metrics {
	m := &Metrics{writes: famWrites.Counter(), served: famServed.Histogram(metric.CallBuckets)}
	for _, kind := range []string{kindClient, kindSlice, kindStatus} {
		for _, result := range []string{"success", "error"} {
			m.writes.WithLabelValues(kind, result)
		}
	}
	m.served.WithLabelValues()
	return m
}

// Collectors are those to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.writes, m.served}
}

// wrote counts a write.
func (m *Metrics) wrote(kind string, err error) {
	result := "success"
	if err != nil {
		result = "error"
	}
	m.writes.WithLabelValues(kind, result).Inc()
}

// Gauges are collected on each scrape: the numbers of clients and slices.
func (c *Controller) Gauges() prometheus.Collector {
	return metric.Collector(func(emit func(metric.Family, float64, ...string)) {
		for ref, n := range c.state.counts() {
			emit(famClients, float64(n.served), ref.Namespace, ref.Name, "served")
			emit(famClients, float64(n.waiting), ref.Namespace, ref.Name, "stuck")
			emit(famClients, float64(n.refused), ref.Namespace, ref.Name, "refused")
			emit(famSlices, float64(n.slices), ref.Namespace, ref.Name)
		}
	}, famClients, famSlices)
}
