package nodeenis

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/operator/watched"
)

// Fleet manages the nodes' ENIs: a *fleet.Fleet.
type Fleet interface {
	Set(name, instanceID string, s eni.Settings, seed eni.Inventory, n fleet.Node) error
	Remove(name string)
	Kick(name string)
	Invalidate(name string)
	CheckInstance(name string)
	// Describe asks EC2 for an instance. The error is of class cloud.Gone if it does not exist.
	Describe(ctx context.Context, instanceID string) (cloud.Instance, error)
}

// Options configure a Controller. A duration of zero stands for the default named; Clock, Logger
// and DemandServed may be nil.
type Options struct {
	Fleet    Fleet
	Identity Identity
	Clock    clock.Clock
	Logger   *slog.Logger

	// Grace is how long a Node must be gone, or an instance vanished, before
	// the object is deleted, and how long the daemon must have been silent; 1 min.
	Grace time.Duration
	// Settle is how long an address that another operator took away is not published,
	// whatever EC2 lists; 1 min, as fleet.Config.Settle.
	Settle time.Duration

	// DemandServed is called with the time from when a node had more waiting pods than free
	// addresses until it had enough. It must not block.
	DemandServed func(time.Duration)
}

// concurrency is how many objects are reconciled at once. What the fleet publishes is not bound
// by it.
const concurrency = 16

// Controller gives the fleet the settings of NodeNetworks, and writes into them the addresses
// that the fleet gets.
type Controller struct {
	o      Options
	fleet  Fleet
	client client.Client // reads from the cache
	live   client.Reader // reads past it
	events events.EventRecorder
	queue  queue.Queue

	claims      *claims
	recreations *recreations

	mu    sync.Mutex // guards nodes; never held across I/O
	nodes map[string]*node
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
		events: mgr.GetEventRecorder(v1alpha1.OwnerOperator), claims: newClaims(), recreations: newRecreations(), nodes: map[string]*node{},
	}
	err := watched.Index(context.Background(), mgr.GetFieldIndexer(), watched.ByOne(podsByNode, func(p *corev1.Pod) string { return p.Spec.NodeName }))
	if err != nil {
		return nil, fmt.Errorf("controller of NodeNetworks: %w", err)
	}
	again := true // several in one process: tests, and an operator that is started again
	err = ctrl.NewControllerManagedBy(mgr).Named("nodenetwork").
		For(&v1alpha1.NodeNetwork{}).
		Watches(&corev1.Node{}, &handler.EnqueueRequestForObject{}, nodeEvents()).
		Watches(&corev1.Pod{}, queue.OnChange(c.podChanged)).
		Watches(&v1alpha1.NodeNetworkTemplate{}, queue.Map(c.everyNode)).
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

// waitingChanged tells a node that pods came to wait, or do so no more.
func (c *Controller) waitingChanged(name string) {
	if n := c.node(name); n != nil {
		n.trackDemand()
		c.fleet.Kick(name)
	}
}

// Reconcile implements reconcile.Reconciler: it takes the new state of one object and does what
// is due for it. Its work does not grow with the cluster.
func (c *Controller) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	began := c.now()
	o, err := objects.Get[v1alpha1.NodeNetwork](ctx, c.client, q.NamespacedName, objects.Shared)
	switch {
	case err != nil:
		return reconcile.Result{}, err
	case o == nil:
		c.forget(q.Name)
		return reconcile.Result{RequeueAfter: c.recreations.forget(q.Name, began)}, nil
	}
	k, err := objects.Get[corev1.Node](ctx, c.client, q.NamespacedName, objects.Shared)
	if err != nil {
		return reconcile.Result{}, err
	}
	n := c.adopt(o)
	n.update(ctx, o)
	n = c.identify(ctx, n, k)
	if err := c.configure(ctx, n, k); err != nil {
		return reconcile.Result{}, err
	}
	n.mu.Lock()
	expired := n.state.ownership.expire(c.now())
	n.mu.Unlock()
	if expired {
		c.fleet.Invalidate(n.name)
	}
	if err := c.deleteIfGone(ctx, n, k); err != nil {
		return reconcile.Result{}, err
	}
	// It schedules the next reconciliation.
	if err := n.write(ctx, everything, began); err != nil && !errors.Is(err, errForeign) {
		c.o.Logger.Debug("NodeNetwork not written, will try again", "node", n.name, "err", err)
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

// Objects are all NodeNetworks, without the fields that the operator does not read.
var Objects = watched.Of(&v1alpha1.NodeNetwork{}, &v1alpha1.NodeNetworkList{}, trimObject)

// Watches are the kinds that the cache of a manager with Setup keeps.
func Watches() []*watched.Kind {
	return []*watched.Kind{
		watched.Nodes,
		Objects,
		watched.Of(&v1alpha1.NodeNetworkTemplate{}, &v1alpha1.NodeNetworkTemplateList{}, nil),
		watched.WaitingPods,
	}
}

// trimObject is trim as a cache.TransformFunc.
func trimObject(in any) (any, error) {
	if o, ok := in.(*v1alpha1.NodeNetwork); ok {
		trim(o)
	}
	return in, nil
}

// trim makes a NodeNetwork small. It drops the names of pods, which are for people, and all managed
// fields except who wrote spec.ipam.available, and shares the few IDs of ENIs. Every state that
// is kept is trimmed, whether from the watch or from the answer to a write.
func trim(o *v1alpha1.NodeNetwork) {
	o.ManagedFields = ownEntry(o.ManagedFields)
	o.Annotations, o.Labels = nil, nil
	ids := map[string]string{}
	same := func(id string) string {
		if s, ok := ids[id]; ok {
			return s
		}
		ids[id] = id
		return id
	}
	for id := range o.Status.ENI.ENIs {
		ids[id] = id
	}
	for a, at := range o.Spec.IPAM.Available {
		o.Spec.IPAM.Available[a] = v1alpha1.AvailableAddress{Resource: same(at.Resource)}
	}
	for a, u := range o.Status.IPAM.Used {
		u.Owner, u.Resource = "", same(u.Resource)
		o.Status.IPAM.Used[a] = u
	}
}

// ownEntry keeps, without its set of fields, the operator's entry for spec.ipam, if the operator
// owns spec.ipam.available. It does not once anybody else has changed that (Kubernetes
// documentation, "Server-Side Apply", field management).
func ownEntry(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	for _, e := range entries {
		own := e.Manager == v1alpha1.OwnerOperator && e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == ""
		if own && (e.FieldsV1 == nil || bytes.Contains(e.FieldsV1.GetRawBytes(), []byte(`"f:available"`))) {
			e.FieldsV1 = nil
			return []metav1.ManagedFieldsEntry{e}
		}
	}
	return nil
}

// byOperator reports whether an operator, this or another, wrote the object's
// spec.ipam.available last.
func byOperator(o *v1alpha1.NodeNetwork) bool { return len(o.ManagedFields) > 0 }

// publishedAt is when an operator last changed spec.ipam; zero when unknown.
func publishedAt(o *v1alpha1.NodeNetwork) time.Time {
	if !byOperator(o) || o.ManagedFields[0].Time == nil {
		return time.Time{}
	}
	return o.ManagedFields[0].Time.Time
}
