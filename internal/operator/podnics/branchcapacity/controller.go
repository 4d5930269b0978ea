package branchcapacity

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/internal/operator/nodeenis"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/operator/watched"
)

const (
	// workers is how many Nodes are reconciled at once. Nearly all of that is waiting for the API server.
	workers = 4
	// timeout bounds one reconciliation.
	timeout = 30 * time.Second
)

// Watches returns the kinds that the cache must keep for Setup.
func Watches() []*watched.Kind { return []*watched.Kind{watched.Nodes, nodeenis.Objects} }

// controller writes the capacity of Nodes.
type controller struct {
	client client.Client // reads from the cache
	log    *slog.Logger
}

// Setup adds the controller to mgr, whose cache must have been made with Watches. It works
// while mgr leads.
func Setup(mgr ctrl.Manager, log *slog.Logger) error {
	c := controller{mgr.GetClient(), log}
	err := ctrl.NewControllerManagedBy(mgr).Named("branches").
		For(&corev1.Node{}, nodeChanges()).
		Watches(&v1alpha1.NodeNetwork{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(networkChanges())).
		WithOptions(queue.Options(workers, timeout)).
		Complete(queue.RetryConflicts(c.reconcile))
	if err != nil {
		return fmt.Errorf("controller of branch interfaces: %w", err)
	}
	return nil
}

// nodeChanges passes on the updates of Nodes that change what capacityOf and says read.
func nodeChanges() builder.Predicates {
	type state struct {
		provider string
		named    bool
		capacity int64
	}
	return watched.NodeChanges(func(n *corev1.Node) state {
		q, named := n.Status.Capacity[v1alpha1.ResourceBranches]
		return state{n.Spec.ProviderID, named, q.Value()}
	})
}

// networkChanges passes on the updates of NodeNetworks that change what capacityOf reads. Most others are about
// addresses.
func networkChanges() predicate.Predicate {
	state := func(in client.Object) (of v1alpha1.TrunkENI, instance, kind string) {
		o, ok := in.(*v1alpha1.NodeNetwork)
		if !ok {
			return of, "", ""
		}
		if o.Status.ENI.Trunk != nil {
			of = *o.Status.ENI.Trunk
		}
		return of, o.Spec.InstanceID, o.Spec.InstanceType
	}
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, instanceBefore, typeBefore := state(e.ObjectOld)
		after, instance, kind := state(e.ObjectNew)
		return before != after || instanceBefore != instance || typeBefore != kind
	}}
}

// reconcile writes how many branch interfaces the pods of a Node may have.
func (c controller) reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	n, err := objects.Get[corev1.Node](ctx, c.client, q.NamespacedName, objects.Shared)
	if n == nil {
		return reconcile.Result{}, err
	}
	o, err := objects.Get[v1alpha1.NodeNetwork](ctx, c.client, q.NamespacedName, objects.Shared)
	if err != nil {
		return reconcile.Result{}, err
	}
	capacity := capacityOf(n, o)
	if says(n, capacity) {
		return reconcile.Result{}, nil
	}
	patch, err := patchOf(n, capacity)
	if err != nil {
		return reconcile.Result{}, err
	}
	to := &corev1.Node{}
	to.Name = n.Name
	err = c.client.Status().Patch(ctx, to, client.RawPatch(types.MergePatchType, patch))
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("write the branch interfaces of Node %s: %w", q.Name, err)
	}
	if err != nil {
		return reconcile.Result{}, nil //nolint:nilerr // the Node is gone
	}
	c.log.Info("wrote the branch interfaces of a Node", "node", n.Name, "branches", capacity)
	return reconcile.Result{}, nil
}

// patchOf is a merge patch that changes only this resource, unless the Node has changed since it was read. The cache has
// no other resources of a Node, so that a patch from the difference of two objects would remove them.
func patchOf(n *corev1.Node, capacity int64) ([]byte, error) {
	var value any // nil removes the resource
	if capacity > 0 {
		value = strconv.FormatInt(capacity, 10)
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": n.ResourceVersion},
		"status":   map[string]any{"capacity": map[string]any{v1alpha1.ResourceBranches: value}},
	})
	if err != nil {
		return nil, fmt.Errorf("patch of Node %s: %w", n.Name, err)
	}
	return patch, nil
}

// capacityOf is how many branch interfaces the pods of a Node may have, by its NodeNetwork (nil: there is none). It is 0
// without a trunk of Berth's, with a trunk that is to be removed, and for a Node without the ID of its instance, to
// which no branch could be bound.
func capacityOf(n *corev1.Node, o *v1alpha1.NodeNetwork) int64 {
	if o == nil || nodenetwork.InstanceOf(n.Spec.ProviderID) != o.Spec.InstanceID {
		return 0
	}
	t := o.Status.ENI.Trunk
	if t == nil || t.ID == "" || t.Reason != "" {
		return 0
	}
	return int64(limits.Branches(o.Spec.InstanceType))
}

// says reports whether a Node's capacity is a number of branch interfaces. 0 is written by leaving the resource out: a
// kubelet that restarts ends pods that request a resource of which its Node has 0, but not those that request an unknown one
// (kubernetes/pkg/kubelet/lifecycle/predicate.go, removeMissingExtendedResources).
func says(n *corev1.Node, capacity int64) bool {
	q, named := n.Status.Capacity[v1alpha1.ResourceBranches]
	return named == (capacity > 0) && q.Value() == capacity
}
