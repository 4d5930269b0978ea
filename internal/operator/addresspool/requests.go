package addresspool

import (
	"context"
	"fmt"
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
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/queue"
)

// maxSkipped is the maximum number of blocks in use that one reconcile skips.
const maxSkipped = 1024

// reasonGiven is the condition reason of a request that has its block.
const reasonGiven = "BlockGiven"

// requests answers BlockRequests with a block, or with the reason why they get none.
type requests struct {
	api       *api
	queue     *queue.Queue
	allocator *allocator
	occupied  *occupied
	inherited *inherited
	quotas    *quotas
	admission *admission

	refused func(reason string)
	served  func(time.Duration)
}

func newRequests(a *api, q *queue.Queue, alloc *allocator, occupied *occupied, i *inherited, quotas *quotas, o Options) *requests {
	r := &requests{
		api: a, queue: q, allocator: alloc, occupied: occupied, inherited: i, quotas: quotas,
		admission: &admission{api: a, quotas: quotas, maxPods: o.MaxPods}, refused: o.RequestRefused, served: o.RequestServed,
	}
	if r.refused == nil {
		r.refused = func(string) {}
	}
	if r.served == nil {
		r.served = func(time.Duration) {}
	}
	return r
}

// reconcile answers a request with two writes: the block, and the answer. It finds earlier work by
// the request's UID, so a crash or lost reply neither repeats nor loses a write.
func (c *requests) reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	r, err := objects.Get[v1alpha1.BlockRequest](ctx, c.api.cached, q.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	if r == nil || r.DeletionTimestamp != nil || meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionComplete) {
		c.quotas.forget(q.Name, "")
		return reconcile.Result{}, c.forget(ctx, q.Name, "")
	}
	if err := c.forget(ctx, q.Name, r.UID); err != nil {
		return reconcile.Result{}, err
	}
	block, err := c.inherited.blockOf(ctx, r.UID)
	if err != nil {
		return reconcile.Result{}, err
	}
	if block != "" {
		return reconcile.Result{}, c.answer(ctx, r, block)
	}
	if !c.allocator.isStarted(r) {
		why, drop, err := c.admission.admit(ctx, r)
		if err == nil && why != nil {
			err = c.forget(ctx, q.Name, "") // the offered block goes to another request
		}
		switch {
		case err != nil:
			return reconcile.Result{}, err
		case drop:
			return reconcile.Result{}, c.drop(ctx, r)
		case why != nil:
			return reconcile.Result{RequeueAfter: c.quotas.refuse(r, c.api.clock.Now())}, c.refuse(ctx, r, why)
		}
	}
	c.quotas.forget(q.Name, r.UID)
	block, why, err := c.allocate(ctx, r)
	switch {
	case err != nil:
		return reconcile.Result{}, err
	case why != nil:
		return reconcile.Result{}, c.fail(ctx, r, why)
	}
	return reconcile.Result{}, c.answer(ctx, r, block)
}

// forget drops the request with this name, unless its UID is keep. If a block was tried for the
// request and does not exist, its index becomes free. If the block exists, the node keeps it as an
// additional block.
func (c *requests) forget(ctx context.Context, name string, keep types.UID) error {
	uncertain, again := c.allocator.forget(name, keep)
	c.queue.Add(again...)
	if uncertain == nil {
		return nil
	}
	return c.verify(ctx, *uncertain)
}

// verify frees an index if the API server has no block with this index.
func (c *requests) verify(ctx context.Context, s slot) error {
	b, err := objects.Get[v1alpha1.AddressBlock](ctx, c.api.live, client.ObjectKey{Name: blockName(s.pool, s.index)})
	if err == nil && b == nil {
		c.queue.Add(c.allocator.release(s.pool, s.index)...)
	}
	return err
}

