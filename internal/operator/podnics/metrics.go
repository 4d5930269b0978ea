package podnics

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/operator/podnics/warm"
	"github.com/berthnet/berth/internal/vpcport"
)

var (
	famNICs    = metric.New("berth_operator_podnics", "gauge", "PodNICs of a VPC by phase. Those without a phase count as Pending.", "vpc", "phase")
	famBlocked = metric.New("berth_operator_podnics_blocked", "gauge", "PodNICs of a VPC whose condition PortReady, or else Bound, is False, by its reason, without those that wait for a pod or for the scheduler. Reasons without PodNICs are absent.", "vpc", "reason")
	famUnbound = metric.New("berth_operator_podnics_unbindable", "gauge", "PodNICs of pods of a node that the provider cannot bind there (BindingFailed). Nodes without such PodNICs are absent.", "node")
	famWaits   = metric.New("berth_operator_podnic_longest_wait_seconds", "gauge", "How long the pod that has waited longest for a NIC of a VPC has waited, as the leader has seen it, by what it waits for: bound (the pod has a node, and the port is not bound there) or plugged (the port is bound, and the node has not plugged it).", "vpc", "for")
	famSteps   = metric.New("berth_operator_port_steps_total", "counter", "Calls to providers for NICs, by kind (look, create, change, poll or delete) and result: ok, or the class of the failure. One request may carry calls for many NICs.", "kind", "result")
	famBound   = metric.New("berth_operator_port_bound_seconds", "histogram", "Time from a pod's creation until one of its NICs was bound to its node, for starting pods.", "vpc")
	famPlugged = metric.New("berth_operator_port_plugged_seconds", "histogram", "Time from a pod's creation until its node had plugged one of its NICs, for starting pods.", "vpc")
	famListed  = metric.New("berth_operator_port_listings_total", "counter", "Listings of all of Berth's ports of a VPC, which find drift and ports without a PodNIC, by result: success or error. Failures to delete such ports count as errors.", "vpc", "result")
	famAstray  = metric.New("berth_operator_stray_ports", "gauge", "Ports of Berth that should not exist, by the last listing, by kind: orphan (no PodNIC has it; it is deleted at once, or after --orphan-age if no operator saw the PodNIC's deletion) or double (its PodNIC has another port).", "vpc", "kind")
	famSwept   = metric.New("berth_operator_orphan_ports_total", "counter", "Ports without a PodNIC, by outcome: deleted, or returned to their users.", "result")
)

// Families returns the metrics, for the reference page.
var Families = []metric.Family{famNICs, famBlocked, famUnbound, famWaits, famSteps, famBound, famPlugged, famListed, famAstray, famSwept}

// Kinds of ports that should not exist.
const (
	strayOrphan = "orphan"
	strayDouble = "double"
)

// Metrics measures the work for NICs. It is safe for concurrent use.
type Metrics struct {
	steps          *prometheus.CounterVec
	bound, plugged *prometheus.HistogramVec
	listings       *prometheus.CounterVec
	stray          *prometheus.GaugeVec
	swept          *prometheus.CounterVec
	warm           *warm.Metrics

	mu   sync.Mutex      // guards vpcs; held while series of VPCs are created or removed
	vpcs map[string]bool // VPCs with series
}

// NewMetrics returns metrics that are not registered.
func NewMetrics() *Metrics {
	m := &Metrics{
		steps: famSteps.Counter(), bound: famBound.Histogram(metric.WaitBuckets), plugged: famPlugged.Histogram(metric.WaitBuckets),
		listings: famListed.Counter(), stray: famAstray.Gauge(), swept: famSwept.Counter(), warm: warm.NewMetrics(), vpcs: map[string]bool{},
	}
	for _, k := range []nicplan.Kind{nicplan.Look, nicplan.Create, nicplan.Change, nicplan.Poll, nicplan.Delete} {
		m.steps.WithLabelValues(k.String(), "ok") // so that rate() sees the first increment
	}
	for _, result := range []string{sweptDeleted, sweptReturned} {
		m.swept.WithLabelValues(result)
	}
	return m
}

// Collectors returns the collectors to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return append(m.warm.Collectors(), m.steps, m.bound, m.plugged, m.listings, m.stray, m.swept)
}

func (m *Metrics) count(k nicplan.Kind, err error) {
	result := "ok"
	if err != nil {
		result = vpcport.ClassOf(err).String()
	}
	m.steps.WithLabelValues(k.String(), result).Inc()
}

// listed counts a listing of a VPC's ports by its result.
func (m *Metrics) listed(vpc string, err error) {
	m.of(vpc, func() { m.listings.WithLabelValues(vpc, metric.Result(err)).Inc() })
}

// strays records how many ports of a VPC should not exist.
func (m *Metrics) strays(vpc string, s strays) {
	m.of(vpc, func() {
		m.stray.WithLabelValues(vpc, strayOrphan).Set(float64(s.orphans))
		m.stray.WithLabelValues(vpc, strayDouble).Set(float64(s.doubles))
	})
}

// observe records how long a pod of a VPC waited, in m.bound or m.plugged.
func (m *Metrics) observe(wait *prometheus.HistogramVec, vpc string, took time.Duration) {
	m.of(vpc, func() { wait.WithLabelValues(vpc).Observe(took.Seconds()) })
}

