package queue

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

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
