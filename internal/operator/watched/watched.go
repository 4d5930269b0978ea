// Package watched declares which objects the cache of berth-operator keeps, and what of them. Each
// feature lists the kinds that it watches, and a kind is watched once for all features. The
// declarations of Nodes, Pods and Namespaces are here, those of Berth's own kinds with their
// feature.
//
//	watched.go  a kind, those of all features together, and fields to find objects by
//	core.go     Nodes, Pods and Namespaces
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
	// List makes an empty list of them.
	List func() client.ObjectList
	// Cache says which objects are kept, and what of them.
	Cache cache.ByObject
	// Within is another declaration of the same kind that keeps all of these objects and more. It
	// replaces this one where both are needed, so readers must ignore the other objects. Nil: none.
	Within *Kind
}

// Of declares a kind by an empty object and an empty list of it. Of each object the cache keeps
// what transform leaves; nil: all but the managed fields.
func Of(o client.Object, list client.ObjectList, transform toolscache.TransformFunc) *Kind {
	if transform == nil {
		transform = cache.TransformStripManagedFields()
	}
	return &Kind{
		Object: o, List: func() client.ObjectList { return list.DeepCopyObject().(client.ObjectList) },
		Cache: cache.ByObject{Transform: transform},
	}
}

// Metadata declares a kind of which the cache keeps the metadata alone, of the objects that a
// label selector selects; nil: of all.
func Metadata(gvk schema.GroupVersionKind, selector labels.Selector, transform toolscache.TransformFunc) *Kind {
	o, list := &metav1.PartialObjectMetadata{}, &metav1.PartialObjectMetadataList{}
	o.SetGroupVersionKind(gvk)
	list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	k := Of(o, list, transform)
	k.Cache.Label = selector
	return k
}

// isWithin reports whether another of some declarations keeps all that k does, and more.
func (k *Kind) isWithin(kinds []*Kind) bool {
	return k.Within != nil && (slices.Contains(kinds, k.Within) || k.Within.isWithin(kinds))
}

// name identifies a kind, also one of which only the metadata is read.
func (k *Kind) name() string {
	return fmt.Sprintf("%T %s", k.Object, k.Object.GetObjectKind().GroupVersionKind().Kind)
}

// Set returns each of some kinds once, without those that are Within another. The error names a kind
// with two declarations: the objects kept for one feature would lack what another reads.
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

// ByObject is for cache.Options.
func ByObject(kinds []*Kind) map[client.Object]cache.ByObject {
	out := make(map[client.Object]cache.ByObject, len(kinds))
	for _, k := range kinds {
		out[k.Object] = k.Cache
	}
	return out
}

// Field is a field by which the cache finds objects of a kind (client.MatchingFields).
type Field struct {
	object client.Object
	name   string
	values client.IndexerFunc
}

// By is a field of a kind, with the values that an object has in it.
func By[T any, P interface {
	*T
	client.Object
}](name string, values func(P) []string) Field {
	return Field{P(new(T)), name, func(o client.Object) []string { return values(o.(P)) }}
}

// ByOne is By for a field with one value.
func ByOne[T any, P interface {
	*T
	client.Object
}](name string, value func(P) string) Field {
	return By(name, func(o P) []string { return []string{value(o)} })
}

// Index has the cache of a manager find objects by some fields. It is called before the
// manager starts, once for each field.
func Index(ctx context.Context, ix client.FieldIndexer, fields ...Field) error {
	for _, f := range fields {
		if err := ix.IndexField(ctx, f.object, f.name, f.values); err != nil {
			return fmt.Errorf("index %T by %s: %w", f.object, f.name, err)
		}
	}
	return nil
}
