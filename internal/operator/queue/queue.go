// Package queue has the queues, handlers and options of berth-operator's controllers. A Queue
// reconciles objects without an event.
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

// Queue is the queue of a controller. It does nothing before the controller starts, which then
// reconciles all objects. The zero value is ready to use.
type Queue struct {
	to atomic.Pointer[workqueue.TypedRateLimitingInterface[reconcile.Request]]
}

// Source is a source for the controller to watch: it learns the controller's queue when that starts.
func (q *Queue) Source() source.Source {
	return source.Func(func(_ context.Context, to workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		q.to.Store(&to)
		return nil
	})
}

// Add reconciles objects without a namespace.
func (q *Queue) Add(names ...string) {
	for _, name := range names {
		q.AddAfter(name, 0)
	}
}

// AddAfter reconciles an object without a namespace after some time. Of several times the first
// counts.
func (q *Queue) AddAfter(name string, d time.Duration) {
	if to := q.to.Load(); to != nil {
		(*to).AddAfter(Request(name), d)
	}
}

// AddObject reconciles an object after some time.
func (q *Queue) AddObject(key types.NamespacedName, d time.Duration) {
	if to := q.to.Load(); to != nil {
		(*to).AddAfter(reconcile.Request{NamespacedName: key}, d)
	}
}

// Request is that of an object without a namespace.
func Request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

const (
	// firstRetry and lastRetry bound the wait after a failed reconciliation, which doubles.
	// lastRetry is also the longest wait once the API server is back.
	firstRetry = 50 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// CacheLag is the wait for the cache to show a write that is known to have happened.
const CacheLag = 100 * time.Millisecond

// Options are those of a controller with so many workers, each of which takes at most timeout for an
// object. A failed object is retried after 50 ms, then after twice as long each time, up to 10 s.
func Options(workers int, timeout time.Duration) controller.Options {
	again := true // several in one process: tests
	return controller.Options{
		MaxConcurrentReconciles: workers, SkipNameValidation: &again, ReconciliationTimeout: timeout,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
	}
}

// RetryConflicts reconciles an object again after CacheLag, without an error in the log, if a write
// was refused because the object had changed.
func RetryConflicts(look reconcile.Func) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
		result, err := look(ctx, q)
		if apierrors.IsConflict(err) {
			return reconcile.Result{RequeueAfter: CacheLag}, nil
		}
		return result, err
	})
}

// Timeout bounds the reconciliation of one object.
const Timeout = 30 * time.Second

// Complete makes the controller that b describes: it reconciles what its watches and the Queue
// name, as many objects at once as it has workers. A write that is refused because the object had
// changed is no error (RetryConflicts).
func (q *Queue) Complete(b *ctrl.Builder, workers int, reconcile reconcile.Func) error {
	return b.WatchesRawSource(q.Source()).WithOptions(Options(workers, Timeout)).Complete(RetryConflicts(reconcile))
}

// Adder is the queue of the controller whose handler is called.
type Adder = workqueue.TypedRateLimitingInterface[reconcile.Request]

// OnChange calls do for each event of a watch: before is nil for an object that was created, and
// after for one that was deleted. Of an object that a restarted watch finds changed it may see
// only the two ends.
func OnChange(do func(ctx context.Context, before, after client.Object, q Adder)) handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q Adder) { do(ctx, nil, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q Adder) { do(ctx, e.ObjectOld, e.ObjectNew, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q Adder) { do(ctx, e.Object, nil, q) },
	}
}

// Map reconciles the objects whose keys of returns, for each object of a watch as it was and as
// it is.
func Map(of func(context.Context, client.Object) []client.ObjectKey) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) (out []reconcile.Request) {
		for _, key := range of(ctx, o) {
			out = append(out, reconcile.Request{NamespacedName: key})
		}
		return out
	})
}

// Named reconciles the object without a namespace that one of a watch names.
func Named(of func(client.Object) string) handler.EventHandler {
	return Map(func(_ context.Context, o client.Object) []client.ObjectKey { return []client.ObjectKey{{Name: of(o)}} })
}

// RequestFor is the request that has an object reconciled.
func RequestFor(o client.Object) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)}
}

// Sooner returns the shorter of two waits as reconcile.Result has them: zero asks for no
// reconciliation.
func Sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
