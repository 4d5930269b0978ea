package providers

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/vpcport"
)

var (
	famCalls     = metric.New("berth_operator_port_calls_total", "counter", "Calls to providers of VPC ports by VPC, operation (Create, Delete, Get, Network, Ports, Project or Update) and result: ok, or the class of the failure (transient, throttled, unauthorized, forbidden, invalid, network-gone, reference-gone, port-gone, subnet-full, address-taken, mac-taken, over-quota, conflict, stale, too-large, bug or unknown).", "vpc", "operation", "class")
	famDuration  = metric.New("berth_operator_port_call_seconds", "histogram", "Duration of calls to providers of VPC ports.", "vpc", "operation")
	famWait      = metric.New("berth_operator_port_call_wait_seconds", "histogram", "How long calls waited before they were sent, because others were in flight or the provider had asked for fewer.", "vpc")
	famUnderWay  = metric.New("berth_operator_port_calls_in_flight", "gauge", "Calls to providers in flight.")
	famWaiting   = metric.New("berth_operator_port_calls_waiting", "gauge", "Calls to providers that wait to be sent.")
	famAllowed   = metric.New("berth_operator_port_calls_allowed", "gauge", "Calls to providers that may be in flight, to all endpoints together: --vpc-calls for each, or 128 for EC2, fewer after an endpoint refused some as too many.")
	famCondition = metric.New("berth_operator_vpc_condition", "gauge", "1 while a condition of a VPC is True, 0 while it is False, by type: Ready, Reachable, CredentialsAccepted or NetworkFound. Absent while it is Unknown because an earlier one is False.", "vpc", "type")
)

// Families are the metrics, for the page that documents them.
var Families = []metric.Family{famCalls, famDuration, famWait, famUnderWay, famWaiting, famAllowed, famCondition}

// providerBuckets are in seconds, from a quick answer of a provider near by to the longest wait. They are few, as
// each VPC has its own.
var providerBuckets = []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// Metrics count the calls to providers. They may be used concurrently.
type Metrics struct {
	calls          *prometheus.CounterVec
	duration, wait *prometheus.HistogramVec
}

// NewMetrics returns metrics that are not registered.
func NewMetrics() *Metrics {
	return &Metrics{famCalls.Counter(), famDuration.Histogram(providerBuckets), famWait.Histogram(providerBuckets)}
}

// classOK is the class of successful calls.
const classOK = "ok"

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.calls, m.duration, m.wait}
}

// Called implements Observer.
func (m *Metrics) Called(vpc, op string, err error, waited, took time.Duration) {
	class := classOK
	if err != nil {
		class = vpcport.ClassOf(err).String()
	}
	m.calls.WithLabelValues(vpc, op, class).Inc()
	m.duration.WithLabelValues(vpc, op).Observe(took.Seconds())
	m.wait.WithLabelValues(vpc).Observe(waited.Seconds())
}

// Gone implements Observer: it removes the metrics of a VPC.
func (m *Metrics) Gone(vpc string) {
	of := prometheus.Labels{"vpc": vpc}
	m.calls.DeletePartialMatch(of)
	m.duration.DeletePartialMatch(of)
	m.wait.DeletePartialMatch(of)
}

// Gauges returns the metrics that are computed when Prometheus scrapes.
func (c *Controller) Gauges() prometheus.Collector { return gauges{c} }

type gauges struct{ c *Controller }

// Describe implements prometheus.Collector.
func (gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range []metric.Family{famUnderWay, famWaiting, famAllowed, famCondition} {
		ch <- f.Desc()
	}
}

// Collect implements prometheus.Collector.
func (g gauges) Collect(ch chan<- prometheus.Metric) {
	u := g.c.opener.usage()
	ch <- famUnderWay.Value(float64(u.InFlight))
	ch <- famWaiting.Value(float64(u.Waiting))
	ch <- famAllowed.Value(float64(u.Allowed))
	for name, conditions := range g.c.reported.all() {
		for kind, yes := range conditions {
			is := 0.
			if yes {
				is = 1
			}
			ch <- famCondition.Value(is, name, kind)
		}
	}
}
