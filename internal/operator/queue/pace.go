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
	// firstRetry and lastRetry bound the wait after a reconciliation that failed,
	// which doubles: lastRetry is the longest wait once the API server is back.
	firstRetry = 50 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// CacheLag is how long the cache is given to see what is known otherwise, such as
// what somebody else wrote.
const CacheLag = 100 * time.Millisecond

// Options are those of a controller that reconciles as many objects at once as it has
// workers, each for timeout at most, and one that failed again after 50 ms, then after
// twice as long each time, up to 10 s.
func Options(workers int, timeout time.Duration) controller.Options {
	again := true // several in one process: tests
	return controller.Options{
		MaxConcurrentReconciles: workers, SkipNameValidation: &again, ReconciliationTimeout: timeout,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
	}
}

// RetryConflicts reconciles again after CacheLag, without logging an error, after a write
// that was refused because the object had changed.
func RetryConflicts(look reconcile.Func) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
		result, err := look(ctx, q)
		if apierrors.IsConflict(err) {
			return reconcile.Result{RequeueAfter: CacheLag}, nil
		}
		return result, err
	})
}
