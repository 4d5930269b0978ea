package daemon

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/node/daemon/part"
	"github.com/berthnet/berth/internal/node/foreign"
	"github.com/berthnet/berth/internal/node/podevents"
	"github.com/berthnet/berth/internal/source"
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

// NewMetrics creates and registers the metrics.
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
		v.WithLabelValues() // visible from the start, with a count of 0
	}
	m.repairs.WithLabelValues()
	for _, result := range metric.Results { // visible from the start, so that an increase shows
		m.nics.WithLabelValues(part.Again, result)
		m.nics.WithLabelValues(part.Changed, result)
		m.egress.WithLabelValues(result)
	}
	return m
}

// CountPodEvents counts Events by outcome.
func (m *Metrics) CountPodEvents(r podevents.Result, n int) {
	m.events.WithLabelValues(string(r)).Add(float64(n))
}

// CountNICs counts corrections of NICs that differed from the desired state.
func (m *Metrics) CountNICs(done string, err error) {
	m.nics.WithLabelValues(done, metric.Result(err)).Inc()
	if done == part.Again && err == nil {
		m.repairs.WithLabelValues().Inc()
	}
}

// CountEgress counts corrections of egress that differed from the desired state.
func (m *Metrics) CountEgress(_ string, err error) {
	m.egress.WithLabelValues(metric.Result(err)).Inc()
}

// observeCall counts a call of the plugin and its duration.
func (m *Metrics) observeCall(verb, result, reason string, took time.Duration) {
	m.requests.WithLabelValues(strings.ToUpper(verb), result, reason).Inc()
	switch verb {
	case "Add":
		m.add.WithLabelValues().Observe(took.Seconds())
	case "Del":
		m.del.WithLabelValues().Observe(took.Seconds())
	}
}

// stateCollector reads gauges from the daemon's state.
type stateCollector struct{ daemon *Daemon }

// Describe implements prometheus.Collector. It describes nothing, because the source adds its own
// metrics.
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
		pods, withheld, byOthers := r.addresses.counts()
		if r.foreign != nil {
			for _, system := range foreign.Systems() {
				gauge(famByOthers, float64(byOthers[system]), system.Label())
			}
		}
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

var (
	famRequests = metric.New("berth_cni_requests_total", "counter", "Calls of the CNI plugin, by verb, result (success or failure) and reason of the failure.", "verb", "result", "reason")
	famAdd      = metric.New("berth_add_duration_seconds", "histogram", "Duration of ADD in the daemon, including the wait for an address.")
	famDel      = metric.New("berth_del_duration_seconds", "histogram", "Duration of DEL in the daemon.")

	famAddresses = metric.New("berth_addresses", "gauge", "Addresses of this node, by state: used, warm, cooling, not-ready or withdrawn.", "state")
	famOnNode    = metric.New("berth_addresses_on_node", "gauge", "Pod addresses that other software added to a link of the node, by holder: pod (a running pod, which is unreachable) or nobody (withheld from pods).", "held_by")
	famByOthers  = metric.New("berth_addresses_held_by_others", "gauge", "Addresses of this node's ENIs or blocks that other software on the node uses and Berth therefore does not assign, by software: amazon-vpc-cni, coil, cilium, calico or other-software.", "by")
	famWaiting   = metric.New("berth_waiting_adds", "gauge", "ADDs that are waiting for an address.")
	famReap      = metric.New("berth_reap_pending", "gauge", "Released pods of which links or other parts are not removed yet.")
	famCondition = metric.New("berth_condition", "gauge", "1 while the condition is healthy, 0 otherwise.", "type")
	famRepairs   = metric.New("berth_repairs_total", "counter", "Pieces of kernel state that other software changed and berthd restored.")

	famNICRepairs = metric.New("berth_nic_repairs_total", "counter", "Corrections of the NICs of running pods, by action (again: plugged again; changed: NICs added, removed, replaced or given other addresses) and result: success or error.", "done", "result")

	// EgressClients is the gauge of the egress part.
	EgressClients    = metric.New("berth_egress_clients", "gauge", "Pods of this node that are clients of an Egress, by state: set-up, or changing (being changed, or waiting for a retry). Absent without egress.", "state")
	famEgressChanges = metric.New("berth_egress_changes_total", "counter", "Changes and repairs of the egress of running pods, by result: success or error.", "result")

	famPodEvents = metric.New("berth_pod_events_total", "counter", "Events on pods and updates of their counts, by result: written, refused (by the API server) or dropped (too many at once, or no API server for minutes).", "result")

	famIPAM  = metric.New("berth_ipam_info", "gauge", "Always 1; the label is the source of the node's addresses: eni (EC2, called by this daemon), eni-operator (EC2, called by the operator), pool (address pools), port (ports of VPCs) or none (another network).", "ipam")
	famBuild = metric.New("berth_build_info", "gauge", "Always 1; the label is the version.", "version")

	families = []metric.Family{
		famRequests, famAdd, famDel, famAddresses, famOnNode, famByOthers, famWaiting, famReap, famCondition, famRepairs, famNICRepairs, EgressClients, famEgressChanges, famPodEvents,
		famIPAM, famBuild,
	}
)

// WriteMetricsReference writes docs/reference/metrics.md, with the daemon's metrics and those
// of the sources.
func WriteMetricsReference(w io.Writer, sources ...source.Reference) error {
	all, conditions := slices.Clone(families), slices.Clone(conditionDocs)
	for _, s := range sources {
		all, conditions = append(all, s.Families...), append(conditions, s.Conditions...)
	}
	var b strings.Builder
	b.WriteString(`# Metrics of berthd

<!-- Generated from internal/node/daemon by "make generate". -->

Served at /metrics on --metrics-address in the Prometheus text format, together with
the metrics of the Go runtime and the process. Durations are in seconds.

`)
	metric.WriteTable(&b, all)
	b.WriteString(`
Conditions of berth_condition:

| type | healthy while |
|---|---|
`)
	for _, c := range conditions {
		fmt.Fprintf(&b, "| `%s` | %s |\n", c[0], c[1])
	}
	_, err := io.WriteString(w, b.String())
	return err
}
