// Package objects writes many objects to a Kubernetes API server concurrently, and waits for their
// changes.
package objects

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/bench/must"
)

// Each calls do for 0 to n-1 with the given number of workers, and returns the first error.
func Each(ctx context.Context, n, workers int, do func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for i := 0; i < n && ctx.Err() == nil; i++ {
		g.Go(func() (err error) {
			defer must.Catch(&err)
			return do(ctx, i)
		})
	}
	return g.Wait()
}

// Until calls last for all objects of a list's kind and for each of their changes, until it returns true
// or the operator exits.
func Until[O client.Object](ctx context.Context, c client.WithWatch, list client.ObjectList, exited <-chan struct{}, last func(O) bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-exited:
			cancel(errors.New("the operator exited"))
		case <-ctx.Done():
		}
	}()
	all := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			got := list.DeepCopyObject().(client.ObjectList)
			return got, c.List(ctx, got, &client.ListOptions{Raw: &o})
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, list, &client.ListOptions{Raw: &o})
		},
	}
	var kind O
	_, err := watchtools.UntilWithSync(ctx, all, kind, nil, func(e watch.Event) (bool, error) {
		o, ok := e.Object.(O)
		return ok && e.Type != watch.Deleted && last(o), nil
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// IsReady reports whether a pod is Ready.
func IsReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
