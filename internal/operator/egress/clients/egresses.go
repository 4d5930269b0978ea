package clients

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/operator/egress/clients/clientplan"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/queue"
)

// writer writes objects and counts the writes.
type writer struct {
	client  client.Client
	metrics *Metrics
}

// egresses reconciles the EgressClientSlices of Egresses and the client counts in their status.
type egresses struct {
	reader *reader
	state  *state
	queues *queues
	writer writer
}

// reconcile updates the state of an Egress, queues the pods that a change may affect, and writes the
// Egress's slices and counts.
func (c *egresses) reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	if err := c.state.fill(ctx, c.reader); err != nil {
		return reconcile.Result{}, err
	}
	ref := membership.Ref(q.NamespacedName)
	o, err := objects.Get[v1alpha1.Egress](ctx, c.reader.client, q.NamespacedName, objects.Shared)
	if err != nil {
		return reconcile.Result{}, err
	}
	if o != nil && o.DeletionTimestamp != nil {
		o = nil
	}
	now, err := c.update(ctx, ref, o)
	if err != nil {
		return reconcile.Result{}, err
	}
	list, err := objects.List[v1alpha1.EgressClientSliceList](ctx, c.reader.client, client.MatchingFields{byEgress: ref.String()})
	if err != nil {
		return reconcile.Result{}, err
	}
	for i := range list.Items {
		c.state.observeSlice(ref, &list.Items[i])
	}
	next, err := c.writeSlices(ctx, ref, now)
	if err != nil {
		return reconcile.Result{}, err
	}
	again, err := c.writeCounts(ctx, o, now)
	return reconcile.Result{RequeueAfter: queue.Sooner(next, again)}, err
}

// update updates the state of an Egress, which is nil if it does not exist.
func (c *egresses) update(ctx context.Context, ref membership.Ref, o *v1alpha1.Egress) (*clientplan.Egress, error) {
	now := c.state.all().Get(ref)
	if o == nil {
		now = nil
	} else if !now.Reads(o) {
		now = clientplan.NewEgress(o)
	}
	before, after := c.state.setEgress(ref, now)
	had := before.Get(ref)
	if changed := clientplan.Changed(before, after, ref); len(changed) > 0 {
		keys, err := c.reader.affected(ctx, changed, before, after)
		if err != nil {
			c.state.setEgress(ref, had) // so that the retry sees a change as well
			return nil, err
		}
		c.queues.addPods(keys)
		c.state.forgetConsent(changed)
		c.queues.addEgresses(slices.DeleteFunc(changed, func(r membership.Ref) bool { return r == ref }))
	} else if now != nil && (had.Gateways != now.Gateways || had.Migrating != now.Migrating) {
		keys := newPodKeys()
		if err := c.reader.addClients(ctx, keys, ref); err != nil {
			return nil, err
		}
		c.queues.addPods(keys.all())
	}
	return now, nil
}

// writeSlices writes the due slices of an Egress, and deletes those of an earlier Egress of the same
// name. wait is when to come back.
func (c *egresses) writeSlices(ctx context.Context, ref membership.Ref, e *clientplan.Egress) (wait time.Duration, err error) {
	writes, have, stale, wait := c.state.due(ref)
	var errs []error
	for name, uid := range stale {
		err := c.deleteSlice(ctx, ref, name, uid)
		if err == nil {
			c.state.staleDeleted(ref, name, uid)
		}
		errs = append(errs, err)
	}
	for _, w := range writes {
		if len(w.Clients) == 0 && errors.Join(errs...) != nil {
			break // its clients may have moved to a slice that could not be written
		}
		is, err := c.writeSlice(ctx, e, w, have[w.Name])
		if err == nil {
			for _, d := range c.state.sliceWritten(ref, e.UID, w, is) {
				c.writer.metrics.served.WithLabelValues().Observe(d.Seconds())
			}
		}
		errs = append(errs, err)
	}
	return wait, errors.Join(errs...)
}

// writeSlice creates, updates or deletes a slice, and returns its version.
func (c *egresses) writeSlice(ctx context.Context, e *clientplan.Egress, w clientplan.Write, have sliceVersion) (sliceVersion, error) {
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
			return c.writer.client.Create(ctx, o, client.FieldOwner(v1alpha1.OwnerOperator))
		}
		return c.writer.client.Update(ctx, o, client.FieldOwner(v1alpha1.OwnerOperator))
	})
	c.writer.metrics.wrote(kindSlice, err)
	if err != nil {
		return sliceVersion{}, errors.Join(fmt.Errorf("write slice %s/%s: %w", e.Ref.Namespace, w.Name, err), c.correct(ctx, e.Ref, w.Name, err))
	}
	return sliceVersion{o.UID, o.ResourceVersion}, nil
}

// correct reads the version of a slice from the API server after a write that failed because the slice
// had another version than expected.
func (c *egresses) correct(ctx context.Context, ref membership.Ref, name string, because error) error {
	if !apierrors.IsConflict(because) && !apierrors.IsAlreadyExists(because) && !apierrors.IsNotFound(because) && !apierrors.IsInvalid(because) {
		return nil
	}
	o, err := objects.Get[v1alpha1.EgressClientSlice](ctx, c.reader.live, client.ObjectKey{Namespace: ref.Namespace, Name: name})
	if err != nil {
		return err
	}
	is := sliceVersion{}
	if o != nil {
		is = sliceVersion{o.UID, o.ResourceVersion}
	}
	c.state.correctSlice(ref, name, is)
	return nil
}

// deleteSlice deletes a slice, unless another slice has its name by now.
func (c *egresses) deleteSlice(ctx context.Context, ref membership.Ref, name string, uid types.UID) error {
	o := &v1alpha1.EgressClientSlice{ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: name, UID: uid}}
	err := failpoint.Around("operator.egressclient.drop", func() error { return objects.Delete(ctx, c.writer.client, o) })
	c.writer.metrics.wrote(kindSlice, err)
	return err
}

// writeCounts writes the client counts and the condition about clients to an Egress's status if they
// changed. wait is when to come back.
func (c *egresses) writeCounts(ctx context.Context, o *v1alpha1.Egress, e *clientplan.Egress) (wait time.Duration, err error) {
	if o == nil {
		return 0, nil
	}
	if err := c.state.findConsent(ctx, e.Ref, c.reader.namespaces); err != nil {
		return 0, err
	}
	want, wait := c.state.status(o, e)
	if want == nil {
		return wait, nil
	}
	fields := map[string]any{
		"clients": int64(want.clients), "refusedClients": int64(want.refused),
		"conditions": []any{map[string]any{
			"type": want.condition.Type, "status": string(want.condition.Status), "reason": want.condition.Reason, "message": want.condition.Message,
			"lastTransitionTime": want.condition.LastTransitionTime.UTC().Format(time.RFC3339), "observedGeneration": o.Generation,
		}},
	}
	var version string
	err = failpoint.Around("operator.egressclient.status", func() (err error) {
		version, err = objects.ApplyStatus(ctx, c.writer.client, o, v1alpha1.GroupVersion.WithKind("Egress"), v1alpha1.OwnerOperatorClients, fields)
		return err
	})
	c.writer.metrics.wrote(kindStatus, err)
	if err == nil && version != "" {
		c.state.statusWritten(e.Ref, e.UID, version)
	}
	return 0, err
}
