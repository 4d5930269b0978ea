package egress

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// applied are the objects of Egresses as they were last applied. An object that is as it was
// then, and whose desired state is the same, needs no request. An operator that starts applies
// every object once.
type applied struct {
	mu  sync.Mutex // guards all and the maps in it
	all map[types.NamespacedName]map[schema.GroupVersionKind]appliedObject
}

// appliedObject is one of them.
type appliedObject struct {
	uid     types.UID
	desired uint64    // checksum of the desired state
	version string    // of the object after that (versionOf)
	at      time.Time // when it was applied
}

func newApplied() *applied {
	return &applied{all: map[types.NamespacedName]map[schema.GroupVersionKind]appliedObject{}}
}

func (b *applied) of(key types.NamespacedName, kind schema.GroupVersionKind) (appliedObject, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.all[key][kind]
	return e, ok
}

func (b *applied) add(key types.NamespacedName, kind schema.GroupVersionKind, e appliedObject) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all[key] == nil {
		b.all[key] = map[schema.GroupVersionKind]appliedObject{}
	}
	b.all[key][kind] = e
}

// drop forgets one object.
func (b *applied) drop(key types.NamespacedName, kind schema.GroupVersionKind) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.all[key], kind)
}

// forget drops all objects of an Egress, which is no more.
func (b *applied) forget(key types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.all, key)
}

func (b *applied) count() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, of := range b.all {
		n += len(of)
	}
	return n
}

// versionOf changes whenever an object does, except in its status. Where the object has a
// generation, which counts changes of its spec, only the labels and owners of the metadata count.
func versionOf(o client.Object) string {
	text := o.GetResourceVersion()
	if g := o.GetGeneration(); g != 0 {
		text = fmt.Sprint("generation ", g)
	}
	return fmt.Sprintf("%s %x", text, sumOf(o.GetLabels(), o.GetOwnerReferences()))
}

// sumOf is a checksum of values as JSON.
func sumOf(parts ...any) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		if u, ok := p.(*unstructured.Unstructured); ok {
			p = u.Object
		}
		_ = json.NewEncoder(h).Encode(p) // maps are encoded in the order of their keys
	}
	return h.Sum64()
}
