package addresspool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/ipam/block"
	"github.com/berthnet/berth/internal/operator/queue"
)

var _ = failpoint.Register(
	"operator.pool.finalizer.after", "operator.pool.accept.before", "operator.pool.accept.after", "operator.pool.end.before",
	"operator.pool.cut.before", "operator.pool.cut.after", "operator.pool.answer.after",
	"operator.pool.release.deleted", "operator.pool.release.after",
)

// Options are what a Controller needs to know. Zero durations take the defaults
// named, but DownAfter; the rest may be nil.
type Options struct {
	Clock  clock.Clock
	Logger *slog.Logger

	// Grace is how long a node's Node must have been missing, and its daemon
	// silent, before its blocks are released; 2 min.
	Grace time.Duration
	// DownAfter is how long a Node that is tainted as out of service must not
	// have been ready before its blocks are released; 0: never.
	DownAfter time.Duration
	// Sweep is how often all objects are reconciled; 10 min.
	Sweep time.Duration

	// MaxPods is how many pods of a node count at most for how many blocks it may
	// have; 0: nodes get what they ask for.
	MaxPods int

	// RequestRefused is told the reason when a request is refused for what its node
	// has or asks for already. It must be quick.
	RequestRefused func(reason string)
	// RequestServed is told how long a request waited for its block, from its
	// creation, which is a whole second. It must be quick.
	RequestServed func(time.Duration)
}

const (
	// requestWorkers is how many requests are answered at once, and blocks deleted. A
	// request is two writes of some milliseconds each, nearly all of it waiting;
	// more than some ten of one client at a time and an API server queues them.
	requestWorkers = 16
	// nodeWorkers is how many nodes are reconciled at once, which seldom leads to a
	// write.
	nodeWorkers = 4
	// reconcileTimeout bounds the reconciliation of one object.
	reconcileTimeout = 30 * time.Second
	// unconfirmedFor is how long an index is taken without its block having been
	// seen in a watch, before the block is read from the API server.
	unconfirmedFor = time.Minute
)

// Controller works on pools, requests and the blocks of nodes.
type Controller struct {
	o         Options
	client    client.Client // reads from the cache
	live      client.Reader // reads past it
	events    events.EventRecorder
	book      *book
	quotas    *quotas
	occupied  *occupied
	inherited *inherited

	// Of the one worker that looks at pools.
	states   map[string]*poolState
	reported map[string]time.Time // when a pool's status was last written

	requests, pools, nodes, blocks queue.Queue

	mu       sync.Mutex           // guards liveness
	liveness map[string]*liveness // of nodes that have blocks and no Node
}

// Setup adds the controllers to mgr, whose cache must have been made with
// Watches. They work while mgr leads.
func Setup(ctx context.Context, mgr ctrl.Manager, o Options) (*Controller, error) {
	o.Clock = cmp.Or[clock.Clock](o.Clock, clock.Real{})
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Grace = cmp.Or(o.Grace, 2*time.Minute)
	o.Sweep = cmp.Or(o.Sweep, 10*time.Minute)
	if o.RequestRefused == nil {
		o.RequestRefused = func(string) {}
	}
	if o.RequestServed == nil {
		o.RequestServed = func(time.Duration) {}
	}
	c := &Controller{
		o: o, client: mgr.GetClient(), live: mgr.GetAPIReader(), events: mgr.GetEventRecorder(v1alpha1.OwnerOperator),
		book: newBook(), quotas: newQuotas(), occupied: newOccupied(), inherited: &inherited{ready: make(chan struct{})},
		states: map[string]*poolState{}, reported: map[string]time.Time{}, liveness: map[string]*liveness{},
	}
	if err := indexFields(ctx, mgr.GetFieldIndexer()); err != nil {
		return nil, fmt.Errorf("controllers of address pools: %w", err)
	}
	err := errors.Join(
		// One worker: pools are accepted one after the other. It starts once the
		// book has all blocks, and opens the pools; no block is cut before.
		ctrl.NewControllerManagedBy(mgr).Named("addresspool").For(&v1alpha1.AddressPool{}).
			Watches(&v1alpha1.AddressBlock{}, c.bookkeeping()).
			WatchesRawSource(c.pools.Source()).WithOptions(queue.Options(1, reconcileTimeout)).
			Complete(queue.RetryConflicts(c.reconcilePool)),
		ctrl.NewControllerManagedBy(mgr).Named("blockrequest").For(&v1alpha1.BlockRequest{}).
			WatchesMetadata(&corev1.Namespace{}, c.namespaces(), builder.WithPredicates(predicate.AnnotationChangedPredicate{})).
			WatchesRawSource(c.requests.Source()).WithOptions(queue.Options(requestWorkers, reconcileTimeout)).
			Complete(queue.RetryConflicts(c.reconcileRequest)),
		ctrl.NewControllerManagedBy(mgr).Named("blocknode").For(&corev1.Node{}, nodeEvents()).
			Watches(&v1alpha1.AddressBlock{}, named(func(o client.Object) string { return o.(*v1alpha1.AddressBlock).NodeName })).
			Watches(&v1alpha1.BlockRequest{}, named(func(o client.Object) string { return o.(*v1alpha1.BlockRequest).Spec.NodeName })).
			WatchesRawSource(c.nodes.Source()).WithOptions(queue.Options(nodeWorkers, reconcileTimeout)).
			Complete(queue.RetryConflicts(c.reconcileNode)),
		ctrl.NewControllerManagedBy(mgr).Named("addressblock").For(&v1alpha1.AddressBlock{}).
			WatchesRawSource(c.blocks.Source()).WithOptions(queue.Options(nodeWorkers, reconcileTimeout)).
			Complete(queue.RetryConflicts(c.reconcileBlock)),
		mgr.Add(manager.RunnableFunc(c.begin)),
		mgr.Add(manager.RunnableFunc(c.sweep)),
	)
	if err != nil {
		return nil, fmt.Errorf("controllers of address pools: %w", err)
	}
	return c, nil
}

