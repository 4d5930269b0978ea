package enisource

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/source"
)

var (
	famENIs       = metric.New("berth_enis", "gauge", "ENIs of this node that carry pods, and the primary one in any case.")
	famCutOff     = metric.New("berth_pods_cut_off", "gauge", "Running pods that are cut off, by cause: eni-link-missing (the node has no link of their ENI), eni-detached (it is not attached to the node) or address-unassigned (EC2 has taken their address from it).", "cause")
	famCalls      = metric.New("berth_ec2_calls_total", "counter", "Calls to EC2 by operation and code: EC2's error code, or OK.", "operation", "code")
	famCallTime   = metric.New("berth_ec2_call_duration_seconds", "histogram", "Time that calls to EC2 took, without the client's limiter.", "operation")
	famLimiter    = metric.New("berth_ec2_limiter_wait_seconds", "histogram", "Time that the client's limiter held calls to EC2 back.", "operation")
	famOrphans    = metric.New("berth_orphan_enis", "gauge", "Detached ENIs of vanished instances of the cluster, as this node saw them last, by state: waiting (to be seen for --orphan-age), kept (an instance of theirs exists after all) or refused (EC2 does not delete them).", "state")
	famCollected  = metric.New("berth_orphan_enis_deleted_total", "counter", "ENIs of vanished instances of the cluster that this node deleted.")
	famReconciles = metric.New("berth_reconciles_total", "counter", "Passes of the ENI reconciler by result: success, or the class of the last error.", "result")
)

// Reference is what this source adds to the page of metrics.
var Reference = source.Reference{
	Families: []metric.Family{famENIs, famCutOff, famCalls, famCallTime, famLimiter, famReconciles, famOrphans, famCollected},
	Conditions: [][2]string{
		{conditionLinks, "with addresses of ENIs, the node has the link of each ENI that carries pods"},
		{conditionAddresses, "with addresses of ENIs, each address of a running pod is assigned to an ENI of the node"},
		{conditionGroups, "in node mode, ENIs have the security groups of the primary ENI, unless others are configured"},
	},
}

// Metrics count what node mode asks EC2 for. They observe the calls (pace.Observer).
type Metrics struct {
	calls      *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	wait       *prometheus.HistogramVec
	reconciles *prometheus.CounterVec
	orphans    *prometheus.GaugeVec
	collected  *prometheus.CounterVec
}

// NewMetrics makes and registers them.
func NewMetrics(to prometheus.Registerer) Metrics {
	buckets := []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60} // seconds
	m := Metrics{famCalls.Counter(), famCallTime.Histogram(buckets), famLimiter.Histogram(buckets), famReconciles.Counter(), famOrphans.Gauge(), famCollected.Counter()}
	to.MustRegister(m.calls, m.duration, m.wait, m.reconciles, m.orphans, m.collected)
	return m
}

// Call counts one call to EC2 with the code of its answer.
func (m Metrics) Call(operation, code string, took time.Duration) {
	m.calls.WithLabelValues(operation, code).Inc()
	m.duration.WithLabelValues(operation).Observe(took.Seconds())
}

// Limited counts the time that the limiter held one call back.
func (m Metrics) Limited(operation string, waited time.Duration) {
	m.wait.WithLabelValues(operation).Observe(waited.Seconds())
}

// Reconciler returns the observer of one reconciler.
func (m Metrics) Reconciler() eni.Observer { return &passes{Metrics: m} }

// passes count those of a reconciler. Its calls come from one goroutine.
type passes struct {
	Metrics
	failed string // class of the last error of the pass under way
}

// Acted implements eni.Observer.
func (p *passes) Acted(_ plan.Action, class cloud.Class, err error, _ time.Duration) {
	if err != nil {
		p.failed = class.String()
	}
}

// Collected implements eni.Observer.
func (p *passes) Collected(found eni.Collected) {
	for state, n := range found.ByState() {
		p.orphans.WithLabelValues(state).Set(float64(n))
	}
	p.collected.WithLabelValues().Add(float64(found.Deleted))
}

// Reconciled implements eni.Observer: the result is success, or the class of
// the last error of the pass.
func (p *passes) Reconciled(time.Duration) {
	p.reconciles.WithLabelValues(cmp.Or(p.failed, "success")).Inc()
	p.failed = ""
}
