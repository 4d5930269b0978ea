package egress

import (
	"context"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/operator/egress/gatewayplan"
)

// tell writes an Egress's status, if it says something else.
func (c *Controller) tell(ctx context.Context, e *v1alpha1.Egress, problem *gatewayplan.Problem) error {
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
	o := &unstructured.Unstructured{Object: map[string]any{"status": fields}}
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Egress"))
	o.SetNamespace(e.Namespace)
	o.SetName(e.Name)
	// Not another of its name: of a status the API server minds the version, not the UID.
	o.SetResourceVersion(e.ResourceVersion)
	if err := failpoint.Hit("operator.gateways.status.before"); err != nil {
		return err
	}
	err = c.client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(v1alpha1.OwnerOperator), client.ForceOwnership)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the status of Egress %s/%s: %w", e.Namespace, e.Name, err)
	}
	if err := failpoint.Hit("operator.gateways.status.after"); err != nil {
		return err
	}
	c.event(e, st)
	return nil
}

// says tells whether a status has what another says, but for what others write.
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

// event makes Events of conditions whose reason is another than before.
func (c *Controller) event(e *v1alpha1.Egress, st v1alpha1.EgressStatus) {
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
