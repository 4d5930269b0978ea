package podegress

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
)

const conditionEgresses = "EgressesUsable"

var (
	famUnusable = metric.New("berth_egress_unusable_egresses", "gauge", "Egresses of this node's pods that have invalid fields, which are ignored.")
	famSilent   = metric.New("berth_egress_silent_gateways", "gauge", "Gateways of this node's pods that do not answer the node's probes while others of their Egress do.")
	famUnsaid   = metric.New("berth_egress_pending_reports", "gauge", "EgressClients whose status does not yet show what is set up on this node.")
	famWaiting  = metric.New("berth_egress_waiting_adds", "gauge", "ADDs that wait until the operator has said which Egresses their pods use.")
	famWait     = metric.New("berth_egress_wait_duration_seconds", "histogram", "Time that ADDs waited until the operator had said which Egresses their pods use, of those that had to wait.")
	famServed   = metric.New("berth_egress_gateway_wait_duration_seconds", "histogram", "Time that ADDs waited for the gateways that their pods' connections may use, by result: served, or not-served if one did not confirm in time that it serves the pod.", "result")
	famReports  = metric.New("berth_egress_reports_total", "counter", "Writes of what is set up into the status of EgressClients, by state (SetUp, Failed or Gone) and result: success or error.", "state", "result")
)

// Reference is what egress adds to the page of metrics.
var Reference = source.Reference{
	Families:   []metric.Family{famUnusable, famSilent, famUnsaid, famWaiting, famWait, famServed, famReports},
	Conditions: [][2]string{{conditionEgresses, "with egress: the Egresses of the node's pods are valid"}},
}

// Metrics count what is done for clients.
type Metrics struct {
	wait, served *prometheus.HistogramVec
	reports      *prometheus.CounterVec
}

// NewMetrics makes and registers them.
func NewMetrics(to prometheus.Registerer) Metrics {
	m := Metrics{famWait.Histogram(metric.CallBuckets), famServed.Histogram(metric.CallBuckets), famReports.Counter()}
	to.MustRegister(m.wait, m.served, m.reports)
	return m
}

// Waited counts an ADD that waited.
func (m Metrics) Waited(took time.Duration) { m.wait.WithLabelValues().Observe(took.Seconds()) }

// Served counts an ADD that waited for gateways.
func (m Metrics) Served(took time.Duration, err error) {
	result := "served"
	if err != nil {
		result = "not-served"
	}
	m.served.WithLabelValues(result).Observe(took.Seconds())
}

// Reported counts a write of an EgressClient's status.
func (m Metrics) Reported(state string, err error) {
	m.reports.WithLabelValues(state, metric.Result(err)).Inc()
}

// counts are the gauges at one moment.
type counts struct{ unusable, silent, unsaid, waiting int }

// count returns the gauges. c.mu is held.
func (c *Clients) count() counts {
	n := counts{unusable: len(c.observed.egresses.unusable(c.observed.users)), waiting: c.waiters.Len()}
	for _, m := range c.observed.clients {
		if c.observed.state(m) != nil {
			n.unsaid++
		}
	}
	for _, ones := range c.observed.silent {
		n.silent += len(ones)
	}
	return n
}

// Describe implements source.Detail.
func (counts) Describe(*introspect.Document) {}

// Metrics implements source.Detail.
func (n counts) Metrics() []prometheus.Metric {
	return []prometheus.Metric{
		famUnusable.Value(float64(n.unusable)), famSilent.Value(float64(n.silent)),
		famUnsaid.Value(float64(n.unsaid)), famWaiting.Value(float64(n.waiting)),
	}
}

// Describe implements part.Part.
func (c *Clients) Describe(s *source.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiters.Describe(s, c.observed.sync.Err(), c.count(), c.condition())
}

// longestCondition is that of a condition's message, in bytes.
const longestCondition = 1024

// condition tells what of Egresses is left out. c.mu is held.
func (c *Clients) condition() source.Condition {
	errs := c.observed.egresses.unusable(c.observed.users)
	if len(errs) == 0 {
		return source.Condition{Type: conditionEgresses, Healthy: true, Reason: "Usable"}
	}
	var texts []string
	for _, err := range errs {
		texts = append(texts, err.Error())
	}
	return source.Condition{Type: conditionEgresses, Reason: "Invalid", Message: shown(strings.Join(texts, "; "), longestCondition)}
}
