// Package queue has objects reconciled that no event tells of, and says at which pace
// controllers work.
package queue

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Queue is a controller's. Until the controller
// starts it is of no effect: one that starts reconciles all objects.
type Queue struct {
	to atomic.Pointer[workqueue.TypedRateLimitingInterface[reconcile.Request]]
}

// Source learns the queue of the controller that watches it, when that starts.
func (q *Queue) Source() source.Source {
	return source.Func(func(_ context.Context, to workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		q.to.Store(&to)
		return nil
	})
}

// Add has objects reconciled.
func (q *Queue) Add(names ...string) {
	for _, name := range names {
		q.AddAfter(name, 0)
	}
}

// AddAfter has an object reconciled after some time. Of several times the first counts.
func (q *Queue) AddAfter(name string, d time.Duration) {
	if to := q.to.Load(); to != nil {
		(*to).AddAfter(Request(name), d)
	}
}

// AddObject has an object of a namespace reconciled after some time.
func (q *Queue) AddObject(key types.NamespacedName, d time.Duration) {
	if to := q.to.Load(); to != nil {
		(*to).AddAfter(reconcile.Request{NamespacedName: key}, d)
	}
}

// Request is that of an object without a namespace.
func Request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}
