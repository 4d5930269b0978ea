// Package queue has the queues, handlers and options of berth-operator's controllers. A Queue triggers reconciliations without events.
package queue

import (
	"context"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Queue is the queue of a controller. It does nothing before the controller starts, which then reconciles all objects anyway. The zero value is
// ready to use.
type Queue struct {
	to atomic.Pointer[workqueue.TypedRateLimitingInterface[reconcile.Request]]
}

// Source is a source that the controller must watch: it hands over the controller's queue when the controller starts.
func (q *Queue) Source() source.Source {
	return source.Func(func(_ context.Context, to workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		q.to.Store(&to)
		return nil
	})
}

// Add queues objects without a namespace.
func (q *Queue) Add(names ...string) {
	for _, name := range names {
		q.AddAfter(name, 0)
	}
}

// AddAfter queues an object without a namespace after some time. Of several times, the earliest counts.
func (q *Queue) AddAfter(name string, d time.Duration) {
	if to := q.to.Load(); to != nil {
		(*to).AddAfter(Request(name), d)
	}
}

// AddObject queues an object after some time.
func (q *Queue) AddObject(key types.NamespacedName, d time.Duration) {
	if to := q.to.Load(); to != nil {
		(*to).AddAfter(reconcile.Request{NamespacedName: key}, d)
	}
}

// Request returns the request for an object without a namespace.
func Request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

const (
	// firstRetry and lastRetry limit the delay after a failed reconciliation, which doubles. lastRetry is also the maximum delay once the API
	// server is available again.
	firstRetry = 50 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// CacheLag is how long to wait for the cache to show a write that is known to have happened.
const CacheLag = 100 * time.Millisecond

// Options returns the options of a controller with this many workers, each of which takes at most timeout per object. A failed object is
// retried after 50 ms, with delays that double up to 10 s.
func Options(workers int, timeout time.Duration) controller.Options {
	again := true // tests run several in one process
	return controller.Options{
		MaxConcurrentReconciles: workers, SkipNameValidation: &again, ReconciliationTimeout: timeout,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
	}
}

// RetryConflicts reconciles an object again after CacheLag, without logging an error, if a write was rejected because the object had changed.
func RetryConflicts(look reconcile.Func) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
		result, err := look(ctx, q)
		if apierrors.IsConflict(err) {
			return reconcile.Result{RequeueAfter: CacheLag}, nil
		}
		return result, err
	})
}

// Timeout limits the reconciliation of one object.
const Timeout = 30 * time.Second

// Complete builds the controller described by b: it reconciles the objects from its watches and from the Queue, with this many workers. A
// write that is rejected because the object had changed is no error (RetryConflicts).
func (q *Queue) Complete(b *ctrl.Builder, workers int, reconcile reconcile.Func) error {
	return b.WatchesRawSource(q.Source()).WithOptions(Options(workers, Timeout)).Complete(RetryConflicts(reconcile))
}

// Adder is the queue of the controller whose handler is called.
type Adder = workqueue.TypedRateLimitingInterface[reconcile.Request]

// OnChange returns a handler that calls do for each event of a watch: before is nil for a created object, and after for a deleted one. If a
// watch was interrupted, only the first and the last version of an object may be seen.
func OnChange(do func(ctx context.Context, before, after client.Object, q Adder)) handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q Adder) { do(ctx, nil, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q Adder) { do(ctx, e.ObjectOld, e.ObjectNew, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q Adder) { do(ctx, e.Object, nil, q) },
	}
}

// Map returns a handler that queues the objects whose keys are returned by of, for the old and the new version of each watched object.
func Map(of func(context.Context, client.Object) []client.ObjectKey) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) (out []reconcile.Request) {
		for _, key := range of(ctx, o) {
			out = append(out, reconcile.Request{NamespacedName: key})
		}
		return out
	})
}

// Named returns a handler that queues the object without a namespace that a watched object names.
func Named(of func(client.Object) string) handler.EventHandler {
	return Map(func(_ context.Context, o client.Object) []client.ObjectKey { return []client.ObjectKey{{Name: of(o)}} })
}

// RequestFor returns the request for an object.
func RequestFor(o client.Object) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)}
}

// Sooner returns the shorter of two delays as used in reconcile.Result, where zero means no reconciliation.
func Sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
