// Package memapi is a Kubernetes API in memory, for runs in virtual time, and a controller manager on
// top of it. It counts the controllers' writes. A call takes microseconds, whatever the number of objects
// and watches: objects stay Go values, and a change is handed over to each watch of its kind. For programs
// that speak HTTP, as tests of whole daemons do, there is test/harness/apifake.
//
//	api.go       the API, as a client for everything except the operator
//	store.go     objects and their changes
//	patch.go     merge patches
//	watch.go     watches
//	operator.go  the operator's manager, its caches, and the count of its writes
package memapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/berthnet/berth/api/v1alpha1"
)

// API is the Kubernetes API in memory, for clients other than the operator. It counts the operator's
// writes. It supports neither field selectors nor pages nor server-side apply.
type API struct {
	served
	kinds map[schema.GroupVersionKind]*objects

	mu      sync.Mutex     // guards all below and the objects
	made    int            // objects
	version int64          // of the last change
	writes  map[string]int // by verb and kind
}

// Kind is a kind of object that an API serves.
type Kind struct {
	Object client.Object
	// Cluster means that the kind is cluster-scoped, Status that its status is a subresource.
	Cluster, Status bool
}

// New returns an empty API that serves the given kinds, Events and Namespaces.
func New(kinds ...Kind) (*API, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	a := &API{served: served{scheme, mapper}, kinds: map[schema.GroupVersionKind]*objects{}, version: 1, writes: map[string]int{}}
	for _, k := range append(kinds, Kind{Object: &corev1.Event{}}, Kind{Object: &corev1.Namespace{}, Cluster: true}) {
		gvk, err := apiutil.GVKForObject(k.Object, scheme)
		if err != nil {
			return nil, err
		}
		var scope meta.RESTScope = meta.RESTScopeNamespace
		if k.Cluster {
			scope = meta.RESTScopeRoot
		}
		mapper.Add(gvk, scope)
		a.kinds[gvk] = &objects{
			gvk: gvk, hasStatus: k.Status, resource: schema.GroupResource{Group: gvk.Group, Resource: strings.ToLower(gvk.Kind)},
			all: map[client.ObjectKey]client.Object{}, watches: map[*watcher]bool{},
		}
	}
	return a, nil
}

// of returns the objects of an object's or list's kind.
func (a *API) of(o runtime.Object) (*objects, error) {
	gvk, err := apiutil.GVKForObject(o, a.scheme)
	if err != nil {
		return nil, err
	}
	if k := a.kinds[gvk]; k != nil {
		return k, nil
	}
	gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	if k := a.kinds[gvk]; k != nil {
		return k, nil
	}
	return nil, fmt.Errorf("the API in memory does not serve %s", gvk)
}

// Load stores an object as it is, with its status, as if it had been there before the run.
func (a *API) Load(o client.Object) error {
	k, err := a.of(o)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.create(k, o)
}

// Create implements client.Writer. The status of the object is kept.
func (a *API) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	return a.Load(o)
}

// Get implements client.Reader.
func (a *API) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	return a.withCurrent(key, o, func(_ *objects, now client.Object) error {
		fill(o, now)
		return nil
	})
}

// List implements client.Reader.
func (a *API) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	k, err := a.of(list)
	if err != nil {
		return err
	}
	selected, err := selectionOf(opts)
	if err != nil {
		return err
	}
	a.mu.Lock()
	found, version := k.list(selected), a.version
	a.mu.Unlock()
	return fillList(list, version, found, func(o client.Object) runtime.Object { return o.DeepCopyObject() })
}

// fillList sets the items of a list to copies of objects, sorted as an API server does.
func fillList(list client.ObjectList, version int64, found []client.Object, copied func(client.Object) runtime.Object) error {
	slices.SortFunc(found, func(x, y client.Object) int {
		return cmpKeys(client.ObjectKeyFromObject(x), client.ObjectKeyFromObject(y))
	})
	items := make([]runtime.Object, len(found))
	for i, o := range found {
		items[i] = copied(o)
	}
	list.SetResourceVersion(strconv.FormatInt(version, 10))
	return meta.SetList(list, items)
}

func cmpKeys(x, y types.NamespacedName) int {
	if c := strings.Compare(x.Namespace, y.Namespace); c != 0 {
		return c
	}
	return strings.Compare(x.Name, y.Name)
}

