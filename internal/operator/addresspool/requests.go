package addresspool

import (
	"context"
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
)

// maxPassed is how many blocks that others have are passed over at a time.
const maxPassed = 1024

// reasonGiven is that of a request that has its block.
const reasonGiven = "BlockGiven"

// reconcileRequest answers a request: with a block, or with why there is none. What
// was done for it before is found by its UID, so that a crash or a lost reply in
// between neither repeats nor loses anything. Two writes make a block: the block,
// and the answer.
func (c *Controller) reconcileRequest(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	if err := c.begun(ctx); err != nil {
		return reconcile.Result{}, err
	}
	r := &v1alpha1.BlockRequest{}
	err := c.client.Get(ctx, q.NamespacedName, r)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("read BlockRequest %s from the cache: %w", q.Name, err)
	}
	if err != nil || r.DeletionTimestamp != nil || meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionComplete) {
		c.quotas.end(q.Name, "")
		return reconcile.Result{}, c.end(ctx, q.Name, "")
	}
	if err := c.end(ctx, q.Name, r.UID); err != nil {
		return reconcile.Result{}, err
	}
	block, err := c.blockOf(ctx, r.UID)
	if err != nil {
		return reconcile.Result{}, err
	}
	if block != "" {
		return reconcile.Result{}, c.answer(ctx, r, block)
	}
	why, drop, err := c.admit(ctx, r)
	if err == nil && why != nil {
		err = c.end(ctx, q.Name, "") // what the book keeps for it is others'
	}
	switch {
	case err != nil:
		return reconcile.Result{}, err
	case drop:
		return reconcile.Result{}, c.drop(ctx, r)
	case why != nil:
		return reconcile.Result{RequeueAfter: c.quotas.refuse(r, c.now())}, c.refuse(ctx, r, why)
	}
	c.quotas.end(q.Name, r.UID)
	block, why, err = c.cut(ctx, r)
	switch {
	case err != nil:
		return reconcile.Result{}, err
	case why != nil:
		return reconcile.Result{}, c.fail(ctx, r, why)
	}
	return reconcile.Result{}, c.answer(ctx, r, block)
}

// end forgets what was noted of a request that is over: one of a name, but not
// the one with the UID keep. The index of a block that was tried for it is free
// if it was not made; if it was, the node has a block more.
func (c *Controller) end(ctx context.Context, name string, keep types.UID) error {
	uncertain, again := c.book.end(name, keep)
	c.requests.Add(again...)
	if uncertain == nil {
		return nil
	}
	return c.verify(ctx, *uncertain)
}

// verify frees an index whose block does not exist.
func (c *Controller) verify(ctx context.Context, s slot) error {
	name := blockName(s.pool, s.index)
	err := c.live.Get(ctx, client.ObjectKey{Name: name}, &v1alpha1.AddressBlock{})
	if apierrors.IsNotFound(err) {
		c.requests.Add(c.book.freed(s.pool, s.index)...)
		return nil
	}
	if err != nil {
		return fmt.Errorf("look whether AddressBlock %s was made: %w", name, err)
	}
	return nil
}

// blockOf finds the block that was cut for a request.
func (c *Controller) blockOf(ctx context.Context, uid types.UID) (string, error) {
	list := &v1alpha1.AddressBlockList{}
	if err := c.client.List(ctx, list, client.MatchingFields{byRequest: string(uid)}, client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("look for the block of request %s: %w", uid, err)
	}
	if len(list.Items) > 0 {
		return list.Items[0].Name, nil
	}
	return c.inherited.block(uid), nil
}

// cut makes the next block of a pool for a request, and returns its name. A
// name that is taken by another is passed over: what the book knows may be old. So is
// a block whose addresses all are others', until a sweep finds that they are not.
func (c *Controller) cut(ctx context.Context, r *v1alpha1.BlockRequest) (string, *refusal, error) {
	for passed := 0; ; {
		o, why := c.book.take(r, c.now())
		if why != nil || o.block != "" {
			c.quotas.release(r)
			return o.block, why, nil
		}
		b := newBlock(r, o)
		b.Withheld = c.occupied.withheldOf(o.piece)
		how, err := c.createUseful(ctx, b, o)
		switch how {
		case made:
			c.quotas.got(r, b.Name, c.now())
		case refused:
			c.quotas.release(r)
		}
		c.requests.Add(c.book.done(r, how, b.Name)...)
		switch how {
		case made:
			c.o.Logger.Info("block cut", "pool", b.PoolName, "block", b.Name, "node", b.NodeName, "ipv4", b.IPv4, "ipv6", b.IPv6)
			return b.Name, nil, failpoint.Hit("operator.pool.cut.after")
		case taken, useless:
			c.o.Logger.Debug("others have the block, or its addresses", "block", b.Name, "node", b.NodeName)
			if passed++; passed >= maxPassed {
				return "", nil, fmt.Errorf("others have %d blocks of pool %s in a row; looking further", passed, b.PoolName)
			}
		default:
			return "", nil, fmt.Errorf("create AddressBlock %s: %w", b.Name, err)
		}
	}
}

