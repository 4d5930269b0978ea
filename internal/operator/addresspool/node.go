package addresspool

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
)

// lookAtNode releases the blocks and requests of a node that has given them up
// (document 001, "Garbage Collection"). Its work does not grow with the cluster.
func (c *Controller) lookAtNode(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	blocks, requests := &v1alpha1.AddressBlockList{}, &v1alpha1.BlockRequestList{}
	of := client.MatchingFields{byNode: q.Name}
	if err := c.client.List(ctx, blocks, of, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list blocks of %s: %w", q.Name, err)
	}
	if err := c.client.List(ctx, requests, of, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list requests of %s: %w", q.Name, err)
	}
	if len(blocks.Items)+len(requests.Items) == 0 {
		c.mu.Lock()
		delete(c.signs, q.Name)
		c.mu.Unlock()
		return reconcile.Result{}, nil
	}
	n := &corev1.Node{}
	err := c.client.Get(ctx, q.NamespacedName, n, client.UnsafeDisableDeepCopy)
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("read Node %s from the cache: %w", q.Name, err)
	}
	gone := err != nil
	left, known := c.left(q.Name, gone, n, blocks.Items, requests.Items)
	switch {
	case !known:
		return reconcile.Result{}, nil
	case left > 0:
		return reconcile.Result{RequeueAfter: left}, nil
	case gone:
		// The cache may be old, and this cannot be undone.
		err := c.live.Get(ctx, q.NamespacedName, &corev1.Node{})
		if !apierrors.IsNotFound(err) {
			return reconcile.Result{RequeueAfter: c.o.Grace}, err
		}
	}
	return c.release(ctx, q.Name, gone, blocks.Items, requests.Items)
}

// left tells how long it is until a node has given up what it has.
func (c *Controller) left(name string, gone bool, n *corev1.Node, blocks []v1alpha1.AddressBlock, requests []v1alpha1.BlockRequest) (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.signs[name]
	if s == nil {
		s = &sign{}
		c.signs[name] = s
	}
	now := c.now()
	s.look(now, gone, blocks, requests)
	if gone {
		return s.lapsed(now, c.o.Grace)
	}
	return fenced(n, now, c.o.DownAfter)
}

// release takes a node's blocks away, each as it was looked at: a claim that is
// renewed in this moment stops it.
func (c *Controller) release(ctx context.Context, node string, gone bool, blocks []v1alpha1.AddressBlock, requests []v1alpha1.BlockRequest) (reconcile.Result, error) {
	why := "its Node is out of service"
	if gone {
		why = "its Node is gone, and its daemon silent"
	}
	for i := range requests {
		r := &requests[i]
		err := c.client.Delete(ctx, &v1alpha1.BlockRequest{ObjectMeta: metav1.ObjectMeta{Name: r.Name}}, client.Preconditions{UID: &r.UID})
		if client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("delete BlockRequest %s: %w", r.Name, err)
		}
	}
	for i := range blocks {
		b := blocks[i].DeepCopy()
		if b.DeletionTimestamp == nil {
			err := c.client.Delete(ctx, &v1alpha1.AddressBlock{ObjectMeta: metav1.ObjectMeta{Name: b.Name}}, client.Preconditions{UID: &b.UID, ResourceVersion: &b.ResourceVersion})
			if client.IgnoreNotFound(err) != nil {
				return reconcile.Result{}, fmt.Errorf("delete AddressBlock %s: %w", b.Name, err)
			}
			continue // its deletion brings the node back here
		}
		if !controllerutil.RemoveFinalizer(b, v1alpha1.FinalizerBlock) {
			continue
		}
		if err := c.patchFinalizers(ctx, b); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("release AddressBlock %s: %w", b.Name, err)
		}
		c.o.Logger.Warn("block released", "block", b.Name, "node", node, "because", why)
	}
	return reconcile.Result{}, nil
}
