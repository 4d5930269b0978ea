// Package watched declares which objects the cache of berth-operator keeps, and which parts of them. Each feature lists the kinds that it
// watches, and a kind is watched once for all features. Nodes, Pods and Namespaces are declared here, Berth's own kinds by their feature.
//
//	watched.go  a kind, the kinds of all features together, and index fields
//	core.go     Nodes, Pods and Namespaces
//	optional.go kinds of other projects, which may not be installed
//	fresh.go    proof that a cache is not older than a moment
package watched

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Kind is one kind of object.
type Kind struct {
	// Object is an empty object of the kind.
	Object client.Object
	// List returns an empty list of the kind.
	List func() client.ObjectList
	// Cache says which objects are kept, and which parts of them.
	Cache cache.ByObject
	// Within is another declaration of the same kind that keeps all of these objects and more, or nil. It replaces this one if both are
	// needed, so readers must ignore the additional objects.
	Within *Kind
}

// Of declares a kind by an empty object and an empty list. The cache keeps each object as returned by transform; if transform is nil, it drops
// only the managed fields.
func Of(o client.Object, list client.ObjectList, transform toolscache.TransformFunc) *Kind {
	if transform == nil {
		transform = cache.TransformStripManagedFields()
	}
	return &Kind{
		Object: o, List: func() client.ObjectList { return list.DeepCopyObject().(client.ObjectList) },
		Cache: cache.ByObject{Transform: transform},
	}
}

// Metadata declares a kind of which the cache keeps only the metadata, for the objects selected by a label selector, or all if it is nil.
func Metadata(gvk schema.GroupVersionKind, selector labels.Selector, transform toolscache.TransformFunc) *Kind {
	o, list := &metav1.PartialObjectMetadata{}, &metav1.PartialObjectMetadataList{}
	o.SetGroupVersionKind(gvk)
	list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	k := Of(o, list, transform)
	k.Cache.Label = selector
	return k
}

// isWithin reports whether one of the given declarations keeps everything that k keeps, and more.
func (k *Kind) isWithin(kinds []*Kind) bool {
	return k.Within != nil && (slices.Contains(kinds, k.Within) || k.Within.isWithin(kinds))
}

// name identifies a kind, including kinds of which only the metadata is read.
func (k *Kind) name() string {
	return fmt.Sprintf("%T %s", k.Object, k.Object.GetObjectKind().GroupVersionKind().Kind)
}

// Set returns each of the kinds once, without those that are Within another one. It returns an error for a kind with two declarations: one
// feature would lack data that it reads.
func Set(kinds ...*Kind) ([]*Kind, error) {
	var set []*Kind
	byName := map[string]*Kind{}
	for _, k := range kinds {
		if k.isWithin(kinds) {
			continue
		}
		name := k.name()
		switch byName[name] {
		case nil:
			byName[name] = k
			set = append(set, k)
		case k:
		default:
			return nil, fmt.Errorf("%s is declared twice for the cache: want one declaration for all features", name)
		}
	}
	return set, nil
}

// ByObject returns the value for cache.Options.
func ByObject(kinds []*Kind) map[client.Object]cache.ByObject {
	out := make(map[client.Object]cache.ByObject, len(kinds))
	for _, k := range kinds {
		out[k.Object] = k.Cache
	}
	return out
}

// Field is an index field for objects of a kind (client.MatchingFields).
type Field struct {
	object client.Object
	name   string
	values client.IndexerFunc
}

// By returns a field of a kind, with a function that returns an object's values.
func By[T any, P interface {
	*T
	client.Object
}](name string, values func(P) []string) Field {
	return Field{P(new(T)), name, func(o client.Object) []string { return values(o.(P)) }}
}

// ByOne works like By for a field with one value.
func ByOne[T any, P interface {
	*T
	client.Object
}](name string, value func(P) string) Field {
	return By(name, func(o P) []string { return []string{value(o)} })
}

// Index adds index fields to the cache of a manager. It is called before the manager starts, once for each field.
func Index(ctx context.Context, ix client.FieldIndexer, fields ...Field) error {
	for _, f := range fields {
		if err := ix.IndexField(ctx, f.object, f.name, f.values); err != nil {
			return fmt.Errorf("index %T by %s: %w", f.object, f.name, err)
		}
	}
	return nil
}
