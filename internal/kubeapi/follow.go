package kubeapi

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// relist is the backoff before a broken watch is started again: after an outage, thousands of nodes do so at once.
var relist = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 6, Cap: 15 * time.Second}

// Handler receives what Follow sees, one call at a time.
type Handler[T any] struct {
	// Put receives an object that is new or changed. Nothing else refers to the object.
	Put func(T)
	// Gone receives the last state of an object that was deleted, or is no longer selected.
	Gone func(T)
	// All receives all objects: at first, and whenever the watch may have missed something.
	All func([]T)
	// Heard receives the result of every list, and of every start of a watch.
	Outcome func(error)
	// Trim removes unused fields of an object; nil: objects stay whole. All objects are in memory at once before All is
	// called, and users may write objects as large as the API server accepts.
	Trim func(T)
}

// Lister lists and watches the objects of one Follow.
type Lister interface {
	List(ctx context.Context, o metav1.ListOptions) (runtime.Object, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// Quiet keeps client-go from logging: callers log what matters.
func Quiet(ctx context.Context) context.Context { return klog.NewContext(ctx, logr.Discard()) }

// Follow passes the objects of l to h until ctx ends. Lists, and the initial events of watches, never come from an API
// server's cache, which may be stale: a daemon that was restarted, or that lost its watch, must not see an earlier state.
func Follow[T any](ctx context.Context, name string, l Lister, h Handler[T]) {
	ctx = Quiet(ctx)
	quiet := klog.FromContext(ctx)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.ResourceVersion, o.ResourceVersionMatch = "", ""
			list, err := l.List(ctx, o)
			if err == nil {
				err = meta.EachListItem(list, func(o runtime.Object) error { return h.trim(o) })
			}
			h.Outcome(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if o.SendInitialEvents != nil && *o.SendInitialEvents {
				o.ResourceVersion = "" // the most recent (Kubernetes API concepts, "Streaming lists")
			}
			w, err := l.Watch(ctx, o)
			h.Outcome(err)
			return w, err
		},
	}
	backoff := relist
	r := cache.NewReflectorWithOptions(lw, nil, store[T]{h}, cache.ReflectorOptions{
		Name: name, TypeDescription: name, Logger: &quiet, Backoff: &backoff,
	})
	r.RunWithContext(ctx)
}

// store passes what a reflector sees to a handler. It implements cache.ReflectorStore.
type store[T any] struct{ h Handler[T] }

// Transformer implements cache.TransformingStore.
func (s store[T]) Transformer() cache.TransformFunc {
	return func(o any) (any, error) { return o, s.h.trim(o) }
}

func (h Handler[T]) trim(o any) error {
	if t, ok := o.(T); ok && h.Trim != nil {
		h.Trim(t)
	}
	return nil
}

func (s store[T]) Add(o any) error { return s.Update(o) }

func (s store[T]) Update(o any) error {
	if t, ok := o.(T); ok {
		s.h.Put(t)
	}
	return nil
}

func (s store[T]) Delete(o any) error {
	if t, ok := o.(T); ok {
		s.h.Gone(t)
	}
	return nil
}

func (s store[T]) Replace(list []any, _ string) error {
	all := make([]T, 0, len(list))
	for _, o := range list {
		if t, ok := o.(T); ok {
			all = append(all, t)
		}
	}
	s.h.All(all)
	return nil
}

func (s store[T]) Resync() error { return nil }

// Read lists the objects of a kind of berth.dev that a field selector selects.
func (c *Client) Read(ctx context.Context, resource, fields string, into runtime.Object) error {
	_, err := c.Objects(resource, fields, func() runtime.Object { return into }).List(ctx, metav1.ListOptions{})
	return err
}

// Objects returns a Lister of the objects of a kind of berth.dev that a field selector (empty: all) selects, in the client's
// namespace if it has one. list returns an empty list of the kind.
func (c *Client) Objects(resource, fields string, list func() runtime.Object) Lister {
	return objects{c, resource, fields, "", list}
}

// Labelled is Objects with a label selector.
func (c *Client) Labelled(resource, labels string, list func() runtime.Object) Lister {
	return objects{c, resource, "", labels, list}
}

type objects struct {
	*Client
	resource, fields, labels string
	list                     func() runtime.Object
}

func (l objects) List(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	o.FieldSelector, o.LabelSelector = l.fields, l.labels
	out := l.list()
	return out, l.request(&o).Timeout(Timeout).Do(ctx).Into(out)
}

func (l objects) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.FieldSelector, o.LabelSelector, o.Watch = l.fields, l.labels, true
	return l.request(&o).Watch(ctx)
}

func (l objects) request(o *metav1.ListOptions) *rest.Request {
	return l.rest.Get().NamespaceIfScoped(l.namespace, l.namespace != "").Resource(l.resource).VersionedParams(o, l.param)
}

// FieldEquals returns a field selector.
func FieldEquals(field, value string) string {
	return fields.OneTermEqualSelector(field, value).String()
}

// Metadata is the metadata of an object.
type Metadata = metav1.PartialObjectMetadata

// Kind is a selection of Kubernetes' own objects that are watched together.
type Kind struct {
	resource string
	fields   string // a selector
	labels   bool   // with their labels
}

// Namespaces selects all Namespaces; LabelledNamespaces does with their labels.
var (
	Namespaces         = Kind{resource: "namespaces"}
	LabelledNamespaces = Kind{resource: "namespaces", labels: true}
)

// NodeNamed selects the Node of a name.
func NodeNamed(name string) Kind {
	return Kind{resource: "nodes", fields: FieldEquals("metadata.name", name)}
}

// LabelledNode selects that Node, with its labels.
func LabelledNode(name string) Kind {
	k := NodeNamed(name)
	k.labels = true
	return k
}

// metadata returns a Lister of the metadata of a kind's objects, with these annotations.
func (c *Client) metadata(k Kind, annotations ...string) Lister {
	return metadataOf{c, schema.GroupVersionResource{Version: "v1", Resource: k.resource}, k.fields, bare(k.labels, annotations...)}
}

type metadataOf struct {
	*Client
	resource schema.GroupVersionResource
	fields   string
	trim     func(*Metadata)
}

func (l metadataOf) List(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	o.FieldSelector = l.fields
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	list, err := l.meta.Resource(l.resource).List(ctx, o)
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		l.trim(&list.Items[i])
	}
	return list, nil
}

func (l metadataOf) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.FieldSelector, o.Watch = l.fields, true
	w, err := l.meta.Resource(l.resource).Watch(ctx, o)
	if err != nil {
		return nil, err
	}
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		if m, ok := e.Object.(*Metadata); ok && e.Type != watch.Bookmark {
			l.trim(m)
		}
		return e, true
	}), nil
}

// bare returns a function that removes all metadata except what identifies an object, the named annotations and, if wanted,
// the labels.
func bare(labels bool, annotations ...string) func(*Metadata) {
	return func(o *Metadata) {
		kept := metav1.ObjectMeta{
			Name: o.Name, Namespace: o.Namespace, UID: o.UID, ResourceVersion: o.ResourceVersion,
		}
		if labels {
			kept.Labels = o.Labels
		}
		for _, a := range annotations {
			if v, ok := o.Annotations[a]; ok {
				metav1.SetMetaDataAnnotation(&kept, a, v)
			}
		}
		o.ObjectMeta = kept
	}
}
