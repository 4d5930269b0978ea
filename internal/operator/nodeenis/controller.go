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
	// Describe queries an instance from EC2. The error is of class cloud.Gone if it does not exist.
	Describe(ctx context.Context, instanceID string) (cloud.Instance, error)
}

// Options configure a Controller. A zero duration means the default given below; Clock, Logger and
// DemandServed may be nil.
type Options struct {
	Fleet    Fleet
	Identity Identity
	Clock    clock.Clock
	Logger   *slog.Logger

	// Grace is how long a Node must be gone, or an instance vanished, and the daemon silent, before
	// the object is deleted; default 1 min.
	Grace time.Duration
	// Settle is how long an address that another operator took away is not published, whatever EC2
	// lists; default 1 min, as fleet.Config.Settle.
	Settle time.Duration

	// DemandServed is called with the time during which a node had more waiting pods than free
	// addresses. It must not block.
	DemandServed func(time.Duration)
	// Settings returns whether it is known which settings the chart installed, and how the operator's differ from
	// them; optional.
	Settings func() (known bool, message string)
}

// concurrency is how many objects are reconciled concurrently. It does not limit how much the fleet
// publishes.
const concurrency = 16

// Controller passes the settings of NodeNetworks to the fleet, and writes the addresses that the fleet
// obtains into them.
type Controller struct {
	o      Options
	fleet  Fleet
	client client.Client // reads from the cache
	live   client.Reader // reads from the API server
	events events.EventRecorder
	queue  queue.Queue

	claims      *claims
	recreations *recreations
	news        newsLimits

	mu    sync.Mutex // guards nodes; never held across I/O
	nodes map[string]*node
}

// Setup adds a controller to mgr, whose cache must have been created with Watches. It runs while mgr
// leads.
func Setup(mgr ctrl.Manager, o Options) (*Controller, error) {
	if o.Fleet == nil {
		return nil, errors.New("set up NodeNetwork controller: Fleet is required")
	}
	o.Clock = cmp.Or[clock.Clock](o.Clock, clock.Real{})
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Grace = cmp.Or(o.Grace, time.Minute)
	o.Settle = cmp.Or(o.Settle, time.Minute)
	c := &Controller{
		o: o, fleet: o.Fleet, client: mgr.GetClient(), live: mgr.GetAPIReader(),
		events: mgr.GetEventRecorder(v1alpha1.OwnerOperator), claims: newClaims(), recreations: newRecreations(), news: newNewsLimits(), nodes: map[string]*node{},
	}
	err := watched.Index(context.Background(), mgr.GetFieldIndexer(), watched.ByOne(podsByNode, func(p *corev1.Pod) string { return p.Spec.NodeName }))
	if err != nil {
		return nil, fmt.Errorf("set up NodeNetwork controller: %w", err)
	}
	again := true // tests run several in one process
	err = ctrl.NewControllerManagedBy(mgr).Named("nodenetwork").
		For(&v1alpha1.NodeNetwork{}).
		Watches(&v1alpha1.NodeNetwork{}, queue.OnChange(c.appeared)).
		Watches(&corev1.Node{}, &handler.EnqueueRequestForObject{}, nodeEvents()).
		Watches(&corev1.Pod{}, queue.OnChange(c.podChanged)).
		Watches(&v1alpha1.NodeNetworkTemplate{}, queue.Map(c.everyNode)).
		WatchesRawSource(c.queue.Source()).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency, SkipNameValidation: &again}).
		Complete(c)
	if err != nil {
		return nil, fmt.Errorf("set up NodeNetwork controller: %w", err)
	}
	return c, nil
}

func (c *Controller) now() time.Time { return c.o.Clock.Now() }

func (c *Controller) node(name string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[name]
}

// waitingChanged notifies a node and the fleet that the number of waiting pods changed.
func (c *Controller) waitingChanged(name string) {
	if n := c.node(name); n != nil {
		n.trackDemand()
		c.fleet.Kick(name)
	}
}

// appeared queues a new object before others if pods wait on its node. When the operator starts, all objects are new, and
// those of a large cluster take a minute.
func (c *Controller) appeared(_ context.Context, before, after client.Object, _ queue.Adder) {
	if o, ok := after.(*v1alpha1.NodeNetwork); ok && before == nil && o.Status.IPAM.Waiting > 0 {
		c.queue.Add(o.Name)
	}
}

// Reconcile implements reconcile.Reconciler: it takes the new state of one object and does what is due.
// Its work does not grow with the cluster.
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
	// write schedules the next reconciliation.
	if err := n.write(ctx, everything, began); err != nil && !errors.Is(err, errForeign) {
		c.o.Logger.Debug("NodeNetwork not written, will try again", "node", n.name, "err", err)
	}
	return reconcile.Result{}, nil
}

// forget stops managing the node of a deleted object.
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

// adopt returns the node of an object. If the object was recreated or its instance changed, it is
// another node.
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

// Watches returns the kinds that the cache of a manager used with Setup must watch.
func Watches() []*watched.Kind {
	return []*watched.Kind{
		watched.Nodes,
		Objects,
		watched.Of(&v1alpha1.NodeNetworkTemplate{}, &v1alpha1.NodeNetworkTemplateList{}, nil),
		watched.WaitingPods,
	}
}

// trimObject is the form of trim for a cache.TransformFunc.
func trimObject(in any) (any, error) {
	if o, ok := in.(*v1alpha1.NodeNetwork); ok {
		trim(o)
	}
	return in, nil
}

// trim reduces the memory of a NodeNetwork. It drops the names of pods, which are for users, and all
// managed fields except the writer of spec.ipam.available, and interns the few ENI IDs. Every stored
// object is trimmed, whether it comes from the watch or from the reply to a write.
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

// ownEntry returns the operator's managed fields entry for spec.ipam, without its set of fields, if the
// operator owns spec.ipam.available. It loses ownership when anybody else changes the field (Kubernetes
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

// byOperator reports whether the last writer of the object's spec.ipam.available was an operator, this
// one or another.
func byOperator(o *v1alpha1.NodeNetwork) bool { return len(o.ManagedFields) > 0 }

// publishedAt returns when an operator last changed spec.ipam, or zero if unknown.
func publishedAt(o *v1alpha1.NodeNetwork) time.Time {
	if !byOperator(o) || o.ManagedFields[0].Time == nil {
		return time.Time{}
	}
	return o.ManagedFields[0].Time.Time
}
