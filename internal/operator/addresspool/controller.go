package addresspool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/internal/operator/watched"
)

var _ = failpoint.Register(
	"operator.pool.finalizer.after", "operator.pool.accept.before", "operator.pool.accept.after", "operator.pool.end.before",
	"operator.pool.cut.before", "operator.pool.cut.after", "operator.pool.answer.after",
	"operator.pool.release.deleted", "operator.pool.release.after",
)

// Options configure a Controller. A zero duration means the default given below, except for
// DownAfter; the other fields are optional.
type Options struct {
	Clock  clock.Clock
	Logger *slog.Logger

	// Grace is how long a Node must be missing, and its daemon silent, before the node's blocks
	// are released; default 2 min.
	Grace time.Duration
	// DownAfter is how long a Node tainted as out of service must have been not ready before
	// its blocks are released; 0: never.
	DownAfter time.Duration
	// Sweep is the interval at which all objects are reconciled; default 10 min.
	Sweep time.Duration

	// MaxPods limits how many pods of a node count towards its block quota; 0 disables quotas.
	MaxPods int

	// RequestRefused is called with the reason when a request is refused because of its node's
	// quota. It must not block.
	RequestRefused func(reason string)
	// RequestServed is called with the time from a request's creation, which has a resolution of
	// one second, to its answer with a block. It must not block.
	RequestServed func(time.Duration)
}

const (
	// requestWorkers is how many requests are answered, and blocks deleted, concurrently. A request
	// takes two writes of some milliseconds each. API servers queue the calls of a client that
	// makes many more than ten at a time.
	requestWorkers = 16
	// nodeWorkers is how many nodes, or blocks, are reconciled concurrently. Few of them cause a
	// write.
	nodeWorkers = 4
	// unconfirmedFor is how long an index stays allocated without a watch event for its block.
	// After that, the block is read from the API server.
	unconfirmedFor = time.Minute
)

// api is the shared access of this package's controllers to the Kubernetes API, clock and log.
type api struct {
	cached client.Client // reads from the cache
	live   client.Reader // reads from the API server
	events events.EventRecorder
	clock  clock.Clock
	log    *slog.Logger
}

// queues are the workqueues of the four controllers.
type queues struct{ pools, requests, nodes, blocks queue.Queue }

// Controller accepts pools, allocates their blocks to nodes, and releases blocks.
type Controller struct {
	api         *api
	queues      *queues
	allocator   *allocator
	quotas      *quotas
	inherited   *inherited
	withholding *withholding
	pools       *pools
	requests    *requests
	nodes       *nodes
}

// Setup adds the controllers to mgr, whose cache must have been created with Watches. They run
// while mgr leads.
func Setup(ctx context.Context, mgr ctrl.Manager, o Options) (*Controller, error) {
	o.Grace = cmp.Or(o.Grace, 2*time.Minute)
	o.Sweep = cmp.Or(o.Sweep, 10*time.Minute)
	c := newController(&api{
		mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder(v1alpha1.OwnerOperator),
		cmp.Or[clock.Clock](o.Clock, clock.Real{}), cmp.Or(o.Logger, slog.New(slog.DiscardHandler)),
	}, o)
	byNode := func(of func(client.Object) string) handler.EventHandler { return queue.Named(of) }
	err := errors.Join(
		indexFields(ctx, mgr.GetFieldIndexer()),
		// One worker: pools are accepted one at a time. It starts, and opens the pools, only when the
		// allocator knows all blocks; no block is allocated before that.
		c.queues.pools.Complete(ctrl.NewControllerManagedBy(mgr).Named("addresspool").For(&v1alpha1.AddressPool{}).
			Watches(&v1alpha1.AddressBlock{}, queue.OnChange(c.blockChanged)), 1, c.pools.reconcile),
		c.queues.requests.Complete(ctrl.NewControllerManagedBy(mgr).Named("blockrequest").For(&v1alpha1.BlockRequest{}).
			WatchesMetadata(&corev1.Namespace{}, queue.Map(c.refusedRequests), builder.WithPredicates(predicate.AnnotationChangedPredicate{})),
			requestWorkers, c.inherited.before(c.requests.reconcile)),
		c.queues.nodes.Complete(ctrl.NewControllerManagedBy(mgr).Named("blocknode").For(&corev1.Node{}, nodeEvents()).
			Watches(&v1alpha1.AddressBlock{}, byNode(func(o client.Object) string { return o.(*v1alpha1.AddressBlock).NodeName })).
			Watches(&v1alpha1.BlockRequest{}, byNode(func(o client.Object) string { return o.(*v1alpha1.BlockRequest).Spec.NodeName })),
			nodeWorkers, c.nodes.reconcile),
		c.queues.blocks.Complete(ctrl.NewControllerManagedBy(mgr).Named("addressblock").For(&v1alpha1.AddressBlock{}),
			nodeWorkers, c.inherited.before(c.withholding.reconcile)),
		mgr.Add(manager.RunnableFunc(c.inherited.run)),
		mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { return c.sweepEvery(ctx, o.Sweep) })),
	)
	if err != nil {
		return nil, fmt.Errorf("set up address pool controllers: %w", err)
	}
	return c, nil
}

