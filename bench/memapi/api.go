// Package memapi is a Kubernetes API in memory, for runs in virtual time, and a manager of
// controllers over it. The controllers' writes are counted.
//
//	api.go     the API
//	manager.go the manager
package memapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
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
	"k8s.io/client-go/testing"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berthnet/berth/api/v1alpha1"
)

// API is the Kubernetes API in memory, of which the operator's writes are counted. It is
// used as whoever is not the operator.
type API struct {
	client.WithWatch
	scheme *runtime.Scheme
	mapper meta.RESTMapper

	mu     sync.Mutex // guards all below
	made   int
	writes map[string]int
}

// Kind is a kind of object that there may be.
type Kind struct {
	Object client.Object
	// Cluster tells that it is in no namespace, Status that its status is written apart.
	Cluster, Status bool
}

// New is an API without objects, of some kinds besides Events and Namespaces.
func New(kinds ...Kind) (*API, error) {
	// A watch of this API ends the program when nobody reads what it has to say.
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
	// Without managed fields, which cost more than all else here.
	books := testing.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder())
	c := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithObjectTracker(books).
		WithStatusSubresource(withStatus...).Build()
	return &API{WithWatch: c, scheme: scheme, mapper: mapper, writes: map[string]int{}}, nil
}

// Create gives an object what an API server gives it.
func (a *API) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	a.mu.Lock()
	a.made++
	o.SetUID(types.UID(fmt.Sprintf("%08x-0000-4000-8000-000000000000", a.made)))
	a.mu.Unlock()
	o.SetCreationTimestamp(metav1.NewTime(time.Now()))
	o.SetGeneration(1)
	return a.WithWatch.Create(ctx, o, opts...)
}

// count notes a write.
func (a *API) count(o client.Object, what string) {
	gvk, err := apiutil.GVKForObject(o, a.scheme)
	if err != nil {
		gvk.Kind = "unknown"
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writes[what+" "+gvk.Kind]++
}

// Written is how often the operator wrote what.
func (a *API) Written() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.writes)
}

// listWatch lists and watches objects like one, for an informer.
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

// noStream tells informers that a watch does not begin with what there is.
type noStream struct{ *toolscache.ListWatch }

func (noStream) IsWatchListSemanticsUnSupported() bool { return true }

// operatorClient is the API as the operator has it: it reads from its cache, and its
// writes are counted.
type operatorClient struct {
	*API
	cache client.Reader
}

func (c operatorClient) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return c.cache.Get(ctx, key, o, opts...)
}

func (c operatorClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.cache.List(ctx, list, opts...)
}

func (c operatorClient) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	c.count(o, "create")
	return c.API.Create(ctx, o, opts...)
}

func (c operatorClient) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	c.count(o, "patch")
	return c.API.Patch(ctx, o, p, opts...)
}

func (c operatorClient) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	c.count(o, "update")
	return c.API.Update(ctx, o, opts...)
}

func (c operatorClient) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	c.count(o, "delete")
	return c.API.Delete(ctx, o, opts...)
}

func (c operatorClient) Status() client.SubResourceWriter {
	return statusWriter{c.API.Status(), c.API}
}

type statusWriter struct {
	client.SubResourceWriter
	api *API
}

func (w statusWriter) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
	w.api.count(o, "status of")
	return w.SubResourceWriter.Patch(ctx, o, p, opts...)
}

// Apply merges, as nobody else applies: this API has no managed fields.
func (w statusWriter) Apply(ctx context.Context, what runtime.ApplyConfiguration, _ ...client.SubResourceApplyOption) error {
	body, err := json.Marshal(what)
	if err != nil {
		return fmt.Errorf("encode what is applied: %w", err)
	}
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal(body, o); err != nil {
		return fmt.Errorf("decode what is applied: %w", err)
	}
	w.api.count(o, "status of")
	return w.SubResourceWriter.Patch(ctx, o, client.RawPatch(types.MergePatchType, body))
}
