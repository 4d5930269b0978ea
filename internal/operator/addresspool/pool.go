package addresspool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
)

const (
	// reportEvery is how often a pool's counts are written at most.
	reportEvery = time.Second
	// deletePause is how often a pool that is being deleted is looked at, apart
	// from when one of its blocks goes.
	deletePause = 10 * time.Second
)

// lookAtPool accepts a pool's subnets, gives its blocks to the book, and writes
// its status; or follows its deletion.
func (c *Controller) lookAtPool(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
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
	if controllerutil.AddFinalizer(p, v1alpha1.FinalizerPool) {
		return reconcile.Result{}, c.patchFinalizers(ctx, p) // the change brings it back here
	}
	why, retry, err := c.accept(ctx, p)
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := c.open(p, closed(p, why)); err != nil {
		return reconcile.Result{}, err
	}
	wait, err := c.report(ctx, p, why)
	if retry > 0 && (wait == 0 || retry < wait) {
		wait = retry
	}
	return reconcile.Result{RequeueAfter: wait}, err
}

// closed is why a pool gives no block at all, if so: none of its subnets is
// accepted.
func closed(p *v1alpha1.AddressPool, why *refusal) *refusal {
	if accepted(p) > 0 {
		return nil
	}
	return why
}

// open takes a pool's accepted subnets into the book.
func (c *Controller) open(p *v1alpha1.AddressPool, closed *refusal) error {
	l, err := layout(p, accepted(p))
	if err != nil {
		return fmt.Errorf("AddressPool %s: accepted subnets: %w", p.Name, err)
	}
	c.again(&c.requests, c.book.open(p, l, closed)...)
	return nil
}

// accept grants a pool the subnets that are nobody else's, and tells why not
// more, and when to try again if an event will not tell.
//
// What is granted is written before a block is cut of it, and then all pools are
// read once more: of two operators that grant overlapping subnets at once, the
// one that writes later sees the other's, and takes its own back.
func (c *Controller) accept(ctx context.Context, p *v1alpha1.AddressPool) (why *refusal, retry time.Duration, err error) {
	before := p.Status.AcceptedSubnets
	if accepted(p) == len(p.Spec.Subnets) {
		return nil, 0, nil
	}
	pools, blocks := &v1alpha1.AddressPoolList{}, &v1alpha1.AddressBlockList{}
	if err := errors.Join(c.live.List(ctx, pools), c.client.List(ctx, blocks, client.UnsafeDisableDeepCopy)); err != nil {
		return nil, 0, fmt.Errorf("accept AddressPool %s: %w", p.Name, err)
	}
	n, why := decide(p.Name, pools.Items, blocks.Items)
	if why != nil {
		retry = c.o.Sweep // in case the end of what is in the way is missed
	}
	if int32(n) == before {
		return why, retry, nil
	}
	if err := failpoint.Hit("operator.pool.accept.before"); err != nil {
		return nil, 0, err
	}
	if err := c.writeAccepted(ctx, p, int32(n)); err != nil {
		return nil, 0, err
	}
	if err := failpoint.Hit("operator.pool.accept.after"); err != nil {
		return nil, 0, err
	}
	if err := c.live.List(ctx, pools); err != nil {
		return nil, 0, fmt.Errorf("accept AddressPool %s: look at all pools again: %w", p.Name, err)
	}
	if clashes := clash(p.Name, pools.Items); clashes != nil {
		c.o.Logger.Warn("two pools were accepted at once; taking this one back", "pool", p.Name, "because", clashes)
		why = &refusal{v1alpha1.ReasonPoolOverlaps, "spec.subnets: " + clashes.Error()}
		return why, time.Second + rand.N(4*time.Second), c.writeAccepted(ctx, p, before)
	}
	c.o.Logger.Info("subnets accepted", "pool", p.Name, "subnets", n)
	return why, retry, nil
}

// writeAccepted writes how many subnets are accepted, unless somebody wrote to
// the pool meanwhile.
func (c *Controller) writeAccepted(ctx context.Context, p *v1alpha1.AddressPool, n int32) error {
	before := p.DeepCopy()
	p.Status.AcceptedSubnets = n
	err := c.client.Status().Patch(ctx, p, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(v1alpha1.OwnerOperator))
	if err != nil {
		return fmt.Errorf("accept %d subnets of AddressPool %s: %w", n, p.Name, err)
	}
	return nil
}

// report writes a pool's counts and conditions, if they changed and some time
// has passed since the last time; else it tells when to come back.
func (c *Controller) report(ctx context.Context, p *v1alpha1.AddressPool, why *refusal) (time.Duration, error) {
	before := p.DeepCopy()
	n := c.book.counts(p.Name)
	s := &p.Status
	s.Blocks, s.Addresses, s.NextIndex = n.blocks, n.addresses, n.next
	set := func(kind string, yes bool, reason, message string) {
		status := metav1.ConditionFalse
		if yes {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message,
			ObservedGeneration: p.Generation, LastTransitionTime: metav1.NewTime(c.now()),
		})
	}
	switch {
	case p.DeletionTimestamp != nil:
		set(v1alpha1.ConditionReady, false, v1alpha1.ReasonPoolDeleted, fmt.Sprintf("%d blocks are still there; each goes with the last pod that has one of its addresses", n.blocks.Allocated))
	case why != nil:
		set(v1alpha1.ConditionReady, false, why.reason, why.message)
	default:
		set(v1alpha1.ConditionReady, true, "Ready", "")
	}
	full := n.blocks.Total > 0 && n.blocks.Free == 0
	if full {
		set(v1alpha1.ConditionExhausted, true, v1alpha1.ReasonPoolExhausted, fmt.Sprintf("all %d blocks are given: append a subnet, or wait until a node returns one", n.blocks.Total))
	} else {
		set(v1alpha1.ConditionExhausted, false, "BlocksFree", "")
	}
	if reflect.DeepEqual(before.Status, p.Status) {
		return 0, nil
	}
	c.mu.Lock()
	wait := c.reported[p.Name].Add(reportEvery).Sub(c.now())
	if wait <= 0 {
		c.reported[p.Name] = c.now()
	}
	c.mu.Unlock()
	if wait > 0 {
		return wait, nil
	}
	if err := c.client.Status().Patch(ctx, p, client.MergeFrom(before), client.FieldOwner(v1alpha1.OwnerOperator)); err != nil {
		return 0, fmt.Errorf("write the status of AddressPool %s: %w", p.Name, client.IgnoreNotFound(err))
	}
	c.tell(before, p)
	return 0, nil
}

