package networkpolicy

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/source"
)

var (
	famPods      = metric.New("berth_network_policy_pods", "gauge", "Pod interfaces of this node by state: judged (a network policy selects the pod), open (none does) or unknown (berth-operator has not sent the pod's policies).", "state")
	famSets      = metric.New("berth_network_policy_sets", "gauge", "Sets of addresses that the network policies of this node's pods name.")
	famElements  = metric.New("berth_network_policy_elements", "gauge", "Elements of these sets.")
	famConnected = metric.New("berth_network_policy_operator_connected", "gauge", "1 while this node receives network policies from berth-operator, 0 otherwise.")
	famAway      = metric.New("berth_network_policy_operator_away_seconds", "gauge", "Time since this node last received network policies from berth-operator; 0 while it is connected.")
	famFailing   = metric.New("berth_network_policy_failing_seconds", "gauge", "Time since the kernel first rejected a change of network policies; 0 while they are in force.")
	famWaiting   = metric.New("berth_network_policy_waiting_adds", "gauge", "ADDs that wait for the network policies of their pods.")
	famWait      = metric.New("berth_network_policy_wait_duration_seconds", "histogram", "Time that ADDs waited for the network policies of their pods, by result: success or error.", "result")
	famApply     = metric.New("berth_network_policy_apply_duration_seconds", "histogram", "Duration of changes of network policies in the kernel, by result: success or error.", "result")
	famDenied    = metric.New("berth_network_policy_denied_packets_total", "counter", "Packets that network policies denied on this node, by direction of the connection. A connection that is denied tries several times.", "direction")
	famDeniedBy  = metric.New("berth_network_policy_denied_packets_by_policy_total", "counter", "The same by the policy that denied them. Packets that no policy accepts count for each NetworkPolicy that isolates the pod.", "direction", "policy")
	famRepairs   = metric.New("berth_network_policy_repairs_total", "counter", "How often berthd restored network policies in the kernel that other software had changed.")
)

// Reference is the part of the metrics page about network policies.
var Reference = source.Reference{
	Families:   []metric.Family{famPods, famSets, famElements, famConnected, famAway, famFailing, famWaiting, famWait, famApply, famRepairs, famDenied, famDeniedBy},
	Conditions: [][2]string{{ConditionReady, "with network policies: those of the node's pods are in force, and the node receives changes from berth-operator"}},
}

// Metrics counts operations on network policies. The zero value counts nothing.
type Metrics struct {
	wait, apply *prometheus.HistogramVec
	repairs     *prometheus.CounterVec
}

// NewMetrics creates and registers metrics.
func NewMetrics(to prometheus.Registerer) Metrics {
	m := Metrics{famWait.Histogram(metric.CallBuckets), famApply.Histogram(metric.CallBuckets), famRepairs.Counter()}
	to.MustRegister(m.wait, m.apply, m.repairs)
	m.repairs.WithLabelValues()
	for _, result := range metric.Results { // visible from the start, so that an increase shows
		m.apply.WithLabelValues(result)
	}
	return m
}

// Waited counts an ADD that waited.
func (m Metrics) Waited(took time.Duration, err error) {
	if m.wait != nil {
		m.wait.WithLabelValues(metric.Result(err)).Observe(took.Seconds())
	}
}

func (m Metrics) applied(took time.Duration, err error) {
	if m.apply != nil {
		m.apply.WithLabelValues(metric.Result(err)).Observe(took.Seconds())
	}
}

func (m Metrics) repaired() {
	if m.repairs != nil {
		m.repairs.WithLabelValues().Inc()
	}
}

// gauges is a snapshot of the gauges.
type gauges struct {
	pods           map[string]int
	sets, elements int
	connected      bool
	away, failing  time.Duration
	waiting        int
	refused        func() []policytable.Refused // asks the kernel
}

// Describe adds the condition and the metrics to a snapshot. waiting is how many ADDs wait.
func (e *Enforcer) Describe(snap *source.Snapshot, waiting int) {
	g := gauges{pods: map[string]int{"judged": 0, "open": 0, "unknown": 0}, waiting: waiting}
	g.refused = func() []policytable.Refused { return e.insides.refused(e.Kernel) }
	e.mu.Lock()
	for _, p := range e.pods {
		switch list, known := e.state.Of(p.PodName, p.UID); {
		case !known:
			g.pods["unknown"]++
		case len(list) > 0:
			g.pods["judged"]++
		default:
			g.pods["open"]++
		}
	}
	for id := range e.state.SetIDs() {
		g.sets, g.elements = g.sets+1, g.elements+e.state.Size(id)
	}
	now, r := e.Clock.Now(), &e.record
	if g.connected = r.connected; !r.connected {
		g.away = now.Sub(r.away())
	}
	if r.failure != "" {
		g.failing = now.Sub(r.failing)
	}
	e.mu.Unlock()
	snap.Conditions = append(snap.Conditions, e.Condition())
	snap.Detail = source.Details{snap.Detail, g}
}

// Describe implements source.Detail.
func (gauges) Describe(*introspect.Document) {}

// Metrics implements source.Detail.
func (g gauges) Metrics() (out []prometheus.Metric) {
	for state, n := range g.pods {
		out = append(out, famPods.Value(float64(n), state))
	}
	byPolicy := map[[2]string]uint64{}
	var byDirection [len(policy.Directions)]uint64
	for _, r := range g.refused() {
		if len(r.Policies) == 0 {
			byDirection[r.Direction] += r.Packets
		}
		for _, ref := range r.Policies {
			byPolicy[[2]string{strings.ToLower(r.Direction.String()), ref.String()}] += r.Packets
		}
	}
	for _, d := range policy.Directions {
		out = append(out, famDenied.Value(float64(byDirection[d]), strings.ToLower(d.String())))
	}
	for labels, n := range byPolicy {
		if n > 0 {
			out = append(out, famDeniedBy.Value(float64(n), labels[0], labels[1]))
		}
	}
	connected := 0.0
	if g.connected {
		connected = 1
	}
	return append(out,
		famSets.Value(float64(g.sets)), famElements.Value(float64(g.elements)), famConnected.Value(connected),
		famAway.Value(g.away.Seconds()), famFailing.Value(g.failing.Seconds()), famWaiting.Value(float64(g.waiting)))
}