// allocate creates the next block of a pool for a request, and returns the block's name. It skips
// blocks that already exist (the allocator's state may be stale) and blocks whose addresses are all
// in use, until a sweep finds them free.
func (c *requests) allocate(ctx context.Context, r *v1alpha1.BlockRequest) (string, *refusal, error) {
	for skipped := 0; ; {
		o, why := c.allocator.allocate(r, c.api.clock.Now())
		if why != nil || o.block != "" {
			c.quotas.cancel(r)
			return o.block, why, nil
		}
		b := newBlock(r, o)
		b.Withheld = c.occupied.withheldOf(b.PoolName, o.piece)
		how, err := unusable, error(nil)
		if hasRoom(o.piece, b.Withheld) {
			how, err = c.create(ctx, b)
		}
		switch how {
		case made:
			c.quotas.confirm(r, b.Name, c.api.clock.Now())
		case refused:
			c.quotas.cancel(r)
		}
		c.queue.Add(c.allocator.finish(r, how, b.Name)...)
		switch how {
		case made:
			c.api.log.Info("block allocated", "pool", b.PoolName, "block", b.Name, "node", b.NodeName, "ipv4", b.IPv4, "ipv6", b.IPv6)
			return b.Name, nil, failpoint.Hit("operator.pool.cut.after")
		case taken, unusable:
			c.api.log.Debug("block skipped: it, or all of its addresses, are in use", "block", b.Name, "node", b.NodeName)
			if skipped++; skipped >= maxSkipped {
				return "", nil, fmt.Errorf("%d blocks of pool %s in a row are in use; looking further", skipped, b.PoolName)
			}
		default:
			return "", nil, fmt.Errorf("create AddressBlock %s: %w", b.Name, err)
		}
	}
}

// create creates a block and returns the outcome.
func (c *requests) create(ctx context.Context, b *v1alpha1.AddressBlock) (outcome, error) {
	if err := failpoint.Hit("operator.pool.cut.before"); err != nil {
		return refused, err
	}
	request := b.RequestUID
	cause := c.api.cached.Create(ctx, b, client.FieldOwner(v1alpha1.OwnerOperator))
	switch {
	case cause == nil:
		return made, nil
	case apierrors.IsInvalid(cause), apierrors.IsForbidden(cause), apierrors.IsBadRequest(cause), apierrors.IsTooManyRequests(cause):
		return refused, cause
	case !apierrors.IsAlreadyExists(cause):
		return unknown, cause // the next attempt uses the same name
	}
	got, err := objects.Get[v1alpha1.AddressBlock](ctx, c.api.live, client.ObjectKeyFromObject(b))
	switch {
	case err != nil:
		return unknown, fmt.Errorf("%w; reading it back: %w", cause, err)
	case got == nil:
		return unknown, cause // it was deleted meanwhile
	case got.RequestUID == request:
		return made, nil
	}
	return taken, nil
}

func blockName(pool string, index int64) string { return fmt.Sprintf("%s-%d", pool, index) }

func newBlock(r *v1alpha1.BlockRequest, o offer) *v1alpha1.AddressBlock {
	yes := true
	b := &v1alpha1.AddressBlock{
		ObjectMeta: metav1.ObjectMeta{
			Name: blockName(r.Spec.PoolName, o.index),
			Labels: map[string]string{
				v1alpha1.LabelPool: r.Spec.PoolName, v1alpha1.LabelNode: v1alpha1.NodeLabel(r.Spec.NodeName),
			},
			Finalizers: []string{v1alpha1.FinalizerBlock},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "AddressPool", Name: r.Spec.PoolName, UID: o.pool,
				Controller: &yes, BlockOwnerDeletion: &yes,
			}},
		},
		PoolName: r.Spec.PoolName, NodeName: r.Spec.NodeName, Index: o.index, RequestUID: r.UID,
	}
	if o.piece.IPv4.IsValid() {
		b.IPv4 = o.piece.IPv4.String()
	}
	if o.piece.IPv6.IsValid() {
		b.IPv6 = o.piece.IPv6.String()
	}
	return b
}

