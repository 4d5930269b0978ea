package clients

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/operator/egress/clients/clientplan"
)

// writeSlices writes those slices of an Egress that are to be others, and deletes those of
// one that is gone. wait is when to come again.
func (c *Controller) writeSlices(ctx context.Context, ref membership.Ref, e *clientplan.Egress) (wait time.Duration, err error) {
	writes, have, stale, wait := c.book.due(ref)
	var errs []error
	for name, uid := range stale {
		err := c.deleteSlice(ctx, ref, name, uid)
		if err == nil {
			c.book.removed(ref, name, uid)
		}
		errs = append(errs, err)
	}
	for _, w := range writes {
		if len(w.Clients) == 0 && errors.Join(errs...) != nil {
			break // its clients may be on their way to a slice that could not be written
		}
		is, err := c.writeSlice(ctx, e, w, have[w.Name])
		if err == nil {
			for _, d := range c.book.written(ref, e.UID, w, is) {
				c.o.Metrics.served.WithLabelValues().Observe(d.Seconds())
			}
		}
		errs = append(errs, err)
	}
	return wait, errors.Join(errs...)
}

// writeSlice makes, changes or deletes a slice, and returns how it is then.
func (c *Controller) writeSlice(ctx context.Context, e *clientplan.Egress, w clientplan.Write, have found) (found, error) {
	if len(w.Clients) == 0 {
		if have.uid == "" {
			return have, nil
		}
		return have, c.deleteSlice(ctx, e.Ref, w.Name, have.uid)
	}
	yes := true
	o := &v1alpha1.EgressClientSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.Ref.Namespace, Name: w.Name, ResourceVersion: have.version, UID: have.uid,
			Labels:          map[string]string{v1alpha1.LabelEgress: e.Ref.Name},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Egress", Name: e.Ref.Name, UID: types.UID(e.UID), Controller: &yes}},
		},
		Clients: w.Clients,
	}
	err := failpoint.Around("operator.egressclient.slice", func() error {
		if have.uid == "" {
			return c.client.Create(ctx, o, client.FieldOwner(v1alpha1.OwnerOperator))
		}
		return c.client.Update(ctx, o, client.FieldOwner(v1alpha1.OwnerOperator))
	})
	c.o.Metrics.wrote(kindSlice, err)
	if err != nil {
		return found{}, errors.Join(fmt.Errorf("write slice %s/%s: %w", e.Ref.Namespace, w.Name, err), c.correct(ctx, e.Ref, w.Name, err))
	}
	return found{o.UID, o.ResourceVersion}, nil
}

// correct looks at the API server how a slice is that could not be written because it is not as
// this process believed.
func (c *Controller) correct(ctx context.Context, ref membership.Ref, name string, because error) error {
	if !apierrors.IsConflict(because) && !apierrors.IsAlreadyExists(because) && !apierrors.IsNotFound(because) && !apierrors.IsInvalid(because) {
		return nil
	}
	o := &v1alpha1.EgressClientSlice{}
	err := c.live.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: name}, o)
	switch {
	case apierrors.IsNotFound(err):
		c.book.corrected(ref, name, found{})
		return nil
	case err != nil:
		return fmt.Errorf("look at slice %s/%s: %w", ref.Namespace, name, err)
	}
	c.book.corrected(ref, name, found{o.UID, o.ResourceVersion})
	return nil
}

// deleteSlice deletes a slice, if it is the one that is meant.
func (c *Controller) deleteSlice(ctx context.Context, ref membership.Ref, name string, uid types.UID) error {
	o := &v1alpha1.EgressClientSlice{ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: name}}
	err := failpoint.Around("operator.egressclient.drop", func() error {
		err := c.client.Delete(ctx, o, client.Preconditions{UID: &uid})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // another is there by now
			return nil
		}
		return err
	})
	c.o.Metrics.wrote(kindSlice, err)
	if err != nil {
		return fmt.Errorf("delete slice %s/%s: %w", ref.Namespace, name, err)
	}
	return nil
}

// sayClients writes what an Egress's status says of its clients, if it is to say something
// else. wait is when to come again.
func (c *Controller) sayClients(ctx context.Context, o *v1alpha1.Egress, e *clientplan.Egress) (wait time.Duration, err error) {
	if o == nil {
		return 0, nil
	}
	if err := c.findConsent(ctx, e.Ref); err != nil {
		return 0, err
	}
	want, wait := c.book.status(o, e)
	if want == nil {
		return wait, nil
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "Egress",
		// Not another of its name: of a status the API server minds the version, not the UID.
		"metadata": map[string]any{"namespace": o.Namespace, "name": o.Name, "resourceVersion": o.ResourceVersion},
		"status": map[string]any{
			"clients": int64(want.clients), "refusedClients": int64(want.refused),
			"conditions": []any{map[string]any{
				"type": want.condition.Type, "status": string(want.condition.Status), "reason": want.condition.Reason, "message": want.condition.Message,
				"lastTransitionTime": want.condition.LastTransitionTime.UTC().Format(time.RFC3339), "observedGeneration": o.Generation,
			}},
		},
	}}
	err = failpoint.Around("operator.egressclient.status", func() error {
		return c.client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(v1alpha1.OwnerOperatorClients), client.ForceOwnership)
	})
	c.o.Metrics.wrote(kindStatus, err)
	if apierrors.IsNotFound(err) {
		return 0, nil // its event comes
	}
	if err != nil {
		return 0, fmt.Errorf("write the status of Egress %s: %w", e.Ref, err)
	}
	c.book.said(e.Ref, e.UID, u.GetResourceVersion())
	return 0, nil
}