func newController(a *api, o Options) *Controller {
	q, alloc, quotas, occupied := &queues{}, newAllocator(), newQuotas(), newOccupied()
	w := &withholding{api: a, queues: q, allocator: alloc, occupied: occupied}
	i := &inherited{api: a, allocator: alloc, quotas: quotas, withholding: w, ready: make(chan struct{})}
	return &Controller{
		api: a, queues: q, allocator: alloc, quotas: quotas, inherited: i, withholding: w,
		pools: &pools{
			api: a, queues: q, allocator: alloc, quotas: quotas, withholding: w, reported: map[string]time.Time{},
			acceptance: &acceptance{api: a, queue: &q.pools, withholding: w, states: map[string]*poolState{}},
		},
		requests: newRequests(a, &q.requests, alloc, occupied, i, quotas, o),
		nodes:    &nodes{api: a, withholding: w, grace: o.Grace, downAfter: o.DownAfter, liveness: map[string]*liveness{}},
	}
}

// blockChanged passes created and deleted blocks to the allocator and queues their pools.
func (c *Controller) blockChanged(_ context.Context, before, after client.Object, q queue.Adder) {
	if after != nil {
		b := after.(*v1alpha1.AddressBlock)
		c.allocator.observe(b.PoolName, b.Index)
		c.quotas.observe(b.Name)
		q.Add(queue.Request(b.PoolName))
		return
	}
	b := before.(*v1alpha1.AddressBlock)
	c.quotas.observe(b.Name)
	c.queues.requests.Add(c.allocator.release(b.PoolName, b.Index)...)
	c.queues.requests.Add(c.quotas.refusedFor(func(node, pool string) bool { return node == b.NodeName && pool == b.PoolName })...)
	q.Add(queue.Request(b.PoolName))
}

// refusedRequests queues refused requests when the annotations of a namespace change: its pods
// may use another pool now.
func (c *Controller) refusedRequests(context.Context, client.Object) (out []client.ObjectKey) {
	for _, name := range c.quotas.refusedFor(func(string, string) bool { return true }) {
		out = append(out, client.ObjectKey{Name: name})
	}
	return out
}

// sweepEvery reconciles all objects periodically, in case an event was missed.
func (c *Controller) sweepEvery(ctx context.Context, interval time.Duration) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.api.clock.After(interval):
		}
		if err := c.sweep(ctx); err != nil {
			c.api.log.Warn("block sweep failed, will try again", "err", err)
		}
	}
}