// answer completes a request with its block.
func (c *requests) answer(ctx context.Context, r *v1alpha1.BlockRequest, block string) error {
	before := r.DeepCopy()
	r.Status.AddressBlockName = block
	c.setCondition(r, v1alpha1.ConditionComplete, metav1.ConditionTrue, reasonGiven, "block "+block)
	if meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionFailed) != nil {
		c.setCondition(r, v1alpha1.ConditionFailed, metav1.ConditionFalse, reasonGiven, "")
	}
	created := r.CreationTimestamp.Time
	if err := c.writeAnswer(ctx, r, before); err != nil {
		return err
	}
	if r.ResourceVersion == before.ResourceVersion {
		return nil // the request is gone: its node has the block of an earlier answer, or needs none
	}
	c.served(max(0, c.api.clock.Now().Sub(created)).Round(time.Millisecond))
	return failpoint.Hit("operator.pool.answer.after")
}

// refuse fails a request because its node has reached a limit. It also counts the refusal and records
// an Event on the pool, unless the request already failed for the same reason. There is one Event per
// node and reason, however many requests the node makes.
func (c *requests) refuse(ctx context.Context, r *v1alpha1.BlockRequest, why *refusal) error {
	before := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionFailed)
	if before == nil || before.Reason != why.reason {
		c.refused(why.reason)
		if p, err := objects.Get[v1alpha1.AddressPool](ctx, c.api.cached, client.ObjectKey{Name: r.Spec.PoolName}); err == nil && p != nil {
			c.api.events.Eventf(p, nil, corev1.EventTypeWarning, why.reason, "Refuse", "node %s gets no more blocks: see its BlockRequests for the reason", r.Spec.NodeName)
		}
	}
	return c.fail(ctx, r, why)
}

// fail writes the reason why the request gets no block. The allocator returns the request once the
// answer may have changed.
func (c *requests) fail(ctx context.Context, r *v1alpha1.BlockRequest, why *refusal) error {
	if why.reason == v1alpha1.ReasonPoolNotFound {
		p, err := objects.Get[v1alpha1.AddressPool](ctx, c.api.cached, client.ObjectKey{Name: r.Spec.PoolName}, objects.Shared)
		if err != nil || p != nil {
			return err // the pool exists but was not reconciled yet
		}
	}
	before := r.DeepCopy()
	c.setCondition(r, v1alpha1.ConditionComplete, metav1.ConditionFalse, why.reason, "")
	if !c.setCondition(r, v1alpha1.ConditionFailed, metav1.ConditionTrue, why.reason, why.message) {
		return nil
	}
	c.api.log.Info("request for a block failed", "request", r.Name, "node", r.Spec.NodeName, "pool", r.Spec.PoolName, "reason", why.reason, "message", why.message)
	return c.writeAnswer(ctx, r, before)
}

// drop deletes a request of a node that has too many.
func (c *requests) drop(ctx context.Context, r *v1alpha1.BlockRequest) error {
	c.refused(v1alpha1.ReasonTooManyRequests)
	c.api.log.Debug("request deleted: its node has too many older ones", "node", r.Spec.NodeName, "request", r.Name, "kept", maxKept)
	return objects.Delete(ctx, c.api.cached, r)
}

// setCondition sets a condition and reports whether it changed.
func (c *requests) setCondition(r *v1alpha1.BlockRequest, kind string, status metav1.ConditionStatus, reason, message string) bool {
	return meta.SetStatusCondition(&r.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(c.api.clock.Now()),
	})
}

// writeAnswer writes a request's status. The error is a conflict if the request changed since
// it was read: another request may have its name by now.
func (c *requests) writeAnswer(ctx context.Context, r, before *v1alpha1.BlockRequest) error {
	return objects.PatchStatus(ctx, c.api.cached, r, objects.IfUnchanged(before))
}