// createUseful is create, unless no pod could have an address of the block.
func (c *Controller) createUseful(ctx context.Context, b *v1alpha1.AddressBlock, o offer) (outcome, error) {
	if !hasRoom(o.piece, b.Withheld) {
		return useless, nil
	}
	return c.create(ctx, b)
}

// create makes a block, and tells what came of it.
func (c *Controller) create(ctx context.Context, b *v1alpha1.AddressBlock) (outcome, error) {
	if err := failpoint.Hit("operator.pool.cut.before"); err != nil {
		return refused, err
	}
	request := b.RequestUID
	cause := c.client.Create(ctx, b, client.FieldOwner(v1alpha1.OwnerOperator))
	switch {
	case cause == nil:
		return made, nil
	case apierrors.IsInvalid(cause), apierrors.IsForbidden(cause), apierrors.IsBadRequest(cause), apierrors.IsTooManyRequests(cause):
		return refused, cause
	case !apierrors.IsAlreadyExists(cause):
		return unknown, cause // the next attempt is of the same name
	}
	got := &v1alpha1.AddressBlock{}
	err := c.live.Get(ctx, client.ObjectKey{Name: b.Name}, got)
	switch {
	case apierrors.IsNotFound(err):
		return unknown, cause // it went in this moment
	case err != nil:
		return unknown, fmt.Errorf("%w; looking at it: %w", cause, err)
	case got.RequestUID == request:
		return made, nil
	}
	return taken, nil
}

func blockName(pool string, index int64) string { return fmt.Sprintf("%s-%d", pool, index) }

// newBlock is a block as it is made.
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

// answer completes a request.
func (c *Controller) answer(ctx context.Context, r *v1alpha1.BlockRequest, block string) error {
	before := r.DeepCopy()
	r.Status.AddressBlockName = block
	c.set(r, v1alpha1.ConditionComplete, metav1.ConditionTrue, reasonGiven, "block "+block)
	if meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionFailed) != nil {
		c.set(r, v1alpha1.ConditionFailed, metav1.ConditionFalse, reasonGiven, "")
	}
	if err := c.writeAnswer(ctx, r, before); err != nil {
		return err
	}
	c.o.RequestServed(max(0, c.now().Sub(r.CreationTimestamp.Time)).Round(time.Millisecond))
	return failpoint.Hit("operator.pool.answer.after")
}

// fail tells why there is no block. The book returns the request to reconcile
// again when that may have changed.
func (c *Controller) fail(ctx context.Context, r *v1alpha1.BlockRequest, why *refusal) error {
	if why.reason == v1alpha1.ReasonPoolNotFound {
		err := c.client.Get(ctx, client.ObjectKey{Name: r.Spec.PoolName}, &v1alpha1.AddressPool{}, client.UnsafeDisableDeepCopy)
		if !apierrors.IsNotFound(err) {
			return err // it is there, and was not reconciled yet
		}
	}
	before := r.DeepCopy()
	c.set(r, v1alpha1.ConditionComplete, metav1.ConditionFalse, why.reason, "")
	if !c.set(r, v1alpha1.ConditionFailed, metav1.ConditionTrue, why.reason, why.message) {
		return nil
	}
	c.o.Logger.Info("no block for a request", "request", r.Name, "node", r.Spec.NodeName, "pool", r.Spec.PoolName, "reason", why.reason, "message", why.message)
	return c.writeAnswer(ctx, r, before)
}

// set sets a condition and tells whether that changed it.
func (c *Controller) set(r *v1alpha1.BlockRequest, kind string, status metav1.ConditionStatus, reason, message string) bool {
	return meta.SetStatusCondition(&r.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(c.now()),
	})
}

// writeAnswer writes a request's status, unless it changed since it was read:
// another one may have its name by now. A request that is gone needs none.
func (c *Controller) writeAnswer(ctx context.Context, r, before *v1alpha1.BlockRequest) error {
	err := c.client.Status().Patch(ctx, r, ifUnchanged(before), client.FieldOwner(v1alpha1.OwnerOperator))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("answer BlockRequest %s: %w", r.Name, err)
	}
	return nil
}
