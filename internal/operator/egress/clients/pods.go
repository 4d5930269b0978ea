package clients

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/operator/egress/clients/clientplan"
	"github.com/berthnet/berth/internal/operator/queue"
)

// reconcilePod sees to it that a pod has the EgressClient that it is to have, and that it is
// served by those Egresses that are to serve it.
func (c *Controller) reconcilePod(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	if err := c.begin(ctx); err != nil {
		return reconcile.Result{}, err
	}
	at := q.NamespacedName
	p, err := c.pod(ctx, at)
	if err != nil {
		return reconcile.Result{}, err
	}
	o := &v1alpha1.EgressClient{}
	if err := c.client.Get(ctx, at, o, client.UnsafeDisableDeepCopy); apierrors.IsNotFound(err) {
		o = nil
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("read EgressClient %s from the cache: %w", at, err)
	}
	s, err := c.see(ctx, p, c.namespace(ctx, at.Namespace), o, c.book.known(), c.book.isServed)
	if err != nil {
		return reconcile.Result{}, err
	}
	c.touch(c.book.note(at, s.entry(c.now())))
	if c.wrote.trails(at, o) {
		return reconcile.Result{}, nil // the event of what was written comes
	}
	if o != nil && s.o == nil {
		return c.removeEnded(ctx, o)
	}
	if p == nil {
		return reconcile.Result{}, nil
	}
	if err := c.write(ctx, s); err != nil {
		return reconcile.Result{}, err
	}
	var again time.Duration
	if !s.since.IsZero() {
		again = max(0, s.since.Add(clientplan.Unconfirmed).Sub(c.now()))
	}
	if s.foreign {
		again = sooner(again, time.Second) // the node may have been given it just now
	}
	if reason, _ := s.waits(); reason == reasonWaiting && len(s.decision.Egresses) > 0 {
		again = sooner(again, max(0, s.waitsUntil().Sub(c.now())))
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// removeEnded deletes the EgressClient of a pod of its name that is no more, or has ended.
func (c *Controller) removeEnded(ctx context.Context, o *v1alpha1.EgressClient) (reconcile.Result, error) {
	if o.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	over, err := c.over(ctx, o)
	if err != nil || !over {
		return reconcile.Result{RequeueAfter: queue.CacheLag}, err
	}
	return reconcile.Result{}, c.remove(ctx, o, "its pod is gone or has ended")
}

// over asks the API server whether the pod of an EgressClient is gone or has ended: the
// cache may not have it yet.
func (c *Controller) over(ctx context.Context, o *v1alpha1.EgressClient) (bool, error) {
	p := &corev1.Pod{}
	err := c.live.Get(ctx, client.ObjectKeyFromObject(o), p)
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("look whether pod %s/%s is over: %w", o.Namespace, o.Name, err)
	}
	return runtimeUID(p) != o.Spec.PodUID || ended(p), nil
}

// write brings the EgressClient of a pod to what is true of it.
func (c *Controller) write(ctx context.Context, s scene) error {
	o, d := s.o, s.decision
	switch {
	case !d.Wanted && o == nil:
		return nil
	case !d.Wanted:
		if err := c.remove(ctx, o, "its pod uses no Egress any more"); err != nil {
			return err
		}
		c.tellLost(s)
		return nil
	case o == nil && s.pod.DeletionTimestamp != nil, o != nil && o.DeletionTimestamp != nil:
		return nil
	case o == nil:
		made, err := c.make(ctx, s)
		if err != nil || made == nil {
			return err
		}
		o = made
	case !slices.Equal(o.Spec.Egresses, d.Egresses) || !slices.Equal(o.Spec.Selected, d.Selected) || !slices.Equal(o.Spec.Refused, d.Refused):
		changed, err := c.change(ctx, s)
		if err != nil || changed == nil {
			return err
		}
		o = changed
	}
	return c.sayReady(ctx, s, o)
}

// make makes the EgressClient of a pod; nil: the cache trails, or the last one of the name is
// going.
func (c *Controller) make(ctx context.Context, s scene) (*v1alpha1.EgressClient, error) {
	p, yes := s.pod, true
	o := &v1alpha1.EgressClient{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: &yes}},
		},
		Spec: v1alpha1.EgressClientSpec{
			PodUID: runtimeUID(p), NodeName: p.Spec.NodeName,
			Egresses: s.decision.Egresses, Selected: s.decision.Selected, Refused: s.decision.Refused,
		},
	}
	err := failpoint.Around("operator.egressclient.make", func() error {
		return c.client.Create(ctx, o, client.FieldOwner(v1alpha1.OwnerOperator))
	})
	c.o.Metrics.wrote(kindClient, err)
	if apierrors.IsAlreadyExists(err) {
		return nil, nil // its events tell
	}
	if err != nil {
		return nil, fmt.Errorf("create EgressClient %s/%s: %w", p.Namespace, p.Name, err)
	}
	c.wrote.note(client.ObjectKeyFromObject(o), o.ResourceVersion)
	c.tell(p, nil, s.decision.Refused)
	c.o.Logger.Debug("EgressClient made", "pod", p.Namespace+"/"+p.Name, "egresses", len(s.decision.Egresses), "refused", len(s.decision.Refused))
	return o, nil
}

