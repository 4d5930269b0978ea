package vpc

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/lanes"
)

var (
	famCalls    = metric.New("berth_operator_port_calls_total", "counter", "Calls to providers of VPC ports by operation and by what came of them: ok, or the class of the failure.", "operation", "class")
	famDuration = metric.New("berth_operator_port_call_seconds", "histogram", "How long a call to a provider of VPC ports took.", "operation")
	famWait     = metric.New("berth_operator_port_call_wait_seconds", "histogram", "How long a call waited until it was sent, as others were under way or the provider had asked for fewer.", "operation")
	famUnderWay = metric.New("berth_operator_port_calls_in_flight", "gauge", "Calls to providers that are under way.")
	famWaiting  = metric.New("berth_operator_port_calls_waiting", "gauge", "Calls that wait until they may be sent.")
	famAllowed  = metric.New("berth_operator_port_calls_allowed", "gauge", "Calls that may be under way at once, to all endpoints together: --vpc-calls for each, fewer after it refused some as too many.")
	famReady    = metric.New("berth_operator_vpc_ready", "gauge", "1 for a VPC whose condition Ready is True, else 0.", "vpc")
)

// Families are the metrics, for the page that documents them.
var Families = []metric.Family{famCalls, famDuration, famWait, famUnderWay, famWaiting, famAllowed, famReady}

// Metrics count the calls to providers. They may be used by many goroutines at once.
type Metrics struct {
	calls          *prometheus.CounterVec
	duration, wait *prometheus.HistogramVec
}

// NewMetrics makes metrics that are not registered.
func NewMetrics() *Metrics {
	m := &Metrics{famCalls.Counter(), famDuration.Histogram(metric.CallBuckets), famWait.Histogram(metric.CallBuckets)}
	for _, op := range lanes.Ops() { // so that they are there before the first
		m.calls.WithLabelValues(op, classOK)
		m.duration.WithLabelValues(op)
		m.wait.WithLabelValues(op)
	}
	return m
}

// classOK is that of calls that did not fail.
const classOK = "ok"

// Collectors are to be registered.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.calls, m.duration, m.wait}
}

// Called implements lanes.Observer.
func (m *Metrics) Called(op string, err error, waited, took time.Duration) {
	class := classOK
	if err != nil {
		class = vpcport.ClassOf(err).String()
	}
	m.calls.WithLabelValues(op, class).Inc()
	m.duration.WithLabelValues(op).Observe(took.Seconds())
	m.wait.WithLabelValues(op).Observe(waited.Seconds())
}

// Gauges are read when Prometheus asks.
func (c *Controller) Gauges() prometheus.Collector { return gauges{c} }

type gauges struct{ c *Controller }

// Describe implements prometheus.Collector.
func (gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range []metric.Family{famUnderWay, famWaiting, famAllowed, famReady} {
		ch <- f.Desc()
	}
}

// Collect implements prometheus.Collector.
func (g gauges) Collect(ch chan<- prometheus.Metric) {
	u := g.c.opener.usage()
	ch <- famUnderWay.Value(float64(u.UnderWay))
	ch <- famWaiting.Value(float64(u.Waiting))
	ch <- famAllowed.Value(float64(u.Allowed))
	for name, yes := range g.c.reported.all() {
		ready := 0.
		if yes {
			ready = 1
		}
		ch <- famReady.Value(ready, name)
	}
}
