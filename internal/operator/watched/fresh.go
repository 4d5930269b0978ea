package watched

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/berthnet/berth/internal/clock"
)

const (
	// freshPage is how many objects a request for Fresh returns at most.
	freshPage = 500
	// freshWait is how long Fresh waits for events of a kind that has more objects, before it lists all of them.
	freshWait = 2 * time.Second
	// freshEvery is the interval at which Fresh checks the cache.
	freshEvery = 50 * time.Millisecond
)

// API is the API server, beside a cache.
type API struct {
	client.Reader
	Scheme *runtime.Scheme
}

// Fresh returns once the cache of a kind has everything that the API server had when Fresh was called. HasSynced of an informer does
// not say so: a cache that was filled once is old if its watch cannot be renewed. Fresh lists metadata, and compares the resource
// version of the answer with the latest that the cache has seen; while nothing of the kind changes, it compares the objects.
func (a API) Fresh(ctx context.Context, k *Kind, store toolscache.Store, c clock.Clock) error {
	gvk, err := apiutil.GVKForObject(k.Object, a.Scheme)
	if err != nil {
		return err
	}
	f := freshness{ctx: ctx, live: a, gvk: gvk, selected: k.Cache, store: store, clock: c}
	page, err := f.list("")
	if err != nil {
		return err
	}
	f.version = page.ResourceVersion
	if page.Continue != "" { // with so many objects, one always changes
		if done, err := f.until(freshWait, f.caughtUp); done || err != nil {
			return err
		}
	}
	listed := map[string]bool{}
	for {
		for i := range page.Items {
			if listed[key(&page.Items[i])] = true; !f.has(&page.Items[i]) {
				f.missing = append(f.missing, &page.Items[i])
			}
		}
		if page.Continue == "" {
			break
		}
		if page, err = f.list(page.Continue); err != nil {
			return err
		}
	}
	for _, name := range store.ListKeys() {
		if !listed[name] {
			f.deleted = append(f.deleted, name)
		}
	}
	_, err = f.until(0, func() bool { return f.caughtUp() || f.same() })
	return err
}

// freshness is one run of Fresh.
type freshness struct {
	ctx      context.Context
	live     client.Reader
	gvk      schema.GroupVersionKind
	selected cache.ByObject
	store    toolscache.Store
	clock    clock.Clock
	version  string // of the answer

	missing []*metav1.PartialObjectMetadata // that the cache lacked, or had older
	deleted []string                        // keys that only the cache had
}

// list returns the metadata of some of the kind's objects. Without a resource version, the answer is not older than the request.
func (f *freshness) list(from string) (*metav1.PartialObjectMetadataList, error) {
	page := &metav1.PartialObjectMetadataList{}
	page.SetGroupVersionKind(f.gvk.GroupVersion().WithKind(f.gvk.Kind + "List"))
	options := &client.ListOptions{Limit: freshPage, Continue: from, FieldSelector: f.selected.Field, LabelSelector: f.selected.Label}
	if err := f.live.List(f.ctx, page, options); err != nil {
		return nil, fmt.Errorf("list objects of kind %s: %w", f.gvk.Kind, err)
	}
	return page, nil
}

// caughtUp reports whether the cache has seen an event, or a bookmark, of the answer's time or later.
func (f *freshness) caughtUp() bool { return !older(f.store.LastStoreSyncResourceVersion(), f.version) }

// has reports whether the cache has an object, as it was or newer.
func (f *freshness) has(o *metav1.PartialObjectMetadata) bool {
	cached, has, err := f.store.GetByKey(key(o))
	if err != nil || !has {
		return false
	}
	m, err := meta.Accessor(cached)
	return err == nil && !older(m.GetResourceVersion(), o.ResourceVersion)
}

// same reports whether the cache has all objects of the answer, and no others that are as old.
func (f *freshness) same() bool {
	for len(f.missing) > 0 && f.has(f.missing[0]) {
		f.missing = f.missing[1:]
	}
	for len(f.deleted) > 0 && !f.isOld(f.deleted[0]) {
		f.deleted = f.deleted[1:]
	}
	return len(f.missing)+len(f.deleted) == 0
}

// isOld reports whether the cache has an object that is not newer than the answer.
func (f *freshness) isOld(name string) bool {
	cached, has, err := f.store.GetByKey(name)
	if err != nil || !has {
		return false
	}
	m, err := meta.Accessor(cached)
	return err != nil || m.GetResourceVersion() == f.version || older(m.GetResourceVersion(), f.version)
}

// until waits until a condition holds, at most for the given time; 0: until the context ends.
func (f *freshness) until(most time.Duration, holds func() bool) (bool, error) {
	for began := f.clock.Now(); ; {
		if holds() {
			return true, nil
		}
		if most > 0 && f.clock.Now().Sub(began) >= most {
			return false, nil
		}
		select {
		case <-f.ctx.Done():
			return false, context.Cause(f.ctx)
		case <-f.clock.After(freshEvery):
		}
	}
}

// older reports whether a resource version is before another. A version that is not a number, as of an empty cache, is before any.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || order < 0
}

func key(o *metav1.PartialObjectMetadata) string {
	return toolscache.ObjectName{Namespace: o.Namespace, Name: o.Name}.String()
}
