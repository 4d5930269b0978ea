package nodeenis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/fleet"
	"github.com/berthnet/berth/internal/operator/queue"
)

// Fleet is what works for the nodes: a *fleet.Fleet.
type Fleet interface {
	Set(name, instanceID string, s eni.Settings, seed eni.Inventory, n fleet.Node) error
	Remove(name string)
	Kick(name string)
	Invalidate(name string)
	CheckInstance(name string)
	// Describe asks the cloud for an instance; one that does not exist is of
	// class cloud.Gone.
	Describe(ctx context.Context, instanceID string) (cloud.Instance, error)
}

// Options are what a Controller needs to know. Zero durations take the defaults
// named; Clock, Logger and DemandServed may be nil.
type Options struct {
	Fleet    Fleet
	Identity Identity
	Clock    clock.Clock
	Logger   *slog.Logger

	// Grace is how long a Node must be gone, or an instance vanished, before
	// the object is deleted, and how long the daemon must have been silent; 1 min.
	Grace time.Duration
	// Settle is how long what another operator took away is not published,
	// whatever the cloud lists; 1 min, as fleet.Config.Settle.
	Settle time.Duration

	// DemandServed is told how long it took from more pods than free addresses
	// seen on a node to as many addresses published. It must be quick.
	DemandServed func(time.Duration)
}

// concurrency is how many objects are looked at, or written for news that can
// wait, at once. What the fleet publishes is not bound by it.
const concurrency = 16

// Controller tells the fleet what NodeNetworks ask for, and writes into them
// what it gets.
type Controller struct {
	o      Options
	fleet  Fleet
	client client.Client // reads from the cache
	live   client.Reader // reads past it
	events events.EventRecorder
	queue  queue.Queue

	mu          sync.Mutex // guards all below; memory only
	nodes       map[string]*node
	claims      map[string]map[string]*node // proved objects by instance and name
	recreations map[string]recreation       // by name, also of objects that went lately
}

// Setup adds a controller to mgr, whose cache must have been made with
// Watches. It works while mgr leads.
func Setup(mgr ctrl.Manager, o Options) (*Controller, error) {
	if o.Fleet == nil {
		return nil, errors.New("controller of NodeNetworks: Fleet: want one")
	}
	o.Clock = cmp.Or[clock.Clock](o.Clock, clock.Real{})
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Grace = cmp.Or(o.Grace, time.Minute)
	o.Settle = cmp.Or(o.Settle, time.Minute)
	c := &Controller{
		o: o, fleet: o.Fleet, client: mgr.GetClient(), live: mgr.GetAPIReader(),
		events: mgr.GetEventRecorder(v1alpha1.OwnerOperator), nodes: map[string]*node{}, claims: map[string]map[string]*node{},
		recreations: map[string]recreation{},
	}
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &corev1.Pod{}, podsByNode, nodeOfPod); err != nil {
		return nil, fmt.Errorf("controller of NodeNetworks: %w", err)
	}
	again := true // several in one process: tests, and an operator that is started again
	err := ctrl.NewControllerManagedBy(mgr).Named("nodenetwork").
		For(&v1alpha1.NodeNetwork{}).
		Watches(&corev1.Node{}, &handler.EnqueueRequestForObject{}, nodeEvents()).
		Watches(&corev1.Pod{}, c.podEvents()).
		Watches(&v1alpha1.NodeNetworkTemplate{}, handler.EnqueueRequestsFromMapFunc(c.everyNode)).
		WatchesRawSource(c.queue.Source()).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency, SkipNameValidation: &again}).
		Complete(c)
	if err != nil {
		return nil, fmt.Errorf("controller of NodeNetworks: %w", err)
	}
	return c, nil
}

func (c *Controller) now() time.Time { return c.o.Clock.Now() }

func (c *Controller) node(name string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[name]
}

// podsChanged tells a node that pods came to wait, or do so no more.
func (c *Controller) podsChanged(name string) {
	n := c.node(name)
	if n == nil {
		return
	}
	n.trackDemand()
	c.fleet.Kick(name)
}

// Reconcile implements reconcile.Reconciler: it takes what is new of one
// object and does what is due for it. Its work does not grow with the cluster.
func (c *Controller) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	began := c.now()
	o := &v1alpha1.NodeNetwork{}
	err := c.client.Get(ctx, q.NamespacedName, o, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		c.forget(q.Name)
		return reconcile.Result{RequeueAfter: c.forgetRecreation(q.Name)}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("read NodeNetwork %s from the cache: %w", q.Name, err)
	}
	k := &corev1.Node{}
	err = c.client.Get(ctx, q.NamespacedName, k, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		k = nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("read Node %s from the cache: %w", q.Name, err)
	}
	n := c.adopt(o)
	n.notify(ctx, n.update(o))
	n = c.identify(ctx, n, k)
	if err := c.configure(ctx, n, k); err != nil {
		return reconcile.Result{}, err
	}
	if n.expireSuppressed() {
		c.fleet.Invalidate(n.name)
	}
	if err := c.deleteIfGone(ctx, n, k); err != nil {
		return reconcile.Result{}, err
	}
	// It schedules the next reconciliation (timers.go).
	if err := n.write(ctx, everything, began); err != nil && !errors.Is(err, errForeign) {
		c.o.Logger.Debug("object not written, will try again", "node", n.name, "error", err)
	}
	return reconcile.Result{}, nil
}

// forget ends the work for an object that is gone.
func (c *Controller) forget(name string) {
	c.mu.Lock()
	n, ok := c.nodes[name]
	delete(c.nodes, name)
	c.mu.Unlock()
	if ok {
		c.unclaim(n)
		c.fleet.Remove(name)
		c.o.Logger.Info("node removed", "node", name)
	}
}

// adopt finds an object's node. Another object of the same name, or another
// instance, is another node.
func (c *Controller) adopt(o *v1alpha1.NodeNetwork) *node {
	n := c.node(o.Name)
	if n != nil && n.uid == o.UID && n.instanceID == o.Spec.InstanceID {
		return n
	}
	if n != nil {
		c.forget(o.Name)
	}
	n = c.newNode(o, n != nil && n.uid == o.UID)
	c.mu.Lock()
	c.nodes[o.Name] = n
	c.mu.Unlock()
	c.o.Logger.Info("node added", "node", o.Name, "instance", o.Spec.InstanceID)
	return n
}
