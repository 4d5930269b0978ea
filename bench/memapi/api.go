// Package memapi is a Kubernetes API in memory, for runs in virtual time, and a controller manager on
// top of it. It counts the controllers' writes.
package memapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/testing"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/go-logr/logr"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/watched"
)

// API is the Kubernetes API in memory, for clients other than the operator. It counts the operator's
// writes.
type API struct {
	client.WithWatch
	scheme  *runtime.Scheme
	mapper  meta.RESTMapper
	objects testing.ObjectTracker

	mu     sync.Mutex     // guards all below
	made   int            // objects
	writes map[string]int // by verb and kind
}

// Kind is a kind of object that an API serves.
type Kind struct {
	Object client.Object
	// Cluster means that the kind is cluster-scoped, Status that its status is a subresource.
	Cluster, Status bool
}

// New returns an empty API that serves the given kinds, Events and Namespaces.
func New(kinds ...Kind) (*API, error) {
	// The tracker's watcher panics when its channel is full.
	watch.DefaultChanSize = math.MaxInt16
	scheme := runtime.NewScheme()
	if err := errors.Join(clientscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	kinds = append(kinds, Kind{Object: &corev1.Event{}}, Kind{Object: &corev1.Namespace{}, Cluster: true})
	var withStatus []client.Object
	for _, k := range kinds {
		gvk, err := apiutil.GVKForObject(k.Object, scheme)
		if err != nil {
			return nil, err
		}
		var scope meta.RESTScope = meta.RESTScopeNamespace
		if k.Cluster {
			scope = meta.RESTScopeRoot
		}
		mapper.Add(gvk, scope)
		if k.Status {
			withStatus = append(withStatus, k.Object)
		}
	}
	// Without managed fields, which cost more than everything else here.
	objects := testing.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder())
	c := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithObjectTracker(objects).
		WithStatusSubresource(withStatus...).Build()
	return &API{WithWatch: c, scheme: scheme, mapper: mapper, objects: objects, writes: map[string]int{}}, nil
}

// Load stores an object as it is, with its status, as if it had been there before the run.
func (a *API) Load(o client.Object) error {
	a.identify(o)
	o.SetResourceVersion("1")
	return a.objects.Add(o)
}

// Create creates an object with the metadata that an API server sets.
func (a *API) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	a.identify(o)
	return a.WithWatch.Create(ctx, o, opts...)
}

// identify sets the metadata that an API server sets.
func (a *API) identify(o client.Object) {
	a.mu.Lock()
	a.made++
	o.SetUID(types.UID(fmt.Sprintf("%08x-0000-4000-8000-000000000000", a.made)))
	a.mu.Unlock()
	o.SetCreationTimestamp(metav1.NewTime(time.Now()))
	o.SetGeneration(1)
}

// count records a write.
func (a *API) count(o client.Object, verb string) {
	gvk, err := apiutil.GVKForObject(o, a.scheme)
	if err != nil {
		gvk.Kind = "unknown"
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writes[verb+" "+gvk.Kind]++
}

// Written returns the number of the operator's writes by verb and kind.
func (a *API) Written() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.writes)
}

// listWatch returns a ListerWatcher for objects of the same kind, for an informer.
func (a *API) listWatch(like runtime.Object) (toolscache.ListerWatcher, error) {
	gvk, err := apiutil.GVKForObject(like, a.scheme)
	if err != nil {
		return nil, err
	}
	list := func() (client.ObjectList, error) {
		if _, is := like.(*metav1.PartialObjectMetadata); is {
			l := &metav1.PartialObjectMetadataList{}
			l.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
			return l, nil
		}
		l, err := a.scheme.New(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		if err != nil {
			return nil, err
		}
		return l.(client.ObjectList), nil
	}
	return noStream{&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			l, err := list()
			if err != nil {
				return nil, err
			}
			return l, a.List(ctx, l)
		},
		WatchFuncWithContext: func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
			l, err := list()
			if err != nil {
				return nil, err
			}
			return a.Watch(ctx, l)
		},
	}}, nil
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
		SubResourceApply: func(ctx context.Context, c client.Client, sub string, what runtime.ApplyConfiguration, _ ...client.SubResourceApplyOption) error {
			body, err := json.Marshal(what)
			if err != nil {
				return fmt.Errorf("encode an apply configuration: %w", err)
			}
			o := &unstructured.Unstructured{}
			if err := json.Unmarshal(body, o); err != nil {
				return fmt.Errorf("decode an apply configuration: %w", err)
			}
			a.count(o, sub+" of")
			return c.SubResource(sub).Patch(ctx, o, client.RawPatch(types.MergePatchType, body))
		},
	})
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
		lw, err := api.listWatch(o)
		if err != nil {
			lw = &toolscache.ListWatch{ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) { return nil, err }}
		}
		return toolscache.NewSharedIndexInformer(lw, o, every, by)
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
