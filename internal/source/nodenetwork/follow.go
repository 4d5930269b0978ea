package nodenetwork

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/published"
)

// relist is how long a watch that broke takes to come back: some thousand nodes
// do so together after an outage.
var relist = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 6, Cap: 15 * time.Second}

// follow keeps the object at hand by a list and a watch of it alone, until ctx
// ends.
func (s *supplier) follow(ctx context.Context) {
	quiet := klog.FromContext(ctx)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := s.api.list(ctx, o)
			s.heard(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := s.api.watch(ctx, o)
			s.heard(err)
			return w, err
		},
	}
	backoff := relist
	r := cache.NewReflectorWithOptions(lw, &v1alpha1.NodeNetwork{}, seen{s}, cache.ReflectorOptions{
		Name: resource, Logger: &quiet, Backoff: &backoff,
	})
	r.RunWithContext(ctx)
}

// seen takes what the reflector sees. It implements cache.ReflectorStore.
type seen struct{ s *supplier }

// Add implements cache.ReflectorStore.
func (v seen) Add(o any) error { return v.Update(o) }

// Update implements cache.ReflectorStore. The watch may trail the reply to a
// report.
func (v seen) Update(o any) error {
	if n, ok := o.(*v1alpha1.NodeNetwork); ok {
		v.s.observe(n, func(have *v1alpha1.NodeNetwork) bool { return have == nil || !published.Newer(have, n) })
	}
	return nil
}

// Delete implements cache.ReflectorStore.
func (v seen) Delete(o any) error {
	n, ok := o.(*v1alpha1.NodeNetwork)
	v.s.observe(nil, func(have *v1alpha1.NodeNetwork) bool { return !ok || have != nil && have.UID == n.UID })
	return nil
}

// Replace implements cache.ReflectorStore.
func (v seen) Replace(list []any, _ string) error {
	var n *v1alpha1.NodeNetwork
	for _, o := range list {
		n, _ = o.(*v1alpha1.NodeNetwork)
	}
	v.s.observe(n, func(*v1alpha1.NodeNetwork) bool { return true })
	return nil
}

// Resync implements cache.ReflectorStore.
func (seen) Resync() error { return nil }

// observe takes a state of the object, nil when there is none, if accept agrees
// to put it in place of the one at hand.
func (s *supplier) observe(n *v1alpha1.NodeNetwork, accept func(have *v1alpha1.NodeNetwork) bool) {
	s.mu.Lock()
	if !accept(s.object) {
		s.mu.Unlock()
		return
	}
	s.object, s.listed = n, true
	s.mu.Unlock()
	signal(s.changed)
}

// heard notes whether the API server answered, and logs when that changed.
func (s *supplier) heard(err error) {
	if ended(err) {
		return
	}
	s.mu.Lock()
	before := s.apiErr
	s.apiErr = err
	s.mu.Unlock()
	switch {
	case err != nil && before == nil:
		s.log.Warn("the Kubernetes API cannot be used; serving goes on from memory", "error", err)
	case err == nil && before != nil:
		s.log.Info("the Kubernetes API can be used again")
	}
	if (err == nil) != (before == nil) {
		signal(s.changed)
	}
}