// named reconciles the object that another one names.
func named(name func(client.Object) string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return []reconcile.Request{queue.Request(name(o))}
	})
}

// bookkeeping notes in the book which blocks there are, and reconciles the pools
// whose blocks come and go.
func (c *Controller) bookkeeping() handler.EventHandler {
	type adder = workqueue.TypedRateLimitingInterface[reconcile.Request]
	seen := func(o client.Object, q adder) {
		b := o.(*v1alpha1.AddressBlock)
		c.book.seen(b.PoolName, b.Index)
		c.quotas.seen(b.Name)
		q.Add(queue.Request(b.PoolName))
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q adder) { seen(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q adder) { seen(e.ObjectNew, q) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q adder) {
			b := e.Object.(*v1alpha1.AddressBlock)
			c.quotas.seen(b.Name)
			c.requests.Add(c.book.freed(b.PoolName, b.Index)...)
			c.requests.Add(c.quotas.waiting(func(node, pool string) bool { return node == b.NodeName && pool == b.PoolName })...)
			q.Add(queue.Request(b.PoolName))
		},
	}
}

// sweep reconciles all objects now and then, in case an event was missed.
func (c *Controller) sweep(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.o.Clock.After(c.o.Sweep):
		}
		if err := c.sweepOnce(ctx); err != nil {
			c.o.Logger.Warn("looking at all blocks, will try again", "error", err)
		}
	}
}

func (c *Controller) sweepOnce(ctx context.Context) error {
	blocks, requests := &v1alpha1.AddressBlockList{}, &v1alpha1.BlockRequestList{}
	c.readServices(ctx)
	err := errors.Join(c.client.List(ctx, blocks, client.UnsafeDisableDeepCopy), c.client.List(ctx, requests, client.UnsafeDisableDeepCopy))
	if err != nil {
		return err
	}
	for i := range blocks.Items {
		c.nodes.Add(blocks.Items[i].NodeName)
		c.pools.Add(blocks.Items[i].PoolName)
		c.blocks.Add(blocks.Items[i].Name)
	}
	for i := range requests.Items {
		c.nodes.Add(requests.Items[i].Spec.NodeName)
		c.requests.Add(requests.Items[i].Name)
	}
	c.requests.Add(c.book.recheck(func(p block.Block) bool { return hasRoom(p, c.occupied.withheldOf(p)) })...)
	c.quotas.age(c.now().Add(-unconfirmedFor))
	for _, s := range c.book.unconfirmed(c.now().Add(-unconfirmedFor)) {
		err = errors.Join(err, c.verify(ctx, s))
	}
	return err
}

func (c *Controller) now() time.Time { return c.o.Clock.Now() }
