// Package metrics is what berth-operator tells Prometheus.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni/plan"
)

var (
	callBuckets   = []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60}           // EC2 calls, seconds
	demandBuckets = []float64{.1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600} // pods that wait, seconds
)

// Metrics count what the operator does. They implement fleet.Observer and
// pace.Observer, and may be used by many goroutines at once.
type Metrics struct {
	assigns   *prometheus.CounterVec
	creations *prometheus.CounterVec
	calls     *prometheus.HistogramVec
	limiter   *prometheus.HistogramVec
	resyncs   *prometheus.CounterVec
	demand    *prometheus.HistogramVec

	served  *prometheus.HistogramVec
	refused *prometheus.CounterVec
}

// New makes metrics that are not registered.
func New() *Metrics {
	m := &Metrics{
		assigns: famAssigns.Counter(), creations: famCreations.Counter(),
		calls: famCalls.Histogram(callBuckets), limiter: famLimiter.Histogram(callBuckets),
		resyncs: famResyncs.Counter(), demand: famDemand.Histogram(demandBuckets),
		served: famBlockServed.Histogram(demandBuckets), refused: famBlockRefused.Counter(),
	}
	m.resyncs.WithLabelValues() // so that they are there before the first
	m.demand.WithLabelValues()
	m.served.WithLabelValues()
	for _, reason := range []string{v1alpha1.ReasonNoPods, v1alpha1.ReasonNodeQuota, v1alpha1.ReasonTooManyRequests} {
		m.refused.WithLabelValues(reason) // so that the first can be seen to be one more
	}
	return m
}

// Register adds them to a registry. Its errors are those of names that are
// taken.
func (m *Metrics) Register(r prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{m.assigns, m.creations, m.calls, m.limiter, m.resyncs, m.demand, m.served, m.refused} {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// Acted implements fleet.Observer.
func (m *Metrics) Acted(_ string, a plan.Action, class cloud.Class, err error, _ time.Duration) {
	switch {
	case a.Kind == plan.Create && err != nil:
		m.creations.WithLabelValues(a.Subnet, class.String()).Inc()
	case a.Kind == plan.Create:
		m.creations.WithLabelValues(a.Subnet, "success").Inc()
	case a.Kind == plan.Assign && err == nil:
		m.assigns.WithLabelValues(a.Subnet).Inc()
	}
}

// Listed implements fleet.Observer.
func (m *Metrics) Listed(time.Duration, error) { m.resyncs.WithLabelValues().Inc() }

// DemandServed counts a node that had more pods waiting than free addresses,
// and got enough after so long.
func (m *Metrics) DemandServed(after time.Duration) {
	m.demand.WithLabelValues().Observe(after.Seconds())
}

// BlockServed counts a node's request for a block that was answered after so long.
func (m *Metrics) BlockServed(after time.Duration) {
	m.served.WithLabelValues().Observe(after.Seconds())
}

// BlockRefused counts a request for a block that was refused for its node's sake.
func (m *Metrics) BlockRefused(reason string) { m.refused.WithLabelValues(reason).Inc() }

// Call implements pace.Observer.
func (m *Metrics) Call(operation, code string, took time.Duration) {
	m.calls.WithLabelValues(operation, code).Observe(took.Seconds())
}

// Limited implements pace.Observer.
func (m *Metrics) Limited(operation string, waited time.Duration) {
	m.limiter.WithLabelValues(operation).Observe(waited.Seconds())
}
