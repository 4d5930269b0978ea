package addresspool

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/pool"
)

// lookAtRequest answers a request: with a block, or with why there is none. What
// was done for it before is found by its UID, so that a crash or a lost reply in
// between neither repeats nor loses anything.
func (c *Controller) lookAtRequest(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	r := &v1alpha1.BlockRequest{}
	err := c.client.Get(ctx, q.NamespacedName, r)
	switch {
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, c.abandon(ctx, q.Name, "")
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("read BlockRequest %s from the cache: %w", q.Name, err)
	}
	if err := c.abandon(ctx, r.Name, r.UID); err != nil {
		return reconcile.Result{}, err
	}
	switch {
	case r.DeletionTimestamp != nil || meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionComplete):
		return reconcile.Result{}, nil
	}
	name, err := c.blockOf(ctx, r.UID)
	if err != nil {
		return reconcile.Result{}, err
	}
	if name == "" {
		var why *refusal
		name, why, err = c.cut(ctx, r)
		switch {
		case errors.Is(err, errNotOpen):
			return reconcile.Result{RequeueAfter: openPause}, nil
		case why != nil:
			return reconcile.Result{}, c.fail(ctx, r, why)
		}
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, c.answer(ctx, r, name)
}

// errNotOpen: a pool is there, and was not looked at yet.
var errNotOpen = errors.New("the pool was not looked at yet")

// openPause is how long a pool is waited for that was not looked at yet.
const openPause = 100 * time.Millisecond

// abandon frees the index of a block that was tried, and not made, for a request
// that is gone: one of a name with another UID.
func (c *Controller) abandon(ctx context.Context, name string, uid types.UID) error {
	t, ok := c.book.abandoned(name, uid)
	if !ok {
		return nil
	}
	err := c.live.Get(ctx, client.ObjectKey{Name: blockName(t.pool, t.index)}, &v1alpha1.AddressBlock{})
	if apierrors.IsNotFound(err) {
		c.again(&c.requests, c.book.freed(t.pool, t.index)...)
		return nil
	}
	return err // with any other error the index stays taken until a restart, which is harmless
}

func blockName(pool string, index int64) string { return fmt.Sprintf("%s-%d", pool, index) }

// blockOf finds the block that was cut for a request.
func (c *Controller) blockOf(ctx context.Context, uid types.UID) (string, error) {
	list := &v1alpha1.AddressBlockList{}
	if err := c.client.List(ctx, list, client.MatchingFields{byRequest: string(uid)}, client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("look for the block of request %s: %w", uid, err)
	}
	if len(list.Items) == 0 {
		return "", nil
	}
	return list.Items[0].Name, nil
}

// cut makes the next block of a pool for a request, and returns its name. A
// name that is taken by another is passed over: what the book knows may be old.
func (c *Controller) cut(ctx context.Context, r *v1alpha1.BlockRequest) (string, *refusal, error) {
	for {
		index, piece, uid, why := c.book.take(r)
		if why != nil {
			if why.reason != v1alpha1.ReasonPoolNotFound {
				return "", why, nil
			}
			why, err := c.missing(ctx, r)
			return "", why, err
		}
		b := newBlock(r, index, piece, uid)
		if err := failpoint.Hit("operator.pool.cut.before"); err != nil {
			c.book.done(r, unknown)
			return "", nil, err
		}
		err := c.client.Create(ctx, b, client.FieldOwner(v1alpha1.OwnerOperator))
		how := made
		if err != nil {
			how, err = c.settle(ctx, r, b.Name, err)
		}
		c.book.done(r, how)
		switch how {
		case made:
			c.o.Logger.Info("block cut", "pool", b.PoolName, "block", b.Name, "node", b.NodeName, "ipv4", b.IPv4, "ipv6", b.IPv6)
			return b.Name, nil, failpoint.Hit("operator.pool.cut.after")
		case taken:
			continue
		default:
			return "", nil, fmt.Errorf("create AddressBlock %s: %w", b.Name, err)
		}
	}
}

// missing tells a pool that is not there from one that was not looked at yet.
func (c *Controller) missing(ctx context.Context, r *v1alpha1.BlockRequest) (*refusal, error) {
	name := r.Spec.PoolName
	err := c.client.Get(ctx, client.ObjectKey{Name: name}, &v1alpha1.AddressPool{}, client.UnsafeDisableDeepCopy)
	if err == nil {
		return nil, errNotOpen
	}
	if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("read AddressPool %s from the cache: %w", name, err)
	}
	return notFound(name), nil
}

