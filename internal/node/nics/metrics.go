package nics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
)

var (
	famNICs     = metric.New("berth_port_nics", "gauge", "PodNICs of this node, by phase.", "phase")
	famPlugged  = metric.New("berth_port_plugged", "gauge", "NICs that are plugged into pods of this node.")
	famUnusable = metric.New("berth_port_unusable_nics", "gauge", "PodNICs of this node that are bound and cannot be plugged because they are invalid.")
	famUnsaid   = metric.New("berth_port_pending_reports", "gauge", "PodNICs whose status does not yet show what is plugged on this node.")
	famWaiting  = metric.New("berth_port_waiting_adds", "gauge", "ADDs that wait for NICs.")
	famOVSDB    = metric.New("berth_port_ovsdb_reachable", "gauge", "1 if the node's Open vSwitch answered and has an integration bridge when it was last asked, else 0.")
	famWait     = metric.New("berth_port_wait_duration_seconds", "histogram", "Time that ADDs waited for NICs, by what for: bound (until all ports were bound to this node), link (until an agent had made the links of those that are Netns, or the trunk's link of those that are VLAN was there) or active (from plugged until they carried packets).", "for")
	famPlug     = metric.New("berth_port_plug_duration_seconds", "histogram", "Time that it took to plug one NIC, by type: OVS, OVSHybrid, Netns or VLAN.", "type")
	famFailures = metric.New("berth_port_plug_failures_total", "counter", "NICs that could not be plugged, by type and reason: invalid, ovsdb, no-tun, no-vlan, not-ready, taken or other.", "type", "reason")
	famReports  = metric.New("berth_port_reports_total", "counter", "Writes of what is plugged into the status of PodNICs, by state (Plugged, Unplugged or Failed) and result: success or error.", "state", "result")
)

// Reference is what NICs add to the page of metrics.
var Reference = source.Reference{
	Families: []metric.Family{famNICs, famPlugged, famUnusable, famUnsaid, famWaiting, famOVSDB, famWait, famPlug, famFailures, famReports},
	Conditions: [][2]string{
		{conditionOVSDB, "with ports of VPCs: Open vSwitch answers and has an integration bridge"},
		{conditionPodNICs, "with ports of VPCs: what bound PodNICs of the node say can be plugged"},
	},
}

// Metrics count what is done for NICs.
type Metrics struct {
	wait, plug        *prometheus.HistogramVec
	failures, reports *prometheus.CounterVec
}

// NewMetrics makes and registers them.
func NewMetrics(to prometheus.Registerer) Metrics {
	m := Metrics{famWait.Histogram(metric.CallBuckets), famPlug.Histogram(metric.CallBuckets), famFailures.Counter(), famReports.Counter()}
	to.MustRegister(m.wait, m.plug, m.failures, m.reports)
	return m
}

// Waited counts an ADD that waited.
func (m Metrics) Waited(what string, took time.Duration) {
	m.wait.WithLabelValues(what).Observe(took.Seconds())
}

// Plugged counts a NIC that was plugged, or could not be.
func (m Metrics) Plugged(kind string, err error, took time.Duration) {
	if err != nil {
		m.failures.WithLabelValues(kind, labelOf(err)).Inc()
		return
	}
	m.plug.WithLabelValues(kind).Observe(took.Seconds())
}

// Reported counts a write of a PodNIC's status.
func (m Metrics) Reported(state string, err error) {
	m.reports.WithLabelValues(state, metric.Result(err)).Inc()
}

// counts are the gauges at one moment.
type counts struct {
	phases                             map[v1alpha1.PodNICPhase]int
	plugged, unusable, unsaid, waiting int
	ovsdb                              *bool // nil: there is no Open vSwitch, or it was not asked yet
}

// phases are all that are counted.
var phases = []v1alpha1.PodNICPhase{
	v1alpha1.PhasePending, v1alpha1.PhaseCreated, v1alpha1.PhaseBound, v1alpha1.PhaseActive, v1alpha1.PhaseFailed, v1alpha1.PhaseReleasing,
}

// count returns the gauges. n.mu is held.
func (n *NICs) count() counts {
	c := counts{phases: map[v1alpha1.PodNICPhase]int{}, plugged: len(n.observed.plugged), waiting: n.waiters.Len()}
	now := n.clock.Now()
	for _, o := range n.observed.objects {
		c.phases[o.phase]++
		if o.err != nil {
			c.unusable++
		}
		if n.observed.state(o, true, now) != nil {
			c.unsaid++
		}
	}
	if n.vswitch != nil {
		if h := n.vswitch.state(); h.asked {
			ok := h.err == nil
			c.ovsdb = &ok
		}
	}
	return c
}

// Metrics implements source.Detail.
func (c counts) Metrics() (out []prometheus.Metric) {
	for _, p := range phases {
		out = append(out, famNICs.Value(float64(c.phases[p]), string(p)))
	}
	out = append(out, famPlugged.Value(float64(c.plugged)), famUnusable.Value(float64(c.unusable)),
		famUnsaid.Value(float64(c.unsaid)), famWaiting.Value(float64(c.waiting)))
	if c.ovsdb != nil {
		v := 0.0
		if *c.ovsdb {
			v = 1
		}
		out = append(out, famOVSDB.Value(v))
	}
	return out
}

// Describe implements source.Detail.
func (counts) Describe(*introspect.Document) {}

// Describe implements part.Part.
func (n *NICs) Describe(s *source.Snapshot) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.waiters.Describe(s, n.observed.sync.Err(), n.count(), n.conditions()...)
}
