package egress

import (
	"context"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
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
		return fmt.Errorf("status of Egress %s/%s: %w", e.Namespace, e.Name, err)
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

// says tells whether a status has the fields of another, except those that others write.
func says(is, want v1alpha1.EgressStatus) bool {
	for _, c := range want.Conditions {
		if has := meta.FindStatusCondition(is.Conditions, c.Type); has == nil || !reflect.DeepEqual(*has, c) {
			return false
		}
	}
	is.Conditions, is.Clients, is.RefusedClients = want.Conditions, want.Clients, want.RefusedClients
	return reflect.DeepEqual(is, want)
}

// statusFields are those of a status that this controller writes.
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