func (c *Controller) sweep(ctx context.Context) error {
	c.withholding.readServices(ctx)
	blocks, err := objects.List[v1alpha1.AddressBlockList](ctx, c.api.cached)
	if err != nil {
		return err
	}
	all, err := objects.List[v1alpha1.BlockRequestList](ctx, c.api.cached)
	if err != nil {
		return err
	}
	for i := range blocks.Items {
		c.queues.nodes.Add(blocks.Items[i].NodeName)
		c.queues.pools.Add(blocks.Items[i].PoolName)
		c.queues.blocks.Add(blocks.Items[i].Name)
	}
	for i := range all.Items {
		c.queues.nodes.Add(all.Items[i].Spec.NodeName)
		c.queues.requests.Add(all.Items[i].Name)
	}
	c.withholding.recheckUnusable()
	old := c.api.clock.Now().Add(-unconfirmedFor)
	c.quotas.expire(old)
	for _, s := range c.allocator.unconfirmedBefore(old) {
		err = errors.Join(err, c.requests.verify(ctx, s))
	}
	return err
}

// Usage returns the usage of all pools, ordered by name. It does not block.
func (c *Controller) Usage() []Usage { return c.allocator.usage() }

// Watches returns the kinds that the cache of a manager used with Setup must watch.
func Watches() []*watched.Kind {
	return []*watched.Kind{
		watched.Nodes, watched.Namespaces,
		watched.Of(&v1alpha1.AddressPool{}, &v1alpha1.AddressPoolList{}, nil),
		watched.Of(&v1alpha1.AddressBlock{}, &v1alpha1.AddressBlockList{}, nil),
		watched.Of(&v1alpha1.BlockRequest{}, &v1alpha1.BlockRequestList{}, nil),
	}
}

// Index fields of the cache.
const (
	byPool    = "pool"
	byNode    = "node"
	byRequest = "request"
)

func indexFields(ctx context.Context, ix client.FieldIndexer) error {
	return watched.Index(ctx, ix,
		watched.ByOne(byPool, func(o *v1alpha1.AddressBlock) string { return o.PoolName }),
		watched.ByOne(byNode, func(o *v1alpha1.AddressBlock) string { return o.NodeName }),
		watched.ByOne(byRequest, func(o *v1alpha1.AddressBlock) string { return string(o.RequestUID) }),
		watched.ByOne(byPool, func(o *v1alpha1.BlockRequest) string { return o.Spec.PoolName }),
		watched.ByOne(byNode, func(o *v1alpha1.BlockRequest) string { return o.Spec.NodeName }),
	)
}

// BlocksOf returns the blocks of a node from the cache of a manager used with Setup. The caller
// must not modify them.
func BlocksOf(ctx context.Context, r client.Reader, node string) ([]v1alpha1.AddressBlock, error) {
	list, err := objects.List[v1alpha1.AddressBlockList](ctx, r, client.MatchingFields{byNode: node})
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", node, err)
	}
	return list.Items, nil
}

// requestsOf returns the requests of a node from the cache. The caller must not modify them.
func (a *api) requestsOf(ctx context.Context, node string) ([]v1alpha1.BlockRequest, error) {
	list, err := objects.List[v1alpha1.BlockRequestList](ctx, a.cached, client.MatchingFields{byNode: node})
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", node, err)
	}
	return list.Items, nil
}

// allBlocks reads all blocks from the API server, page by page. An error ends the sequence.
func (a *api) allBlocks(ctx context.Context, of ...client.ListOption) iter.Seq2[*v1alpha1.AddressBlock, error] {
	return func(yield func(*v1alpha1.AddressBlock, error) bool) {
		next := ""
		for {
			// A new list for each page: decoding into a used one would keep fields absent from the page.
			list, err := objects.List[v1alpha1.AddressBlockList](ctx, a.live, slices.Concat(of, []client.ListOption{client.Limit(objects.PageSize), client.Continue(next)})...)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range list.Items {
				if !yield(&list.Items[i], nil) {
					return
				}
			}
			if next = list.Continue; next == "" {
				return
			}
		}
	}
}
