package daemon

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/node/daemon/part"
	"github.com/berthnet/berth/internal/node/podevents"
	"github.com/berthnet/berth/internal/version"
)

// Metrics are berthd's metrics in a registry of their own.
type Metrics struct {
	Registry *prometheus.Registry

	requests *prometheus.CounterVec
	add, del *prometheus.HistogramVec
	repairs  *prometheus.CounterVec
	nics     *prometheus.CounterVec
	egress   *prometheus.CounterVec
	events   *prometheus.CounterVec
}

// NewMetrics makes and registers them.
func NewMetrics() *Metrics {
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		requests: famRequests.Counter(), add: famAdd.Histogram(metric.CallBuckets), del: famDel.Histogram(metric.CallBuckets),
		repairs: famRepairs.Counter(), nics: famNICRepairs.Counter(), egress: famEgressChanges.Counter(), events: famPodEvents.Counter(),
	}
	build := famBuild.Gauge()
	build.WithLabelValues(version.String()).Set(1)
	m.Registry.MustRegister(m.requests, m.add, m.del, m.repairs, m.nics, m.egress, m.events, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, v := range []*prometheus.HistogramVec{m.add, m.del} {
		v.WithLabelValues() // shown from the start, with a count of 0
	}
	m.repairs.WithLabelValues()
	for _, result := range []string{"success", "error"} { // so that the first can be seen to be one more
		m.nics.WithLabelValues(part.Again, result)
		m.nics.WithLabelValues(part.Changed, result)
		m.egress.WithLabelValues(result)
	}
	return m
}

// CountPodEvents counts what became of Events.
func (m *Metrics) CountPodEvents(r podevents.Result, n int) {
	m.events.WithLabelValues(string(r)).Add(float64(n))
}

// CountNICs counts a pod whose NICs were not as they should be.
func (m *Metrics) CountNICs(done string, err error) {
	m.nics.WithLabelValues(done, resultOf(err)).Inc()
	if done == part.Again && err == nil {
		m.repairs.WithLabelValues().Inc()
	}
}

// CountEgress counts a running pod whose egress was not as it should be.
func (m *Metrics) CountEgress(_ string, err error) { m.egress.WithLabelValues(resultOf(err)).Inc() }

func resultOf(err error) string {
	if err != nil {
		return "error"
	}
	return "success"
}

// observeCall counts a call of the plugin, and the time that it took.
func (m *Metrics) observeCall(verb, result, reason string, took time.Duration) {
	m.requests.WithLabelValues(strings.ToUpper(verb), result, reason).Inc()
	switch verb {
	case "Add":
		m.add.WithLabelValues().Observe(took.Seconds())
	case "Del":
		m.del.WithLabelValues().Observe(took.Seconds())
	}
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
	if r := c.daemon.repairer; r != nil {
		pods, withheld := r.addresses.counts()
		gauge(famOnNode, float64(pods), "pod")
		gauge(famOnNode, float64(withheld), "nobody")
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
