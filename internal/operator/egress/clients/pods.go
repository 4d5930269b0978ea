package clients

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/operator/egress/clients/clientplan"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/queue"
)

// pods gives each pod that uses Egresses its EgressClient.
type pods struct {
	reader *reader
	state  *state
	queues *queues
	writer writer
	events events.EventRecorder
	log    *slog.Logger

	mu sync.Mutex // guards written
	// written are the resource versions of the EgressClients that this process wrote, so that it
	// does not write again what the cache does not show yet.
	written map[types.NamespacedName]string
}

// reconcile writes a pod's EgressClient, and has the slices of the pod's Egresses written.
func (c *pods) reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	if err := c.state.fill(ctx, c.reader); err != nil {
		return reconcile.Result{}, err
	}
	at := q.NamespacedName
	p, err := c.reader.pod(ctx, at)
	if err != nil {
		return reconcile.Result{}, err
	}
	o, err := objects.Get[v1alpha1.EgressClient](ctx, c.reader.client, at, objects.Shared)
	if err != nil {
		return reconcile.Result{}, err
	}
	v, err := c.reader.view(ctx, p, c.reader.namespace(ctx, at.Namespace), o, c.state.all(), c.state.isServed)
	if err != nil {
		return reconcile.Result{}, err
	}
	now := c.reader.clock.Now()
	c.queues.addEgresses(c.state.setPod(at, v.uses(now)))
	switch {
	case c.trails(at, o):
		return reconcile.Result{}, nil // the event of the write comes
	case o != nil && v.o == nil:
		return c.removeEnded(ctx, o)
	case p == nil:
		return reconcile.Result{}, nil
	}
	if err := c.write(ctx, v); err != nil {
		return reconcile.Result{}, err
	}
	var again time.Duration
	if !v.since.IsZero() {
		again = max(0, v.since.Add(clientplan.Unconfirmed).Sub(now))
	}
	if v.foreign {
		again = queue.Sooner(again, time.Second) // the node may have been given the address just now
	}
	if reason, _ := v.waits(); reason == reasonWaiting && len(v.decision.Egresses) > 0 {
		again = queue.Sooner(again, max(0, v.waitsUntil().Sub(now)))
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// trails reports whether an EgressClient as the cache has it (nil: it has none) is older than what was
// written.
func (c *pods) trails(key types.NamespacedName, o *v1alpha1.EgressClient) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	version, has := c.written[key]
	if has && o != nil && newer(version, o.ResourceVersion) {
		return true
	}
	delete(c.written, key)
	return false
}

// wrote takes the resource version of an EgressClient that was written.
func (c *pods) wrote(key types.NamespacedName, version string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written[key] = version
}

// removeEnded deletes the EgressClient of a pod that is gone or has ended.
func (c *pods) removeEnded(ctx context.Context, o *v1alpha1.EgressClient) (reconcile.Result, error) {
	if o.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	// The cache may not have the pod yet.
	p, err := objects.Get[corev1.Pod](ctx, c.reader.live, client.ObjectKeyFromObject(o))
	if err != nil || p != nil && runtimeUID(p) == o.Spec.PodUID && !ended(p) {
		return reconcile.Result{RequeueAfter: queue.CacheLag}, err
	}
	return reconcile.Result{}, c.remove(ctx, o, "its pod is gone or has ended")
}

// write brings a pod's EgressClient to the desired state.
func (c *pods) write(ctx context.Context, v podView) error {
	o, d := v.o, v.decision
	switch {
	case !d.Wanted && o == nil:
		return nil
	case !d.Wanted:
		if err := c.remove(ctx, o, "its pod uses no Egress any more"); err != nil {
			return err
		}
		c.recordLost(v)
		return nil
	case o == nil && v.pod.DeletionTimestamp != nil, o != nil && o.DeletionTimestamp != nil:
		return nil
	case o == nil:
		made, err := c.create(ctx, v)
		if err != nil || made == nil {
			return err
		}
		o = made
	case !slices.Equal(o.Spec.Egresses, d.Egresses) || !slices.Equal(o.Spec.Selected, d.Selected) || !slices.Equal(o.Spec.Refused, d.Refused):
		changed, err := c.change(ctx, v)
		if err != nil || changed == nil {
			return err
		}
		o = changed
	}
	return c.writeReady(ctx, v, o)
}

// create creates a pod's EgressClient; nil: the cache trails, or the last one of the name is still
// being deleted.
func (c *pods) create(ctx context.Context, v podView) (*v1alpha1.EgressClient, error) {
	p, yes := v.pod, true
	o := &v1alpha1.EgressClient{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: &yes}},
		},
		Spec: v1alpha1.EgressClientSpec{
			PodUID: runtimeUID(p), NodeName: p.Spec.NodeName,
			Egresses: v.decision.Egresses, Selected: v.decision.Selected, Refused: v.decision.Refused,
		},
	}
	err := failpoint.Around("operator.egressclient.make", func() error {
		return c.writer.client.Create(ctx, o, client.FieldOwner(v1alpha1.OwnerOperator))
	})
	c.writer.metrics.wrote(kindClient, err)
	if apierrors.IsAlreadyExists(err) {
		return nil, nil // its events come
	}
	if err != nil {
		return nil, fmt.Errorf("create EgressClient %s/%s: %w", p.Namespace, p.Name, err)
	}
	c.wrote(client.ObjectKeyFromObject(o), o.ResourceVersion)
	c.recordRefusals(p, nil, v.decision.Refused)
	c.log.Debug("EgressClient created", "pod", p.Namespace+"/"+p.Name, "egresses", len(v.decision.Egresses), "refused", len(v.decision.Refused))
	return o, nil
}

