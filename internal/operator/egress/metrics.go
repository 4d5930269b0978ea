package egress

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/operator/egress/gatewayplan"
)

var (
	famGateways  = metric.New("berth_operator_egress_gateways", "gauge", "Gateways of an Egress by state: desired (spec.replicas), ready (they take connections) or ending (they serve those that they have).", "namespace", "egress", "state")
	famCondition = metric.New("berth_operator_egress_condition", "gauge", "1 while a condition of an Egress (Available, ServiceReady) is True, 0 while it is not, with its reason.", "namespace", "egress", "type", "reason")
	famApplied   = metric.New("berth_operator_egress_applies_total", "counter", "Objects of Egresses that were sent to the API server, by kind and result: success or error. One that is as it should be is not sent.", "kind", "result")
)

// Families are the metrics, for the page that documents them.
var Families = []metric.Family{famGateways, famCondition, famApplied}

// Metrics count the work for Egresses. They are safe for concurrent use.
type Metrics struct{ applies *prometheus.CounterVec }

// NewMetrics makes metrics that are not registered.
func NewMetrics() *Metrics {
	m := &Metrics{famApplied.Counter()}
	for _, kind := range gatewayplan.Kinds {
		for _, result := range []string{"success", "error"} {
			m.applies.WithLabelValues(kind.Kind, result) // so that the first can be seen to be one more
		}
	}
	return m
}

// Collectors are to be registered.
func (m *Metrics) Collectors() []prometheus.Collector { return []prometheus.Collector{m.applies} }

func (m *Metrics) applied(kind string, err error) {
	result := "success"
	if err != nil {
		result = "error"
	}
	m.applies.WithLabelValues(kind, result).Inc()
}

// Gauges are collected on each scrape: gateways and conditions of Egresses.
func (c *Controller) Gauges() prometheus.Collector { return gauges{c} }

type gauges struct{ c *Controller }

// Describe implements prometheus.Collector.
func (gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range []metric.Family{famGateways, famCondition} {
		ch <- f.Desc()
	}
}

// Collect implements prometheus.Collector. It reads the cache.
func (g gauges) Collect(ch chan<- prometheus.Metric) {
	list := &v1alpha1.EgressList{}
	if err := g.c.client.List(context.Background(), list, client.UnsafeDisableDeepCopy); err != nil {
		return // before the cache is filled
	}
	for i := range list.Items {
		e := &list.Items[i]
		desired := int32(1)
		if e.Spec.Replicas != nil {
			desired = *e.Spec.Replicas
		}
		ready := e.Status.ReadyGateways
		for state, n := range map[string]int32{"desired": desired, "ready": ready, "ending": int32(len(e.Status.Gateways)) - ready} {
			ch <- famGateways.Value(float64(n), e.Namespace, e.Name, state)
		}
		for _, kind := range []string{v1alpha1.ConditionAvailable, v1alpha1.ConditionServiceReady} {
			c := meta.FindStatusCondition(e.Status.Conditions, kind)
			if c == nil {
				continue
			}
			is := 0.0
			if c.Status == "True" {
				is = 1
			}
			ch <- famCondition.Value(is, e.Namespace, e.Name, kind, c.Reason)
		}
	}
}
