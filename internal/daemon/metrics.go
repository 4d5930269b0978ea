package daemon

import (
	"cmp"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni/plan"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/version"
)

// Metrics are berthd's metrics in a registry of their own.
type Metrics struct {
	Registry *prometheus.Registry

	requests *prometheus.CounterVec
	add, del *prometheus.HistogramVec
	repairs  *prometheus.CounterVec
	Cloud    CloudMetrics
}

// NewMetrics makes and registers them. The cloud client counts into them
// before there is a Daemon.
func NewMetrics() *Metrics {
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		requests: famRequests.Counter(), add: famAdd.Histogram(metric.CallBuckets), del: famDel.Histogram(metric.CallBuckets),
		repairs: famRepairs.Counter(), Cloud: newCloudMetrics(),
	}
	build := famBuild.Gauge()
	build.WithLabelValues(version.String()).Set(1)
	m.Registry.MustRegister(m.requests, m.add, m.del, m.repairs, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.Registry.MustRegister(m.Cloud.all()...)
	for _, v := range []*prometheus.HistogramVec{m.add, m.del} {
		v.WithLabelValues() // shown from the start, with a count of 0
	}
	m.repairs.WithLabelValues()
	return m
}

func (m *Metrics) called(verb, result, reason string, took time.Duration) {
	m.requests.WithLabelValues(strings.ToUpper(verb), result, reason).Inc()
	switch verb {
	case "Add":
		m.add.WithLabelValues().Observe(took.Seconds())
	case "Del":
		m.del.WithLabelValues().Observe(took.Seconds())
	}
}

// CloudMetrics count what the cloud is asked for. They observe the EC2 client.
type CloudMetrics struct {
	calls      *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	wait       *prometheus.HistogramVec
	reconciles *prometheus.CounterVec
}

func newCloudMetrics() CloudMetrics {
	buckets := []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60} // seconds
	return CloudMetrics{
		calls: famCalls.Counter(), duration: famCallTime.Histogram(buckets),
		wait: famLimiter.Histogram(buckets), reconciles: famReconciles.Counter(),
	}
}

func (c CloudMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{c.calls, c.duration, c.wait, c.reconciles}
}

// Call counts one call to EC2 with the code of its answer.
func (c CloudMetrics) Call(operation, code string, took time.Duration) {
	c.calls.WithLabelValues(operation, code).Inc()
	c.duration.WithLabelValues(operation).Observe(took.Seconds())
}

// Limited counts the time that the limiter held one call back.
func (c CloudMetrics) Limited(operation string, waited time.Duration) {
	c.wait.WithLabelValues(operation).Observe(waited.Seconds())
}

// ReconcilerMetrics observe the ENI reconciler. Its calls come from one goroutine.
type ReconcilerMetrics struct {
	metrics CloudMetrics
	failed  string // class of the last error of the pass under way
}

// Reconciler returns the observer of one reconciler.
func (c CloudMetrics) Reconciler() *ReconcilerMetrics { return &ReconcilerMetrics{metrics: c} }

// Acted implements eni.Observer.
func (r *ReconcilerMetrics) Acted(_ plan.Action, class cloud.Class, err error, _ time.Duration) {
	if err != nil {
		r.failed = class.String()
	}
}

// Reconciled implements eni.Observer: the result is success, or the class of
// the last error of the pass.
func (r *ReconcilerMetrics) Reconciled(time.Duration) {
	r.metrics.reconciles.WithLabelValues(cmp.Or(r.failed, "success")).Inc()
	r.failed = ""
}

// stateCollector reads gauges from the daemon's state when asked.
type stateCollector struct{ daemon *Daemon }

// Describe implements prometheus.Collector: nothing, as only the source knows its own.
func (c *stateCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(f metric.Family, v float64, labels ...string) { ch <- f.Value(v, labels...) }
	snap := c.daemon.Source.Snapshot()
	for state, n := range snap.Count {
		gauge(famAddresses, float64(n), string(state))
	}
	if c.daemon.IPAM != "" {
		gauge(famIPAM, 1, c.daemon.IPAM)
	}
	if snap.Detail != nil {
		for _, m := range snap.Detail.Metrics() {
			ch <- m
		}
	}
	gauge(famWaiting, float64(snap.Waiting))
	gauge(famReap, float64(c.daemon.reaper.count()))
	for _, cond := range c.daemon.conditions.all() {
		v := 0.0
		if cond.Healthy {
			v = 1
		}
		gauge(famCondition, v, cond.Type)
	}
}