// change writes to an EgressClient which Egresses its pod uses now, and returns it as it is then;
// nil: it is gone.
func (c *pods) change(ctx context.Context, v podView) (*v1alpha1.EgressClient, error) {
	body := map[string]any{
		"metadata": map[string]any{"uid": v.o.UID},
		"spec":     map[string]any{"egresses": v.decision.Egresses, "selected": v.decision.Selected, "refused": v.decision.Refused},
	}
	changed, err := c.patch(v.o, "operator.egressclient.change", body, func(o *v1alpha1.EgressClient, patch client.Patch) error {
		return c.writer.client.Patch(ctx, o, patch, client.FieldOwner(v1alpha1.OwnerOperator))
	})
	if err != nil {
		return nil, fmt.Errorf("change EgressClient %s/%s: %w", v.o.Namespace, v.o.Name, err)
	}
	c.recordRefusals(v.pod, v.o.Spec.Refused, v.decision.Refused)
	c.recordLost(v)
	c.log.Debug("EgressClient changed", "pod", v.o.Namespace+"/"+v.o.Name, "egresses", len(v.decision.Egresses), "refused", len(v.decision.Refused))
	return changed, nil
}

// writeReady writes an EgressClient's condition if it changed.
func (c *pods) writeReady(ctx context.Context, v podView, o *v1alpha1.EgressClient) error {
	want, has := v.ready(), o.Status.Conditions
	after := slices.Clone(has)
	if want == nil {
		meta.RemoveStatusCondition(&after, conditionReady)
	} else {
		want.LastTransitionTime = metav1.NewTime(c.reader.clock.Now())
		meta.SetStatusCondition(&after, *want)
	}
	if slices.Equal(after, has) {
		return nil
	}
	body := map[string]any{
		// So that it is not another of its name: of a status the API server checks the version, not the UID.
		"metadata": map[string]any{"resourceVersion": o.ResourceVersion},
		"status":   map[string]any{"conditions": after},
	}
	_, err := c.patch(o, "operator.egressclient.ready", body, func(o *v1alpha1.EgressClient, patch client.Patch) error {
		return c.writer.client.Status().Patch(ctx, o, patch, client.FieldOwner(v1alpha1.OwnerOperator))
	})
	if err != nil {
		return fmt.Errorf("write the status of EgressClient %s/%s: %w", o.Namespace, o.Name, err)
	}
	return nil
}

// patch changes an EgressClient by a merge patch, which has its UID or resource version, and returns
// it as it is then; nil: it is gone.
func (c *pods) patch(o *v1alpha1.EgressClient, point string, what map[string]any, do func(*v1alpha1.EgressClient, client.Patch) error) (*v1alpha1.EgressClient, error) {
	body, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	target := &v1alpha1.EgressClient{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}}
	err = failpoint.Around(point, func() error { return do(target, client.RawPatch(types.MergePatchType, body)) })
	c.writer.metrics.wrote(kindClient, err)
	if apierrors.IsNotFound(err) {
		return nil, nil // its event comes
	}
	if err != nil {
		return nil, err
	}
	c.wrote(client.ObjectKeyFromObject(o), target.ResourceVersion)
	return target, nil
}

func (c *pods) remove(ctx context.Context, o *v1alpha1.EgressClient, why string) error {
	err := failpoint.Around("operator.egressclient.remove", func() error {
		return client.IgnoreNotFound(c.writer.client.Delete(ctx, o.DeepCopy(), client.Preconditions{UID: &o.UID}))
	})
	c.writer.metrics.wrote(kindClient, err)
	if err != nil {
		return fmt.Errorf("delete EgressClient %s/%s: %w", o.Namespace, o.Name, err)
	}
	c.log.Debug("EgressClient deleted", "pod", o.Namespace+"/"+o.Name, "because", why)
	return nil
}

// recordRefusals records an Event on a pod for each refusal that is new. A refusal's message is
// no longer than an Event's note may be (clientplan.Most).
func (c *pods) recordRefusals(p *corev1.Pod, before, now []v1alpha1.EgressRefusal) {
	for _, r := range now {
		if !slices.Contains(before, r) {
			c.events.Eventf(p, nil, corev1.EventTypeWarning, "Egress"+r.Reason, "UseEgress", "%s", r.Message)
		}
	}
}

// recordLost records an Event on a pod for each Egress that does not select it any more because its
// namespace, or that of the Egress, says so.
func (c *pods) recordLost(v podView) {
	for _, r := range v.o.Spec.Egresses {
		if slices.Contains(v.decision.Egresses, r) {
			continue
		}
		if why := v.egresses.NotSelected(membership.Ref{Namespace: r.Namespace, Name: r.Name}, v.is); why != "" {
			c.events.Eventf(v.pod, nil, corev1.EventTypeWarning, "EgressNotSelected", "UseEgress", "%s", why)
		}
	}
}
