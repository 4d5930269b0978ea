package watched

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/berthnet/berth/internal/clock"
)

const (
	// lookEvery is the interval at which Optional checks whether its kind is installed.
	lookEvery = 30 * time.Second
	// lookFirst is that interval until the first answer.
	lookFirst = time.Second
	// lookTimeout bounds one check.
	lookTimeout = 10 * time.Second
)

// gone is the number of consecutive checks that must not find a kind before it counts as not installed. A starting API server may
// answer before it knows all kinds.
const gone = 2

// ErrUnknown is the error of Read before the API server has answered.
var ErrUnknown = errors.New("the objects of the kind were not read yet")

// Optional caches the objects of a kind of another project, which may be installed or removed at any time.
// Its fields are set before Run.
type Optional struct {
	API       dynamic.Interface
	Discovery Discovery
	Resource  schema.GroupVersionResource
	Kind      string                   // for logs and errors, as in "SecurityGroupPolicy"
	Transform toolscache.TransformFunc // of *unstructured.Unstructured
	// Handler is called for each change of an object; nil: Changed is all that is needed. The removal of the
	// kind is no deletion of its objects.
	Handler toolscache.ResourceEventHandler
	// Changed is called when objects may have changed, and when the kind was installed or removed. It returns quickly.
	Changed func()
	Clock   clock.Clock
	Log     *slog.Logger

	mu    sync.Mutex // guards known, store and said
	known bool
	store toolscache.Indexer // nil: the kind is not installed
	said  string             // the error that was logged last
}

// Discovery lists the kinds of an API server. discovery.DiscoveryInterface implements it.
type Discovery interface {
	ServerGroups() (*metav1.APIGroupList, error)
	ServerResourcesForGroupVersion(groupVersion string) (*metav1.APIResourceList, error)
}

// Run follows the kind until ctx ends.
func (o *Optional) Run(ctx context.Context) error {
	var stop func() // ends the informer; nil: there is none
	missed := 0     // consecutive checks that did not find the kind
	for {
		installed, err := o.look(ctx)
		if missed++; installed || err != nil {
			missed = 0
		}
		switch {
		case ctx.Err() != nil:
		case err != nil:
			o.complain(err)
		case installed && stop == nil:
			stop = o.follow(ctx)
		case missed >= gone && !o.missing():
			absent, err := o.absent()
			if err != nil {
				o.complain(err)
			}
			if missed = 0; !absent {
				break
			}
			if stop != nil {
				stop()
				stop = nil
			}
			o.Settle(nil)
		}
		wait := lookEvery
		if _, err := o.Read(); err != nil {
			wait = lookFirst
		}
		select {
		case <-ctx.Done():
			if stop != nil {
				stop()
			}
			return nil
		case <-o.Clock.After(wait):
		}
	}
}

// look reports whether the kind is installed.
func (o *Optional) look(ctx context.Context) (installed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	_, err = o.API.Resource(o.Resource).List(ctx, metav1.ListOptions{Limit: 1})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list %s: %w", o.Resource.Resource, err)
	}
	return true, nil
}

// missing reports whether the kind is known not to be installed.
func (o *Optional) missing() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known && o.store == nil
}

// absent reports whether discovery does not have the kind either. While it has other versions of the kind, objects that were read
// are not deleted; if none were read, there are none for this operator. The error gives that reason, or why nothing is known.
func (o *Optional) absent() (bool, error) {
	groups, err := o.Discovery.ServerGroups()
	if err != nil {
		return false, fmt.Errorf("find out whether %s is installed: %w", o.Resource.Resource, err)
	}
	for _, g := range groups.Groups {
		if g.Name != o.Resource.Group {
			continue
		}
		for _, v := range g.Versions {
			list, err := o.Discovery.ServerResourcesForGroupVersion(v.GroupVersion)
			if err != nil {
				return false, fmt.Errorf("find out whether %s is installed: list the resources of %s: %w", o.Resource.Resource, v.GroupVersion, err)
			}
			if slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == o.Resource.Resource }) {
				_, unread := o.Read()
				return unread != nil, fmt.Errorf("%s is installed in version %s, expected %s", o.Resource.Resource, v.GroupVersion, o.Resource.GroupVersion())
			}
		}
	}
	return true, nil
}

// follow runs an informer until stop, which waits for its end.
func (o *Optional) follow(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	informer := dynamicinformer.NewFilteredDynamicInformer(o.API, o.Resource, metav1.NamespaceAll, 0,
		toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc}, nil).Informer()
	handler := o.Handler
	if handler == nil {
		handler = toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { o.Changed() }, UpdateFunc: func(any, any) { o.Changed() }, DeleteFunc: func(any) { o.Changed() },
		}
	}
	// These calls cannot fail before the informer runs.
	_ = informer.SetTransform(o.Transform)
	handled, _ := informer.AddEventHandler(handler)
	_ = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *toolscache.Reflector, err error) { o.complain(err) })
	var wg sync.WaitGroup
	wg.Go(func() { informer.RunWithContext(ctx) })
	wg.Go(func() {
		if toolscache.WaitForCacheSync(ctx.Done(), handled.HasSynced) {
			o.Settle(informer.GetIndexer())
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// Settle sets the cache; nil: the kind is not installed. Only Run and tests call it.
func (o *Optional) Settle(store toolscache.Indexer) {
	o.mu.Lock()
	news := !o.known || (o.store == nil) != (store == nil)
	o.known, o.store, o.said = true, store, ""
	o.mu.Unlock()
	if !news {
		return
	}
	if store != nil {
		o.Log.Info("the kind is installed: its objects take effect", "kind", o.Kind)
	}
	o.Changed()
}

// complain logs an error, unless the last one was the same.
func (o *Optional) complain(err error) {
	o.mu.Lock()
	news := o.said != err.Error()
	o.said = err.Error()
	o.mu.Unlock()
	if news {
		o.Log.Warn("cannot read the objects of a kind: those read before remain in effect", "kind", o.Kind, "err", err)
	}
}

// Read returns the cache; nil if the kind is not installed. It returns an error while neither is known.
func (o *Optional) Read() (toolscache.Indexer, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.known:
		return o.store, nil
	case o.said != "":
		return nil, fmt.Errorf("%s: %w: %s", o.Kind, ErrUnknown, o.said)
	default:
		return nil, fmt.Errorf("%s: %w", o.Kind, ErrUnknown)
	}
}
