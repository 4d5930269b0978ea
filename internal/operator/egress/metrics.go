package egress

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/operator/egress/gatewayplan"
	"github.com/berthnet/berth/internal/operator/objects"
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
			m.applies.WithLabelValues(kind.Kind, result) // so that an increase to 1 is one
		}
	}
	return m
}

// Collectors are those to register.
func (m *Metrics) Collectors() []prometheus.Collector { return []prometheus.Collector{m.applies} }

func (m *Metrics) applied(kind string, err error) {
	result := "success"
	if err != nil {
		result = "error"
	}
	m.applies.WithLabelValues(kind, result).Inc()
}

// Gauges are collected on each scrape: gateways and conditions of Egresses, read from the cache.
func (c *Controller) Gauges() prometheus.Collector {
	return metric.Collector(func(emit func(metric.Family, float64, ...string)) {
		list, err := objects.List[v1alpha1.EgressList](context.Background(), c.client)
		if err != nil {
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
				emit(famGateways, float64(n), e.Namespace, e.Name, state)
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
				emit(famCondition, is, e.Namespace, e.Name, kind, c.Reason)
			}
		}
	}, famGateways, famCondition)
}
