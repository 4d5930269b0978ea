package egress

import (
	"context"
	"fmt"
	"reflect"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/operator/egress/gatewayplan"
	"github.com/berthnet/berth/internal/operator/objects"
)

// writeStatus writes an Egress's status if it changed.
func (c *Controller) writeStatus(ctx context.Context, e *v1alpha1.Egress, problem *gatewayplan.Problem) error {
	seen, err := c.seen(ctx, e)
	if err != nil {
		return err
	}
	seen.Problem = problem
	st := gatewayplan.Status(e, seen, metav1.NewTime(c.now()))
	if says(e.Status, st) {
		return nil
	}
	fields, err := statusFields(st)
	if err != nil {
		return fmt.Errorf("write the status of Egress %s/%s: %w", e.Namespace, e.Name, err)
	}
	if err := failpoint.Hit("operator.gateways.status.before"); err != nil {
		return err
	}
	if _, err := objects.ApplyStatus(ctx, c.client, e, v1alpha1.GroupVersion.WithKind("Egress"), v1alpha1.OwnerOperator, fields); err != nil {
		return err
	}
	if err := failpoint.Hit("operator.gateways.status.after"); err != nil {
		return err
	}
	c.recordChanges(e, st)
	return nil
}

// says reports whether a status has the fields of another one, ignoring those of other writers.
func says(is, want v1alpha1.EgressStatus) bool {
	for _, c := range want.Conditions {
		if has := meta.FindStatusCondition(is.Conditions, c.Type); has == nil || !reflect.DeepEqual(*has, c) {
			return false
		}
	}
	is.Conditions, is.Clients, is.RefusedClients = want.Conditions, want.Clients, want.RefusedClients
	return reflect.DeepEqual(is, want)
}

// statusFields returns the status fields that this controller writes.
func statusFields(st v1alpha1.EgressStatus) (map[string]any, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&st)
	if err != nil {
		return nil, err
	}
	delete(fields, "clients")
	delete(fields, "refusedClients")
	return fields, nil
}

// recordChanges records an Event for each condition whose reason changed.
func (c *Controller) recordChanges(e *v1alpha1.Egress, st v1alpha1.EgressStatus) {
	for _, is := range st.Conditions {
		was := meta.FindStatusCondition(e.Status.Conditions, is.Type)
		good := is.Status == metav1.ConditionTrue
		if was == nil && good || was != nil && was.Reason == is.Reason {
			continue
		}
		kind := corev1.EventTypeWarning
		if good {
			kind = corev1.EventTypeNormal
		}
		note := is.Message
		if note == "" {
			note = fmt.Sprintf("%s is %s", is.Type, is.Status)
		}
		c.events.Eventf(e, nil, kind, is.Reason, "Report", "%s", note)
	}
}

var (
	famGateways  = metric.New("berth_operator_egress_gateways", "gauge", "Gateways of an Egress by state: desired (spec.replicas), ready (they take connections) or ending (they serve those that they have).", "namespace", "egress", "state")
	famCondition = metric.New("berth_operator_egress_condition", "gauge", "1 while a condition of an Egress (Available, ServiceReady) is True, 0 while it is not, with its reason.", "namespace", "egress", "type", "reason")
	famApplied   = metric.New("berth_operator_egress_applies_total", "counter", "Objects of Egresses that were sent to the API server, by kind and result: success or error. Unchanged objects are not sent.", "kind", "result")
)

// Families returns the metrics, for the reference page.
var Families = []metric.Family{famGateways, famCondition, famApplied}

// Metrics measures the work for Egresses. It is safe for concurrent use.
type Metrics struct{ applies *prometheus.CounterVec }

// NewMetrics returns metrics that are not registered.
func NewMetrics() *Metrics {
	m := &Metrics{famApplied.Counter()}
	for _, kind := range gatewayplan.Kinds {
		for _, result := range metric.Results {
			m.applies.WithLabelValues(kind.Kind, result) // so that rate() sees the first increment
		}
	}
	return m
}

// Collectors returns the collectors to register.
func (m *Metrics) Collectors() []prometheus.Collector { return []prometheus.Collector{m.applies} }

func (m *Metrics) applied(kind string, err error) {
	m.applies.WithLabelValues(kind, metric.Result(err)).Inc()
}

// Gauges collects gateways and conditions of Egresses from the cache on each scrape.
func (c *Controller) Gauges() prometheus.Collector {
	return metric.Collector(func(emit func(metric.Family, float64, ...string)) {
		list, err := objects.List[v1alpha1.EgressList](context.Background(), c.client)
		if err != nil {
			return // the cache is not synced yet
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
