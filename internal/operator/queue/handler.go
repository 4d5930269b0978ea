package queue

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

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
