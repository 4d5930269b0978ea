package daemon

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/version"
)

// callBuckets are seconds, from below one netlink call to the longest wait for an address.
var callBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// Metrics are berthd's metrics in a registry of their own.
type Metrics struct {
	Registry *prometheus.Registry

	requests *prometheus.CounterVec
	add, del prometheus.Histogram
	repairs  prometheus.Counter
	Cloud    CloudMetrics
}

// NewMetrics makes and registers them. The cloud client counts into them
// before there is a Daemon.
func NewMetrics() *Metrics {
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_cni_requests_total", Help: "Calls of the CNI plugin by verb, result and, of failures, the reason."},
			[]string{"verb", "result", "reason"}),
		add: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "berth_add_duration_seconds", Help: "Time that ADD took in the daemon, waiting for an address included.", Buckets: callBuckets}),
		del: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "berth_del_duration_seconds", Help: "Time that DEL took in the daemon.", Buckets: callBuckets}),
		repairs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_repairs_total", Help: "Times that kernel state which someone else changed was put back."}),
		Cloud: newCloudMetrics(),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "berth_build_info", Help: "Always 1; the label tells the version.", ConstLabels: prometheus.Labels{"version": version.String()}})
	info.Set(1)
	m.Registry.MustRegister(m.requests, m.add, m.del, m.repairs, info,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.Registry.MustRegister(m.Cloud.all()...)
	return m
}

func (m *Metrics) called(verb, result, reason string, took time.Duration) {
	m.requests.WithLabelValues(verb, result, reason).Inc()
	switch verb {
	case "Add":
		m.add.Observe(took.Seconds())
	case "Del":
		m.del.Observe(took.Seconds())
	}
}

// CloudMetrics count what the cloud is asked for.
type CloudMetrics struct {
	calls      *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	wait       *prometheus.HistogramVec
	reconciles *prometheus.CounterVec
}

func newCloudMetrics() CloudMetrics {
	buckets := []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	return CloudMetrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_ec2_calls_total", Help: "Calls to EC2 by operation and error code; the code of a success is empty."},
			[]string{"operation", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_ec2_call_duration_seconds", Help: "Time that calls to EC2 took, without the client's limiter.", Buckets: buckets},
			[]string{"operation"}),
		wait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_ec2_limiter_wait_seconds", Help: "Time that calls to EC2 were held back by the client's limiter.", Buckets: buckets},
			[]string{"operation"}),
		reconciles: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_reconciles_total", Help: "Runs of the ENI reconciler by result."},
			[]string{"result"}),
	}
}

func (c CloudMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{c.calls, c.duration, c.wait, c.reconciles}
}

// Called counts one call to the cloud. Code is empty when it succeeded.
func (c CloudMetrics) Called(operation, code string, took time.Duration) {
	c.calls.WithLabelValues(operation, code).Inc()
	c.duration.WithLabelValues(operation).Observe(took.Seconds())
}

// Waited counts the time that the limiter held one call back.
func (c CloudMetrics) Waited(operation string, waited time.Duration) {
	c.wait.WithLabelValues(operation).Observe(waited.Seconds())
}

// Reconciled counts one run of the ENI reconciler.
func (c CloudMetrics) Reconciled(result string) { c.reconciles.WithLabelValues(result).Inc() }

// stateCollector reads gauges from the daemon's state when asked.
type stateCollector struct{ daemon *Daemon }

var (
	addressesDesc = prometheus.NewDesc("berth_addresses", "Addresses of this node by state.", []string{"state"}, nil)
	enisDesc      = prometheus.NewDesc("berth_enis", "ENIs of this node that carry pods.", nil, nil)
	waitingDesc   = prometheus.NewDesc("berth_waiting_adds", "ADDs that wait for an address.", nil, nil)
	reapDesc      = prometheus.NewDesc("berth_reap_pending", "Links of released pods that the kernel still has to remove.", nil, nil)
	conditionDesc = prometheus.NewDesc("berth_condition", "1 while the condition is healthy, else 0.", []string{"type"}, nil)
)

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{addressesDesc, enisDesc, waitingDesc, reapDesc, conditionDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	snap := c.daemon.Source.Snapshot()
	count := map[source.State]int{source.Used: 0, source.Warm: 0, source.Cooling: 0, source.NotReady: 0, source.Withdrawn: 0}
	for _, a := range snap.Addresses {
		count[a.State]++
	}
	for state, n := range count {
		gauge(addressesDesc, float64(n), string(state))
	}
	gauge(enisDesc, float64(len(snap.Groups)))
	gauge(waitingDesc, float64(snap.Waiting))
	gauge(reapDesc, float64(c.daemon.reaper.count()))
	for _, cond := range c.daemon.conditions.all() {
		v := 0.0
		if cond.Healthy {
			v = 1
		}
		gauge(conditionDesc, v, cond.Type)
	}
}