// change has an EgressClient say which Egresses its pod uses by now, and returns how it is then;
// nil: it is gone.
func (c *Controller) change(ctx context.Context, s scene) (*v1alpha1.EgressClient, error) {
	body := map[string]any{
		"metadata": map[string]any{"uid": s.o.UID},
		"spec":     map[string]any{"egresses": s.decision.Egresses, "selected": s.decision.Selected, "refused": s.decision.Refused},
	}
	changed, err := c.patch(s.o, "operator.egressclient.change", body, func(o *v1alpha1.EgressClient, patch client.Patch) error {
		return c.client.Patch(ctx, o, patch, client.FieldOwner(v1alpha1.OwnerOperator))
	})
	if err != nil {
		return nil, fmt.Errorf("change EgressClient %s/%s: %w", s.o.Namespace, s.o.Name, err)
	}
	c.tell(s.pod, s.o.Spec.Refused, s.decision.Refused)
	c.tellLost(s)
	c.o.Logger.Debug("EgressClient changed", "pod", s.o.Namespace+"/"+s.o.Name, "egresses", len(s.decision.Egresses), "refused", len(s.decision.Refused))
	return changed, nil
}

// sayReady writes an EgressClient's condition if it is to be another.
func (c *Controller) sayReady(ctx context.Context, s scene, o *v1alpha1.EgressClient) error {
	want, has := s.ready(), o.Status.Conditions
	after := slices.Clone(has)
	if want == nil {
		meta.RemoveStatusCondition(&after, conditionReady)
	} else {
		want.LastTransitionTime = metav1.NewTime(c.now())
		meta.SetStatusCondition(&after, *want)
	}
	if slices.Equal(after, has) {
		return nil
	}
	body := map[string]any{
		// Not another of its name: of a status the API server minds the version, not the UID.
		"metadata": map[string]any{"resourceVersion": o.ResourceVersion},
		"status":   map[string]any{"conditions": after},
	}
	_, err := c.patch(o, "operator.egressclient.ready", body, func(o *v1alpha1.EgressClient, patch client.Patch) error {
		return c.client.Status().Patch(ctx, o, patch, client.FieldOwner(v1alpha1.OwnerOperator))
	})
	if err != nil {
		return fmt.Errorf("write the status of EgressClient %s/%s: %w", o.Namespace, o.Name, err)
	}
	return nil
}

// patch changes an EgressClient as a body says, which names which object is meant, and returns how
// it is then; nil: it is gone.
func (c *Controller) patch(o *v1alpha1.EgressClient, point string, what map[string]any, do func(*v1alpha1.EgressClient, client.Patch) error) (*v1alpha1.EgressClient, error) {
	body, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	target := &v1alpha1.EgressClient{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}}
	err = failpoint.Around(point, func() error { return do(target, client.RawPatch(types.MergePatchType, body)) })
	c.o.Metrics.wrote(kindClient, err)
	if apierrors.IsNotFound(err) {
		return nil, nil // its event comes
	}
	if err != nil {
		return nil, err
	}
	c.wrote.note(client.ObjectKeyFromObject(o), target.ResourceVersion)
	return target, nil
}

// remove deletes an EgressClient.
func (c *Controller) remove(ctx context.Context, o *v1alpha1.EgressClient, why string) error {
	err := failpoint.Around("operator.egressclient.remove", func() error {
		return client.IgnoreNotFound(c.client.Delete(ctx, o.DeepCopy(), client.Preconditions{UID: &o.UID}))
	})
	c.o.Metrics.wrote(kindClient, err)
	if err != nil {
		return fmt.Errorf("delete EgressClient %s/%s: %w", o.Namespace, o.Name, err)
	}
	c.o.Logger.Debug("EgressClient deleted", "pod", o.Namespace+"/"+o.Name, "because", why)
	return nil
}
