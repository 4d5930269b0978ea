package addresspool

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
)

// deletePause is how often a pool that is being deleted is reconciled,
// besides each time one of its blocks goes.
const deletePause = 10 * time.Second

// reconcilePool accepts a pool's subnets, gives its blocks to the book, and writes
// its status; or follows its deletion.
func (c *Controller) reconcilePool(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	p := &v1alpha1.AddressPool{}
	err := c.client.Get(ctx, q.NamespacedName, p)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, c.poolGone(ctx, q.Name)
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read AddressPool %s from the cache: %w", q.Name, err)
	}
	if p.DeletionTimestamp != nil {
		return c.deletePool(ctx, p)
	}
	before := p.DeepCopy()
	if controllerutil.AddFinalizer(p, v1alpha1.FinalizerPool) {
		if err := c.writeFinalizers(ctx, p, before); err != nil {
			return reconcile.Result{}, err
		}
		return reconcile.Result{}, failpoint.Hit("operator.pool.finalizer.after") // the change brings it back here
	}
	p, s, err := c.accept(ctx, p)
	if err != nil || p == nil {
		return reconcile.Result{}, err
	}
	c.open(p, s)
	wait, err := c.report(ctx, p, s.why)
	if s.why != nil {
		wait = sooner(wait, max(s.until.Sub(c.now()), time.Millisecond))
	}
	return reconcile.Result{RequeueAfter: wait}, err
}

// sooner is the shorter of two waits until a pool is reconciled again; 0 asks for
// no time, as in reconcile.Result.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// open takes what may be cut of a pool into the book: no block is given as long
// as that is nothing.
func (c *Controller) open(p *v1alpha1.AddressPool, s *poolState) {
	l, err := layout(p, s.verified)
	if err != nil { // somebody wrote another status
		s.refuse(p, &refusal{v1alpha1.ReasonPoolInvalid, "spec." + err.Error()}, c.now().Add(askAgain))
	}
	var closed *refusal
	if l.Blocks() == 0 {
		closed = s.why
	}
	c.requests.Add(c.book.open(p, l, closed)...)
	if s.seen != p.Generation { // who may use it, and how much, is in its spec
		s.seen = p.Generation
		c.requests.Add(c.quotas.waiting(func(_, pool string) bool { return pool == p.Name })...)
	}
}

// deletePool gives no block any more, has the blocks deleted, which then drain at
// their nodes, and lets the pool go after the last of them.
func (c *Controller) deletePool(ctx context.Context, p *v1alpha1.AddressPool) (reconcile.Result, error) {
	why := &refusal{v1alpha1.ReasonPoolDeleted, fmt.Sprintf("AddressPool %s is being deleted", p.Name)}
	s := c.stateOf(p)
	s.verified = accepted(p)
	s.refuse(p, why, time.Time{})
	l, _ := layout(p, s.verified) // for counts only
	c.requests.Add(c.book.open(p, l, why)...)

	// No block is begun from here on, so those that were are in the list or made no more.
	making := c.book.counts(p.Name).making
	left, err := c.deleteBlocks(ctx, p.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	if making == 0 && left == 0 {
		cut, err := c.cutFrom(ctx, p.Name, 0)
		if err != nil {
			return reconcile.Result{}, err
		}
		if !cut {
			return reconcile.Result{}, c.removeFinalizer(ctx, p)
		}
	}
	wait, err := c.report(ctx, p, why)
	return reconcile.Result{RequeueAfter: sooner(wait, deletePause)}, err
}

// removeFinalizer takes a pool's finalizer off.
func (c *Controller) removeFinalizer(ctx context.Context, p *v1alpha1.AddressPool) error {
	before := p.DeepCopy()
	if !controllerutil.RemoveFinalizer(p, v1alpha1.FinalizerPool) {
		return nil
	}
	if err := failpoint.Hit("operator.pool.end.before"); err != nil {
		return err
	}
	return client.IgnoreNotFound(c.writeFinalizers(ctx, p, before))
}

// deleteBlocks has all blocks of a pool deleted, and tells how many there are.
func (c *Controller) deleteBlocks(ctx context.Context, name string) (left int, err error) {
	blocks := &v1alpha1.AddressBlockList{}
	if err := c.client.List(ctx, blocks, client.MatchingFields{byPool: name}, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("list blocks of pool %s: %w", name, err)
	}
	var group errgroup.Group
	group.SetLimit(requestWorkers)
	for i := range blocks.Items {
		b := &blocks.Items[i]
		if b.DeletionTimestamp != nil {
			continue
		}
		group.Go(func() error {
			if err := c.delete(ctx, b); err != nil {
				return fmt.Errorf("delete AddressBlock %s: %w", b.Name, err)
			}
			return nil
		})
	}
	return len(blocks.Items), group.Wait()
}

// delete deletes an object that was read. It is no error if it is gone, or there is
// another one of its name.
func (c *Controller) delete(ctx context.Context, o client.Object) error {
	uid := o.GetUID()
	err := c.client.Delete(ctx, o, client.Preconditions{UID: &uid})
	if apierrors.IsConflict(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
}

// poolGone forgets a pool. Blocks that outlived it, which only somebody who took
// its finalizer off can bring about, are deleted and drain at their nodes.
func (c *Controller) poolGone(ctx context.Context, name string) error {
	c.requests.Add(c.book.drop(name)...)
	if _, known := c.states[name]; known {
		delete(c.states, name)
		delete(c.reported, name)
		c.reconsider(name)
	}
	blocks := &v1alpha1.AddressBlockList{}
	err := c.client.List(ctx, blocks, client.MatchingFields{byPool: name}, client.UnsafeDisableDeepCopy, client.Limit(1))
	if err != nil || len(blocks.Items) == 0 {
		return err
	}
	err = c.live.Get(ctx, client.ObjectKey{Name: name}, &v1alpha1.AddressPool{})
	if !apierrors.IsNotFound(err) {
		return err // it is there, and the cache will tell
	}
	_, err = c.deleteBlocks(ctx, name)
	return err
}

// writeFinalizers writes an object's finalizers, unless somebody wrote to it since
// it was as before.
func (c *Controller) writeFinalizers(ctx context.Context, o, before client.Object) error {
	err := c.client.Patch(ctx, o, ifUnchanged(before), client.FieldOwner(v1alpha1.OwnerOperator))
	if err != nil {
		return fmt.Errorf("write the finalizers of %s: %w", o.GetName(), err)
	}
	return nil
}

// ifUnchanged is a patch with what differs from before. If the object has changed
// since, the error is a conflict.
func ifUnchanged(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}