// of calls a function for the series of a VPC. If the VPC is gone, for example after a listing that was in flight, keepOnly
// removes the series later.
func (m *Metrics) of(vpc string, count func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.vpcs[vpc] = true
	count()
}

func (m *Metrics) keepOnly(vpcs []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := map[string]bool{}
	for _, vpc := range vpcs {
		now[vpc] = true
		for _, result := range metric.Results {
			m.listings.WithLabelValues(vpc, result)
		}
	}
	for vpc := range m.vpcs {
		if !now[vpc] {
			of := prometheus.Labels{"vpc": vpc}
			for _, vec := range []interface{ DeletePartialMatch(prometheus.Labels) int }{m.bound, m.plugged, m.listings, m.stray} {
				vec.DeletePartialMatch(of)
			}
		}
	}
	m.vpcs = now
}

// strays counts ports that should not exist.
type strays struct{ orphans, doubles int }

// Gauges returns the metrics that are computed on each scrape.
func (c *Controller) Gauges() prometheus.Collector {
	return metric.Collector(func(emit func(metric.Family, float64, ...string)) {
		list, err := objects.List[v1alpha1.PodNICList](context.Background(), c.api.client)
		if err != nil {
			return // the cache is not synced yet
		}
		t := tallyOf(list.Items)
		for f, counts := range map[*metric.Family]map[[2]string]int{&famNICs: t.phases, &famBlocked: t.blocked, &famUnbound: t.unbindable} {
			for labels, n := range counts {
				emit(*f, float64(n), labels[:len(f.Labels)]...)
			}
		}
		for vpc, l := range c.states.longestWaits() {
			emit(famWaits, l.bound.Seconds(), vpc, "bound")
			emit(famWaits, l.plugged.Seconds(), vpc, "plugged")
		}
	}, famNICs, famBlocked, famUnbound, famWaits)
}

// tally counts PodNICs by the values of labels.
type tally struct{ phases, blocked, unbindable map[[2]string]int }

func tallyOf(list []v1alpha1.PodNIC) tally {
	t := tally{map[[2]string]int{}, map[[2]string]int{}, map[[2]string]int{}}
	for i := range list {
		o := &list[i]
		t.phases[[2]string{o.Spec.VPC, string(cmp.Or(o.Status.Phase, v1alpha1.PhasePending))}]++
		reason := blockedBy(o)
		if reason != "" {
			t.blocked[[2]string{o.Spec.VPC, reason}]++
		}
		if reason == reasonBinding && o.Status.NodeName != "" {
			t.unbindable[[2]string{o.Status.NodeName}]++
		}
	}
	return t
}

// blockedBy returns the reason why a PodNIC makes no progress, or "" if it does or need not.
func blockedBy(o *v1alpha1.PodNIC) string {
	for _, kind := range []string{v1alpha1.ConditionPortReady, v1alpha1.ConditionBound} {
		c := meta.FindStatusCondition(o.Status.Conditions, kind)
		if c != nil && c.Status == metav1.ConditionFalse && c.Reason != reasonNoPod && c.Reason != reasonUnscheduled {
			return c.Reason
		}
	}
	return ""
}

// waits records since when the pod of a NIC has waited, as seen by this process. Times are zero if it does not wait.
type waits struct {
	bound   time.Time // for the port to be bound to its node
	plugged time.Time // for the node to plug it
}

// progress is the state of a NIC that a pod may be waiting for.
type progress int

const (
	unneeded  progress = iota // not needed by a pod with a node
	unbound                   // not bound to the pod's node
	unplugged                 // bound, but not reported as plugged
	inPlace
)

// progressOf returns the progress of a PodNIC by its status. pod is the pod that is to have it, or nil.
func progressOf(o *v1alpha1.PodNIC, pod *corev1.Pod) progress {
	st := o.Status
	switch {
	case pod == nil || pod.Spec.NodeName == "" || o.DeletionTimestamp != nil || st.Phase == v1alpha1.PhaseReleasing:
		return unneeded
	case !isBound(st) || st.NodeName != pod.Spec.NodeName || st.Pod == nil || st.Pod.UID != string(pod.UID):
		return unbound
	case st.Node == nil || st.Node.State != v1alpha1.NodePlugged || st.Node.PortID != st.PortID:
		return unplugged
	}
	return inPlace
}

func isBound(st v1alpha1.PodNICStatus) bool {
	return st.Phase == v1alpha1.PhaseBound || st.Phase == v1alpha1.PhaseActive
}

// at records the progress of the NIC at now. It reports whether the NIC was plugged after this process had seen the pod wait.
func (w *waits) at(s progress, now time.Time) (done bool) {
	before := *w
	*w = waits{}
	switch s {
	case unbound:
		w.bound = now
		if !before.bound.IsZero() {
			w.bound = before.bound
		}
	case unplugged:
		w.plugged = now
		if !before.plugged.IsZero() {
			w.plugged = before.plugged
		}
	case inPlace:
		return before != waits{}
	case unneeded:
	}
	return false
}

// starts reports whether a pod is starting. The age of a running pod does not show how long it waited for a NIC.
func starts(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodPending || pod.Status.Phase == ""
}

// longest is the longest time that pods have waited.
type longest struct{ bound, plugged time.Duration }
