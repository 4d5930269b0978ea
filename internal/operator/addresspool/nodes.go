package addresspool

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/operator/watched"
)

// nodeEvents passes on changes of what reconcileNode uses: Nodes are updated often.
func nodeEvents() builder.ForOption {
	type state struct {
		ready     corev1.ConditionStatus
		fenced    bool
		addresses string
	}
	return watched.NodeChanges(func(n *corev1.Node) state {
		s := state{fenced: watched.OutOfService(n), addresses: fmt.Sprint(nodeAddresses(n))}
		if c := watched.Readiness(n); c != nil {
			s.ready = c.Status
		}
		return s
	})
}

// reconcileNode keeps a node's addresses from pods, and releases what it has given
// up. Its work does not grow with the cluster.
func (c *Controller) reconcileNode(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	wait, err := c.occupy(ctx, q.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	result, err := c.releaseLeft(ctx, q)
	result.RequeueAfter = sooner(wait, result.RequeueAfter)
	return result, err
}

// releaseLeft releases the blocks and requests of a node that has given them up
// (Coil's design, "Garbage Collection").
func (c *Controller) releaseLeft(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	n := &corev1.Node{}
	err := c.client.Get(ctx, q.NamespacedName, n, client.UnsafeDisableDeepCopy)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("read Node %s from the cache: %w", q.Name, err)
	}
	gone := err != nil
	if _, down := fenced(n, c.now(), c.o.DownAfter); !gone && !down {
		c.forgetLiveness(q.Name)
		return reconcile.Result{}, nil // as nearly always
	}
	blocks, requests := &v1alpha1.AddressBlockList{}, &v1alpha1.BlockRequestList{}
	of := client.MatchingFields{byNode: q.Name}
	if err := c.client.List(ctx, blocks, of, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list blocks of %s: %w", q.Name, err)
	}
	if err := c.client.List(ctx, requests, of, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list requests of %s: %w", q.Name, err)
	}
	if len(blocks.Items)+len(requests.Items) == 0 {
		c.forgetLiveness(q.Name)
		return reconcile.Result{}, nil
	}
	if left := c.left(q.Name, gone, n, blocks.Items, requests.Items); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	if sure, err := c.sure(ctx, q.Name, gone); !sure || err != nil {
		return reconcile.Result{RequeueAfter: c.o.Grace}, err
	}
	return reconcile.Result{}, c.release(ctx, gone, blocks.Items, requests.Items)
}

func (c *Controller) forgetLiveness(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.liveness, name)
}

// left tells how long it is until a node has given up, or lost, what it has.
func (c *Controller) left(name string, gone bool, n *corev1.Node, blocks []v1alpha1.AddressBlock, requests []v1alpha1.BlockRequest) time.Duration {
	now := c.now()
	if !gone {
		c.forgetLiveness(name)
		left, _ := fenced(n, now, c.o.DownAfter)
		return left
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.liveness[name]
	if s == nil {
		s = &liveness{}
		c.liveness[name] = s
	}
	s.observe(now, blocks, requests)
	return s.left(now, c.o.Grace)
}

// sure asks past the cache whether a node really is as it seems: what follows
// cannot be undone.
func (c *Controller) sure(ctx context.Context, name string, gone bool) (bool, error) {
	n := &corev1.Node{}
	switch err := c.live.Get(ctx, client.ObjectKey{Name: name}, n); {
	case apierrors.IsNotFound(err):
		return gone, nil
	case err != nil:
		return false, fmt.Errorf("read Node %s: %w", name, err)
	case gone:
		return false, nil
	}
	left, down := fenced(n, c.now(), c.o.DownAfter)
	return down && left <= 0, nil
}

// release takes a node's blocks away, each as it was read: a block whose
// daemon renews its claim in this moment stays.
func (c *Controller) release(ctx context.Context, gone bool, blocks []v1alpha1.AddressBlock, requests []v1alpha1.BlockRequest) error {
	why := "its Node is out of service"
	if gone {
		why = "its Node is gone, and its daemon silent"
	}
	for i := range requests {
		r := &requests[i]
		if err := c.delete(ctx, r); err != nil {
			return fmt.Errorf("delete BlockRequest %s: %w", r.Name, err)
		}
	}
	for i := range blocks {
		if err := c.releaseBlock(ctx, &blocks[i], why); err != nil {
			return err
		}
	}
	return nil
}

// releaseBlock takes one step: a block is deleted first, which brings its node
// back, and then its finalizer is taken off.
func (c *Controller) releaseBlock(ctx context.Context, b *v1alpha1.AddressBlock, why string) error {
	if b.DeletionTimestamp == nil {
		gone := &v1alpha1.AddressBlock{ObjectMeta: metav1.ObjectMeta{Name: b.Name}}
		err := c.client.Delete(ctx, gone, client.Preconditions{UID: &b.UID, ResourceVersion: &b.ResourceVersion})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete AddressBlock %s: %w", b.Name, err)
		}
		return failpoint.Hit("operator.pool.release.deleted")
	}
	before := b
	b = b.DeepCopy()
	if !controllerutil.RemoveFinalizer(b, v1alpha1.FinalizerBlock) {
		return nil
	}
	if err := c.writeFinalizers(ctx, b, before); client.IgnoreNotFound(err) != nil {
		return err
	}
	c.o.Logger.Warn("block released", "block", b.Name, "node", b.NodeName, "because", why)
	return failpoint.Hit("operator.pool.release.after")
}