// settle finds out what became of a block whose creation brought an error.
func (c *Controller) settle(ctx context.Context, r *v1alpha1.BlockRequest, name string, cause error) (outcome, error) {
	switch {
	case apierrors.IsInvalid(cause), apierrors.IsForbidden(cause), apierrors.IsBadRequest(cause), apierrors.IsTooManyRequests(cause):
		return refused, cause
	case !apierrors.IsAlreadyExists(cause):
		return unknown, cause // the next attempt is of the same name
	}
	got := &v1alpha1.AddressBlock{}
	err := c.live.Get(ctx, client.ObjectKey{Name: name}, got)
	switch {
	case apierrors.IsNotFound(err):
		return unknown, cause // it went in this moment
	case err != nil:
		return unknown, fmt.Errorf("%w; looking at it: %w", cause, err)
	case got.RequestUID == r.UID:
		return made, nil
	}
	return taken, cause
}

// newBlock is a block as it is made.
func newBlock(r *v1alpha1.BlockRequest, index int64, piece pool.Block, poolUID types.UID) *v1alpha1.AddressBlock {
	yes := true
	b := &v1alpha1.AddressBlock{
		ObjectMeta: metav1.ObjectMeta{
			Name: blockName(r.Spec.PoolName, index),
			Labels: map[string]string{
				v1alpha1.LabelPool: r.Spec.PoolName, v1alpha1.LabelNode: v1alpha1.NodeLabel(r.Spec.NodeName),
			},
			Finalizers: []string{v1alpha1.FinalizerBlock},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "AddressPool", Name: r.Spec.PoolName, UID: poolUID,
				Controller: &yes, BlockOwnerDeletion: &yes,
			}},
		},
		PoolName: r.Spec.PoolName, NodeName: r.Spec.NodeName, Index: index, RequestUID: r.UID,
	}
	if piece.IPv4.IsValid() {
		b.IPv4 = piece.IPv4.String()
	}
	if piece.IPv6.IsValid() {
		b.IPv6 = piece.IPv6.String()
	}
	return b
}

// answer completes a request.
func (c *Controller) answer(ctx context.Context, r *v1alpha1.BlockRequest, block string) error {
	before := r.DeepCopy()
	r.Status.AddressBlockName = block
	c.set(r, v1alpha1.ConditionComplete, metav1.ConditionTrue, "BlockGiven", "block "+block)
	if meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionFailed) != nil {
		c.set(r, v1alpha1.ConditionFailed, metav1.ConditionFalse, "BlockGiven", "")
	}
	if err := c.patchRequest(ctx, before, r); err != nil {
		return err
	}
	c.o.RequestServed(max(0, c.now().Sub(r.CreationTimestamp.Time)).Round(time.Millisecond))
	return failpoint.Hit("operator.pool.answer.after")
}

// fail tells why there is no block, and has the request looked at again when
// that may have changed.
func (c *Controller) fail(ctx context.Context, r *v1alpha1.BlockRequest, why *refusal) error {
	c.book.wait(r)
	before := r.DeepCopy()
	c.set(r, v1alpha1.ConditionComplete, metav1.ConditionFalse, why.reason, "")
	if !c.set(r, v1alpha1.ConditionFailed, metav1.ConditionTrue, why.reason, why.message) {
		return nil
	}
	c.o.Logger.Info("no block for a request", "request", r.Name, "node", r.Spec.NodeName, "pool", r.Spec.PoolName, "reason", why.reason, "message", why.message)
	return c.patchRequest(ctx, before, r)
}

// set sets a condition and tells whether that changed it.
func (c *Controller) set(r *v1alpha1.BlockRequest, kind string, status metav1.ConditionStatus, reason, message string) bool {
	return meta.SetStatusCondition(&r.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(c.now()),
	})
}

// patchRequest writes a request's status. A request that is gone needs none.
func (c *Controller) patchRequest(ctx context.Context, before, r *v1alpha1.BlockRequest) error {
	err := c.client.Status().Patch(ctx, r, client.MergeFrom(before), client.FieldOwner(v1alpha1.OwnerOperator))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("answer BlockRequest %s: %w", r.Name, err)
	}
	return nil
}
