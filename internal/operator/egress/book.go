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

// book is what was applied last of the objects of Egresses: what is as it was then, and is
// still wanted so, needs no request. An operator that starts applies all once.
type book struct {
	mu      sync.Mutex // guards applied and the maps in it
	applied map[types.NamespacedName]map[schema.GroupVersionKind]entry
}

// entry is an object that was applied.
type entry struct {
	uid     types.UID
	wanted  uint64    // what was asked for
	version string    // what it was then
	at      time.Time // when
}

func newBook() *book {
	return &book{applied: map[types.NamespacedName]map[schema.GroupVersionKind]entry{}}
}

func (b *book) of(key types.NamespacedName, kind schema.GroupVersionKind) (entry, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.applied[key][kind]
	return e, ok
}

func (b *book) note(key types.NamespacedName, kind schema.GroupVersionKind, e entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.applied[key] == nil {
		b.applied[key] = map[schema.GroupVersionKind]entry{}
	}
	b.applied[key][kind] = e
}

// drop forgets one object.
func (b *book) drop(key types.NamespacedName, kind schema.GroupVersionKind) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.applied[key], kind)
}

// forget drops all objects of an Egress, which is no more.
func (b *book) forget(key types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.applied, key)
}

func (b *book) count() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, of := range b.applied {
		n += len(of)
	}
	return n
}

// versionOf tells apart what an object is from what it was, but for its status where it has
// one: then its generation counts changes of the rest, and of metadata what Berth minds is
// compared.
func versionOf(o client.Object) string {
	text := o.GetResourceVersion()
	if g := o.GetGeneration(); g != 0 {
		text = fmt.Sprint("generation ", g)
	}
	return fmt.Sprintf("%s %x", text, sumOf(o.GetLabels(), o.GetOwnerReferences()))
}

// sumOf is that of what an object is to be.
func sumOf(parts ...any) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		if u, ok := p.(*unstructured.Unstructured); ok {
			p = u.Object
		}
		_ = json.NewEncoder(h).Encode(p) // maps are written in the order of their keys
	}
	return h.Sum64()
}
