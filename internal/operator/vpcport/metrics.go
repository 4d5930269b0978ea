package vpcport

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/operator/vpcport/plan"
	"github.com/berthnet/berth/internal/vpcport"
)

var (
	famNICs  = metric.New("berth_operator_podnics", "gauge", "PodNICs of a VPC by phase; Pending also before there is one.", "vpc", "phase")
	famSteps = metric.New("berth_operator_port_steps_total", "counter", "What was asked of providers for NICs, by kind (look, create, change, poll or delete) and result: ok, or the class of the failure. A call may ask for many NICs.", "kind", "result")
	famBound = metric.New("berth_operator_port_bound_seconds", "histogram", "Time from a pod's creation until one of its NICs was bound to its node.", "vpc")
	famSwept = metric.New("berth_operator_orphan_ports_total", "counter", "Ports that no PodNIC named any more, by what became of them: deleted, or given back to their users.", "result")
)

// Families are the metrics, for the page that documents them.
var Families = []metric.Family{famNICs, famSteps, famBound, famSwept}

// Metrics count the work for NICs. They may be used by many goroutines at once.
type Metrics struct {
	steps *prometheus.CounterVec
	bound *prometheus.HistogramVec
	swept *prometheus.CounterVec
}

// NewMetrics makes metrics that are not registered.
func NewMetrics() *Metrics {
	m := &Metrics{famSteps.Counter(), famBound.Histogram(metric.WaitBuckets), famSwept.Counter()}
	for _, k := range []plan.Kind{plan.Look, plan.Create, plan.Change, plan.Poll, plan.Delete} {
		m.steps.WithLabelValues(k.String(), "ok") // so that the first can be seen to be one more
	}
	for _, result := range []string{sweptDeleted, sweptReturned} {
		m.swept.WithLabelValues(result)
	}
	return m
}

// Collectors are to be registered.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.steps, m.bound, m.swept}
}

func (m *Metrics) count(k plan.Kind, err error) {
	result := "ok"
	if err != nil {
		result = vpcport.ClassOf(err).String()
	}
	m.steps.WithLabelValues(k.String(), result).Inc()
}

// Gauges are read when Prometheus asks: how many NICs there are in which phase.
func (c *Controller) Gauges() prometheus.Collector { return gauges{c} }

type gauges struct{ c *Controller }

// Describe implements prometheus.Collector.
func (gauges) Describe(ch chan<- *prometheus.Desc) { ch <- famNICs.Desc() }

// Collect implements prometheus.Collector. It reads the cache.
func (g gauges) Collect(ch chan<- prometheus.Metric) {
	list := &v1alpha1.PodNICList{}
	if err := g.c.client.List(context.Background(), list, client.UnsafeDisableDeepCopy); err != nil {
		return // before the cache is filled
	}
	type row struct {
		vpc   string
		phase v1alpha1.PodNICPhase
	}
	counts := map[row]int{}
	for i := range list.Items {
		r := row{list.Items[i].Spec.VPC, list.Items[i].Status.Phase}
		if r.phase == "" {
			r.phase = v1alpha1.PhasePending
		}
		counts[r]++
	}
	for r, n := range counts {
		ch <- famNICs.Value(float64(n), r.vpc, string(r.phase))
	}
}

// Known is how many NICs are known. It takes the lock that all work needs: one that does
// not return tells that the controller hangs.
func (c *Controller) Known() int { return c.book.count() }
