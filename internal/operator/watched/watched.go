// Package watched is what berth-operator keeps in memory of the objects of a
// cluster. Each feature lists the kinds that it watches; one kind is watched
// once, whoever needs it. What several features need of Nodes, Pods and
// Namespaces is here; kinds of Berth's own are with their feature.
//
//	watched.go  a kind, and those of all features together
//	index.go    fields by which the cache finds objects
//	core.go     Nodes, Pods and Namespaces
package watched

import (
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
	// List makes an empty list of them, by which is seen whether they can be read.
	List func() client.ObjectList
	// Cache says which objects are kept, and what of them.
	Cache cache.ByObject
	// Within is another declaration of the same kind that keeps all of these objects
	// and more; whoever reads them must not mind the others. Nil: there is none.
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

// isWithin tells whether one of some declarations keeps all that k does, and more.
func (k *Kind) isWithin(kinds []*Kind) bool {
	return k.Within != nil && (slices.Contains(kinds, k.Within) || k.Within.isWithin(kinds))
}

// name tells kinds apart, also those of which only the metadata is read.
func (k *Kind) name() string {
	return fmt.Sprintf("%T %s", k.Object, k.Object.GetObjectKind().GroupVersionKind().Kind)
}

// Set is each of some kinds once, without those that are Within another. The error names one that comes with two
// declarations: the objects kept for one feature would lack what another reads.
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