// Watch implements client.WithWatch. It sends the changes from now on, of one namespace or of all.
func (a *API) Watch(ctx context.Context, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
	k, err := a.of(list)
	if err != nil {
		return nil, err
	}
	selected, err := selectionOf(opts)
	if err != nil {
		return nil, err
	}
	if selected.labels != nil {
		return nil, errors.New("watch: label selectors are not supported")
	}
	a.mu.Lock()
	w := a.watch(k, selected.namespace, func(o client.Object) runtime.Object { return o.DeepCopyObject() })
	a.mu.Unlock()
	go w.run(ctx)
	return w, nil
}

// Update implements client.Writer.
func (a *API) Update(_ context.Context, o client.Object, _ ...client.UpdateOption) error {
	return a.change(o, "", func(client.Object) (client.Object, error) { return o.DeepCopyObject().(client.Object), nil })
}

// Patch implements client.Writer for merge patches.
func (a *API) Patch(_ context.Context, o client.Object, p client.Patch, _ ...client.PatchOption) error {
	return a.patch(o, "", p)
}

func (a *API) patch(o client.Object, sub string, p client.Patch) error {
	if p.Type() != types.MergePatchType {
		return fmt.Errorf("patch of type %s: only merge patches are supported", p.Type())
	}
	body, err := p.Data(o)
	if err != nil {
		return err
	}
	return a.change(o, sub, func(now client.Object) (client.Object, error) { return merged(now, body) })
}

// Delete implements client.Writer.
func (a *API) Delete(_ context.Context, o client.Object, opts ...client.DeleteOption) error {
	var options client.DeleteOptions
	options.ApplyOptions(opts)
	return a.withCurrent(client.ObjectKeyFromObject(o), o, func(k *objects, now client.Object) error {
		if p := options.Preconditions; p != nil && (p.UID != nil && *p.UID != now.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != now.GetResourceVersion()) {
			return k.conflict(now, "the precondition of the deletion fails")
		}
		a.remove(k, now)
		return nil
	})
}

var errUnsupported = errors.New("the API in memory does not support this call")

// DeleteAllOf implements client.Writer.
func (a *API) DeleteAllOf(context.Context, client.Object, ...client.DeleteAllOfOption) error {
	return errUnsupported
}

// Apply implements client.Writer.
func (a *API) Apply(context.Context, runtime.ApplyConfiguration, ...client.ApplyOption) error {
	return errUnsupported
}

// Status implements client.Client.
func (a *API) Status() client.SubResourceWriter { return a.SubResource("status") }

// SubResource implements client.Client.
func (a *API) SubResource(name string) client.SubResourceClient { return subresource{a, name} }

// subresource is a client of the subresource status.
type subresource struct {
	api  *API
	name string
}

func (s subresource) Get(context.Context, client.Object, client.Object, ...client.SubResourceGetOption) error {
	return errUnsupported
}

func (s subresource) Create(context.Context, client.Object, client.Object, ...client.SubResourceCreateOption) error {
	return errUnsupported
}

func (s subresource) Apply(context.Context, runtime.ApplyConfiguration, ...client.SubResourceApplyOption) error {
	return errUnsupported
}

func (s subresource) Update(_ context.Context, o client.Object, _ ...client.SubResourceUpdateOption) error {
	return s.api.change(o, s.name, func(client.Object) (client.Object, error) { return o.DeepCopyObject().(client.Object), nil })
}

func (s subresource) Patch(_ context.Context, o client.Object, p client.Patch, _ ...client.SubResourcePatchOption) error {
	return s.api.patch(o, s.name, p)
}

// served are the Go types of the kinds, and their scopes.
type served struct {
	scheme *runtime.Scheme
	mapper meta.RESTMapper
}

// Scheme implements client.Client.
func (s served) Scheme() *runtime.Scheme { return s.scheme }

// RESTMapper implements client.Client.
func (s served) RESTMapper() meta.RESTMapper { return s.mapper }

// GroupVersionKindFor implements client.Client.
func (s served) GroupVersionKindFor(o runtime.Object) (schema.GroupVersionKind, error) {
	return apiutil.GVKForObject(o, s.scheme)
}

// IsObjectNamespaced implements client.Client.
func (s served) IsObjectNamespaced(o runtime.Object) (bool, error) {
	return apiutil.IsObjectNamespaced(o, s.scheme, s.mapper)
}

// count records a write of the operator.
func (a *API) count(o runtime.Object, verb string) {
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

var _ client.WithWatch = (*API)(nil)
