// Package queue has the queues, handlers and options of berth-operator's controllers. A Queue
// reconciles objects without an event.
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