// tell makes events of conditions that turned.
func (c *Controller) tell(before, p *v1alpha1.AddressPool) {
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionExhausted} {
		was, is := meta.FindStatusCondition(before.Status.Conditions, kind), meta.FindStatusCondition(p.Status.Conditions, kind)
		good := metav1.ConditionTrue
		if kind == v1alpha1.ConditionExhausted {
			good = metav1.ConditionFalse
		}
		if is == nil || was != nil && was.Status == is.Status && was.Reason == is.Reason || was == nil && is.Status == good {
			continue
		}
		if is.Status == good {
			c.events.Eventf(p, nil, corev1.EventTypeNormal, is.Reason, "Healed", "%s is %s again", kind, is.Status)
			continue
		}
		c.events.Eventf(p, nil, corev1.EventTypeWarning, is.Reason, "Told", "%s", is.Message)
	}
}

// deletePool gives no block any more, has the blocks deleted, which then drain at
// their nodes, and lets the pool go after the last of them.
func (c *Controller) deletePool(ctx context.Context, p *v1alpha1.AddressPool) (reconcile.Result, error) {
	why := &refusal{v1alpha1.ReasonPoolDeleted, fmt.Sprintf("AddressPool %s is being deleted", p.Name)}
	if err := c.open(p, why); err != nil {
		return reconcile.Result{}, err
	}
	if err := c.deleteBlocks(ctx, p.Name); err != nil {
		return reconcile.Result{}, err
	}
	left := &v1alpha1.AddressBlockList{}
	if err := c.live.List(ctx, left, client.MatchingFields{"poolName": p.Name}, client.Limit(1)); err != nil {
		return reconcile.Result{}, fmt.Errorf("look for blocks of AddressPool %s: %w", p.Name, err)
	}
	if len(left.Items) == 0 && c.book.counts(p.Name).making == 0 {
		if controllerutil.RemoveFinalizer(p, v1alpha1.FinalizerPool) {
			return reconcile.Result{}, client.IgnoreNotFound(c.patchFinalizers(ctx, p))
		}
		return reconcile.Result{}, nil
	}
	wait, err := c.report(ctx, p, why)
	if wait == 0 {
		wait = deletePause
	}
	return reconcile.Result{RequeueAfter: wait}, err
}

// deleteBlocks has all blocks of a pool deleted.
func (c *Controller) deleteBlocks(ctx context.Context, name string) error {
	blocks := &v1alpha1.AddressBlockList{}
	if err := c.client.List(ctx, blocks, client.MatchingFields{byPool: name}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list blocks of pool %s: %w", name, err)
	}
	for i := range blocks.Items {
		b := &blocks.Items[i]
		if b.DeletionTimestamp != nil {
			continue
		}
		err := c.client.Delete(ctx, &v1alpha1.AddressBlock{ObjectMeta: metav1.ObjectMeta{Name: b.Name}}, client.Preconditions{UID: &b.UID})
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete AddressBlock %s: %w", b.Name, err)
		}
	}
	return nil
}

// poolGone forgets a pool. Blocks that outlived it, which only somebody who took
// its finalizer off can bring about, are deleted and drain at their nodes.
func (c *Controller) poolGone(ctx context.Context, name string) error {
	c.again(&c.requests, c.book.drop(name)...)
	if err := c.reconsider(ctx); err != nil {
		return err
	}
	blocks := &v1alpha1.AddressBlockList{}
	err := c.client.List(ctx, blocks, client.MatchingFields{byPool: name}, client.UnsafeDisableDeepCopy)
	if err != nil || len(blocks.Items) == 0 {
		return err
	}
	err = c.live.Get(ctx, client.ObjectKey{Name: name}, &v1alpha1.AddressPool{})
	if !apierrors.IsNotFound(err) {
		return err // it is there, and the cache will tell
	}
	return c.deleteBlocks(ctx, name)
}

// reconsider has pools looked at again that were refused a subnet: what they
// overlapped may be gone.
func (c *Controller) reconsider(ctx context.Context) error {
	pools := &v1alpha1.AddressPoolList{}
	if err := c.client.List(ctx, pools, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list AddressPools from the cache: %w", err)
	}
	for i := range pools.Items {
		if p := &pools.Items[i]; accepted(p) < len(p.Spec.Subnets) {
			c.again(&c.poolsQ, p.Name)
		}
	}
	return nil
}

// patchFinalizers writes a pool's finalizers, unless somebody wrote to the pool
// meanwhile.
func (c *Controller) patchFinalizers(ctx context.Context, o client.Object) error {
	body := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q,"finalizers":%s}}`, o.GetResourceVersion(), quoted(o.GetFinalizers()))
	err := c.client.Patch(ctx, o, client.RawPatch("application/merge-patch+json", body), client.FieldOwner(v1alpha1.OwnerOperator))
	if err != nil {
		return fmt.Errorf("write the finalizers of %s: %w", o.GetName(), err)
	}
	return nil
}
