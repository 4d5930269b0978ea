package nodeenis

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/internal/operator/watched"
)

// An object that outlived its node is deleted (Cilium's AWS ENI
// allocator, "Node Termination"): its Node has been gone for a while, or its instance has, and
// the Node is not ready either. Never while the daemon reports: a node that
// runs pods without a Node would lose its object, make another, and lose that.
// An instance that EC2 does not know while its Node is ready is a wrong
// spec.instanceID or a wrong region, not a node that is gone.
//
// Deleting too early is harmless to pods: the daemon keeps serving from what it
// has, the ENIs stay the instance's, and the daemon makes the object anew.

// nodeEvents passes on what deleteIfGone looks at.
func nodeEvents() builder.WatchesOption {
	type state struct {
		ready      bool
		uid        types.UID
		providerID string
		labels     string
	}
	return watched.NodeChanges(func(n *corev1.Node) state {
		return state{watched.Ready(n), n.UID, n.Spec.ProviderID, labels.FormatLabels(n.Labels)}
	})
}

// deleteIfGone deletes the object if its node, of which k is the Node, is gone for
// long enough.
func (c *Controller) deleteIfGone(ctx context.Context, n *node, k *corev1.Node) error {
	gone := k == nil
	now := c.now()
	n.mu.Lock()
	changed := !gone && watched.Readiness(k) != nil && n.liveness.setReady(watched.Ready(k))
	o, since := n.obj, n.liveness.goneSince(n.madeAt, gone, !gone && watched.Ready(k) && isOf(k, n.instanceID), now)
	at := time.Time{}
	if !since.IsZero() && o.DeletionTimestamp == nil {
		at = since.Add(c.o.Grace)
	}
	n.liveness.deleteAt = at
	n.mu.Unlock()
	if changed {
		c.fleet.CheckInstance(n.name)
	}
	if at.IsZero() || at.After(now) {
		return nil
	}
	return c.deleteObject(ctx, o, gone)
}

// isOf tells whether a Node is of an instance, as far as it says.
func isOf(k *corev1.Node, instanceID string) bool {
	of := nodenetwork.InstanceOf(k.Spec.ProviderID)
	return of == "" || of == instanceID
}

// deleteObject deletes the very state of the object that was looked at, after asking
// past the cache whether the Node really is gone.
func (c *Controller) deleteObject(ctx context.Context, o *v1alpha1.NodeNetwork, nodeGone bool) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if nodeGone {
		err := c.live.Get(ctx, client.ObjectKey{Name: o.Name}, &corev1.Node{})
		if err == nil {
			return errors.New("the cache lacks a Node that exists; looking again")
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("read Node %s: %w", o.Name, err)
		}
	}
	err := c.client.Delete(ctx, o.DeepCopy(), client.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion})
	if apierrors.IsConflict(err) {
		return nil // somebody wrote to it; its event comes
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete NodeNetwork %s: %w", o.Name, err)
	}
	c.o.Logger.Info("object deleted, as its node is gone", "node", o.Name, "instance", o.Spec.InstanceID, "nodeGone", nodeGone)
	return nil
}
