package addresspool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
)

var _ = failpoint.Register(
	"operator.pool.accept.before", "operator.pool.accept.after",
	"operator.pool.cut.before", "operator.pool.cut.after", "operator.pool.answer.after",
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
	// Sweep is how often everything is looked at again; 10 min.
	Sweep time.Duration

	// RequestServed is told how long a request waited for its block, from its
	// creation, which is a whole second. It must be quick.
	RequestServed func(time.Duration)
}

// cutters is how many blocks are made at once: an API server takes some hundred
// writes a second from one client, each of some milliseconds.
const cutters = 16

// Controller works on pools, requests and the blocks of nodes.
type Controller struct {
	o      Options
	client client.Client // reads from the cache
	live   client.Reader // reads past it
	events events.EventRecorder
	book   *book

	mu       sync.Mutex                                              // guards all below
	requests workqueue.TypedRateLimitingInterface[reconcile.Request] // nil before the start
	poolsQ   workqueue.TypedRateLimitingInterface[reconcile.Request] // likewise
	nodesQ   workqueue.TypedRateLimitingInterface[reconcile.Request] // likewise
	reported map[string]time.Time                                    // when a pool's status was last written
	signs    map[string]*sign                                        // of nodes that have blocks
}

// Setup adds the controllers to mgr, whose cache must have been made with
// CacheByObject. They work while mgr leads.
func Setup(ctx context.Context, mgr ctrl.Manager, o Options) (*Controller, error) {
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Grace <= 0 {
		o.Grace = 2 * time.Minute
	}
	if o.Sweep <= 0 {
		o.Sweep = 10 * time.Minute
	}
	if o.RequestServed == nil {
		o.RequestServed = func(time.Duration) {}
	}
	c := &Controller{
		o: o, client: mgr.GetClient(), live: mgr.GetAPIReader(), events: mgr.GetEventRecorder(v1alpha1.OwnerOperator),
		book: newBook(), reported: map[string]time.Time{}, signs: map[string]*sign{},
	}
	if err := indexFields(ctx, mgr.GetFieldIndexer()); err != nil {
		return nil, fmt.Errorf("controllers of address pools: %w", err)
	}
	again := true // several in one process: tests
	options := func(workers int) controller.Options {
		return controller.Options{MaxConcurrentReconciles: workers, SkipNameValidation: &again}
	}
	named := func(name func(client.Object) string) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			return []reconcile.Request{request(name(o))}
		})
	}
	poolOf := func(o client.Object) string { return o.(*v1alpha1.AddressBlock).PoolName }
	err := errors.Join(
		// One worker: pools are accepted one after the other.
		ctrl.NewControllerManagedBy(mgr).Named("addresspool").For(&v1alpha1.AddressPool{}).
			Watches(&v1alpha1.AddressBlock{}, named(poolOf)).
			WatchesRawSource(c.queue(&c.poolsQ)).WithOptions(options(1)).
			Complete(reconcile.Func(c.lookAtPool)),
		ctrl.NewControllerManagedBy(mgr).Named("blockrequest").For(&v1alpha1.BlockRequest{}).
			Watches(&v1alpha1.AddressBlock{}, c.bookkeeping()).
			WatchesRawSource(c.queue(&c.requests)).WithOptions(options(cutters)).
			Complete(reconcile.Func(c.lookAtRequest)),
		ctrl.NewControllerManagedBy(mgr).Named("blocknode").For(&corev1.Node{}).
			Watches(&v1alpha1.AddressBlock{}, named(func(o client.Object) string { return o.(*v1alpha1.AddressBlock).NodeName })).
			Watches(&v1alpha1.BlockRequest{}, named(func(o client.Object) string { return o.(*v1alpha1.BlockRequest).Spec.NodeName })).
			WatchesRawSource(c.queue(&c.nodesQ)).WithOptions(options(4)).
			Complete(reconcile.Func(c.lookAtNode)),
		mgr.Add(manager.RunnableFunc(c.sweep)),
	)
	if err != nil {
		return nil, fmt.Errorf("controllers of address pools: %w", err)
	}
	return c, nil
}

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

// queue learns the queue of a controller that starts.
func (c *Controller) queue(q *workqueue.TypedRateLimitingInterface[reconcile.Request]) source.Source {
	return source.Func(func(_ context.Context, have workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		*q = have
		return nil
	})
}

// again has objects looked at, or, before the queue is known, leaves that to the
// start, which looks at all.
func (c *Controller) again(q *workqueue.TypedRateLimitingInterface[reconcile.Request], names ...string) {
	c.mu.Lock()
	to := *q
	c.mu.Unlock()
	for _, n := range names {
		if to != nil {
			to.Add(request(n))
		}
	}
}

// bookkeeping keeps the book to the blocks that there are. It never asks for a
// look at a block: requests that may have one that was freed are.
func (c *Controller) bookkeeping() handler.EventHandler {
	seen := func(o client.Object) {
		b := o.(*v1alpha1.AddressBlock)
		c.book.seen(b.PoolName, b.Index)
	}
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, _ queue) { seen(e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ queue) { seen(e.ObjectNew) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			b := e.Object.(*v1alpha1.AddressBlock)
			for _, name := range c.book.freed(b.PoolName, b.Index) {
				q.Add(request(name))
			}
		},
	}
}

// sweep looks at everything now and then, in case an event led to nothing.
func (c *Controller) sweep(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.o.Clock.After(c.o.Sweep):
		}
		blocks, requests := &v1alpha1.AddressBlockList{}, &v1alpha1.BlockRequestList{}
		err := errors.Join(
			c.client.List(ctx, blocks, client.UnsafeDisableDeepCopy), c.client.List(ctx, requests, client.UnsafeDisableDeepCopy))
		if err != nil {
			c.o.Logger.Warn("looking at all blocks, will try again", "error", err)
			continue
		}
		for i := range blocks.Items {
			c.again(&c.nodesQ, blocks.Items[i].NodeName)
			c.again(&c.poolsQ, blocks.Items[i].PoolName)
		}
		for i := range requests.Items {
			c.again(&c.nodesQ, requests.Items[i].Spec.NodeName)
			c.again(&c.requests, requests.Items[i].Name)
		}
	}
}

func (c *Controller) now() time.Time { return c.o.Clock.Now() }
