package memapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/go-logr/logr"

	"github.com/berthnet/berth/internal/operator/watched"
)

// listWatch lists and watches a kind for an informer. The watch begins with the list, so that it misses no change.
type listWatch struct {
	api  *API
	like runtime.Object

	mu    sync.Mutex
	begun *watcher // since the last list
}

// list returns all objects of the kind, and begins a watch.
func (l *listWatch) list(context.Context, metav1.ListOptions) (runtime.Object, error) {
	k, err := l.api.of(l.like)
	if err != nil {
		return nil, err
	}
	var list client.ObjectList = &metav1.PartialObjectMetadataList{}
	copied := k.decodedMetadata
	if _, is := l.like.(*metav1.PartialObjectMetadata); !is {
		o, err := l.api.scheme.New(k.gvk.GroupVersion().WithKind(k.gvk.Kind + "List"))
		if err != nil {
			return nil, err
		}
		list, copied = o.(client.ObjectList), decoded
	}
	l.api.mu.Lock()
	w := l.api.watch(k, "", copied)
	found, version := k.list(selection{}), l.api.version
	l.api.mu.Unlock()
	l.begin(w)
	return list, fillList(list, version, found, copied)
}

// begin replaces the watch that has begun, and returns the former.
func (l *listWatch) begin(w *watcher) *watcher {
	l.mu.Lock()
	former := l.begun
	l.begun = w
	l.mu.Unlock()
	if w != nil && former != nil {
		former.Stop()
	}
	return former
}

// watch returns the watch that began with the last list.
func (l *listWatch) watch(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
	w := l.begin(nil)
	if w == nil {
		return nil, errors.New("a watch of the API in memory begins with a list")
	}
	go w.run(ctx)
	return w, nil
}

// noStream makes informers list before they watch: the API does not support streaming lists.
type noStream struct{ *toolscache.ListWatch }

func (noStream) IsWatchListSemanticsUnSupported() bool { return true }

// operatorClient returns the operator's client: it reads from the cache, and its writes are counted.
func (a *API) operatorClient(cached client.Reader) client.Client {
	return interceptor.NewClient(a, interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			return cached.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			return cached.List(ctx, list, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			a.count(o, "create")
			return c.Create(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			a.count(o, "patch")
			return c.Patch(ctx, o, merging(p, o), unforced(opts)...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			a.count(o, "update")
			return c.Update(ctx, o, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			a.count(o, "delete")
			return c.Delete(ctx, o, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			a.count(o, sub+" of")
			return c.SubResource(sub).Patch(ctx, o, merging(p, o), unforced(opts)...)
		},
		// Apply is a merge patch here: only one writer applies, and this API has no managed fields.
		SubResourceApply: func(_ context.Context, _ client.Client, sub string, what runtime.ApplyConfiguration, _ ...client.SubResourceApplyOption) error {
			body, err := json.Marshal(what)
			if err != nil {
				return fmt.Errorf("encode an apply configuration: %w", err)
			}
			return a.applyAsMerge(sub, body)
		},
	})
}

// applyAsMerge patches a subresource of the object that an apply configuration names.
func (a *API) applyAsMerge(sub string, body []byte) error {
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(body, u); err != nil {
		return fmt.Errorf("decode an apply configuration: %w", err)
	}
	typed, err := a.scheme.New(u.GroupVersionKind())
	if err != nil {
		return err
	}
	o := typed.(client.Object)
	o.SetNamespace(u.GetNamespace())
	o.SetName(u.GetName())
	a.count(o, sub+" of")
	return a.patch(o, sub, client.RawPatch(types.MergePatchType, body))
}

// merging returns a server-side apply as a merge patch.
func merging(p client.Patch, o client.Object) client.Patch {
	if p.Type() != types.ApplyPatchType {
		return p
	}
	body, _ := p.Data(o) // of a raw patch
	return client.RawPatch(types.MergePatchType, body)
}

// unforced returns options without those of server-side apply.
func unforced[O comparable](opts []O) []O {
	return slices.DeleteFunc(slices.Clone(opts), func(o O) bool { return any(o) == any(client.ForceOwnership) })
}

// overAPI is a manager whose uncached reader reads from memory as well.
type overAPI struct {
	manager.Manager
	api *API
}

func (m overAPI) GetAPIReader() client.Reader { return m.api }

func (m overAPI) GetEventRecorder(string) recorder.EventRecorder { return &events.FakeRecorder{} }

// Operate runs controllers against an API until ctx ends.
func Operate(ctx context.Context, api *API, kinds []*watched.Kind, index func(context.Context, client.FieldIndexer) error, setup func(manager.Manager) error) error {
	mgr, err := newManager(api, kinds)
	if err != nil {
		return err
	}
	if err := errors.Join(index(ctx, mgr.GetFieldIndexer()), setup(mgr)); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// newManager returns a manager on top of an API that caches the given kinds.
func newManager(api *API, kinds []*watched.Kind) (manager.Manager, error) {
	ctrllog.SetLogger(logr.Discard()) // errors are returned
	informer := func(_ toolscache.ListerWatcher, o runtime.Object, every time.Duration, by toolscache.Indexers) toolscache.SharedIndexInformer {
		l := &listWatch{api: api, like: o}
		return toolscache.NewSharedIndexInformer(noStream{&toolscache.ListWatch{ListWithContextFunc: l.list, WatchFuncWithContext: l.watch}}, o, every, by)
	}
	mgr, err := manager.New(&rest.Config{Host: "in-memory"}, ctrl.Options{
		Scheme: api.scheme, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
		Cache:          cache.Options{ByObject: watched.ByObject(kinds), NewInformer: informer},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return api.mapper, nil },
		NewClient: func(_ *rest.Config, o client.Options) (client.Client, error) {
			return api.operatorClient(o.Cache.Reader), nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("create a manager: %w", err)
	}
	return overAPI{mgr, api}, nil
}
