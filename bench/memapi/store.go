package memapi

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// objects are the objects of one kind. API.mu guards its maps. An object in it is never modified: a change replaces it.
type objects struct {
	gvk       schema.GroupVersionKind
	resource  schema.GroupResource // in errors
	hasStatus bool
	all       map[client.ObjectKey]client.Object
	watches   map[*watcher]bool
}

func (k *objects) conflict(now client.Object, why string) error {
	return apierrors.NewConflict(k.resource, now.GetName(), fmt.Errorf("%s: the object has UID %s and resourceVersion %s", why, now.GetUID(), now.GetResourceVersion()))
}

// selection says which objects a list or a watch contains.
type selection struct {
	namespace string          // "": all
	labels    labels.Selector // nil: all
}

func selectionOf(opts []client.ListOption) (selection, error) {
	var o client.ListOptions
	o.ApplyOptions(opts)
	if o.FieldSelector != nil && !o.FieldSelector.Empty() {
		return selection{}, errors.New("field selectors are not supported")
	}
	s := selection{namespace: o.Namespace}
	if o.LabelSelector != nil && !o.LabelSelector.Empty() {
		s.labels = o.LabelSelector
	}
	return s, nil
}

func (k *objects) list(s selection) []client.Object {
	found := make([]client.Object, 0, len(k.all))
	for key, o := range k.all {
		if (s.namespace == "" || s.namespace == key.Namespace) && (s.labels == nil || s.labels.Matches(labels.Set(o.GetLabels()))) {
			found = append(found, o)
		}
	}
	return found
}

// create stores a copy of a new object, and sets in both the metadata that an API server sets. a.mu is held.
func (a *API) create(k *objects, o client.Object) error {
	key := client.ObjectKeyFromObject(o)
	if _, has := k.all[key]; has {
		return apierrors.NewAlreadyExists(k.resource, o.GetName())
	}
	a.made++
	o.SetUID(types.UID(fmt.Sprintf("%08x-0000-4000-8000-000000000000", a.made)))
	o.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second))) // as in JSON
	o.SetGeneration(1)
	a.store(k, watch.Added, o.DeepCopyObject().(client.Object))
	o.SetResourceVersion(k.all[key].GetResourceVersion())
	return nil
}

// store stores the next version of an object, and tells the watches. It must not be modified afterwards. a.mu is held.
func (a *API) store(k *objects, event watch.EventType, o client.Object) {
	a.version++
	o.SetResourceVersion(strconv.FormatInt(a.version, 10))
	if event == watch.Deleted {
		delete(k.all, client.ObjectKeyFromObject(o))
	} else {
		k.all[client.ObjectKeyFromObject(o)] = o
	}
	for w := range k.watches {
		w.add(event, o)
	}
}

// withCurrent calls do with the current version of an object, while a.mu is held.
func (a *API) withCurrent(key client.ObjectKey, o client.Object, do func(k *objects, now client.Object) error) error {
	k, err := a.of(o)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now, has := k.all[key]
	if !has {
		return apierrors.NewNotFound(k.resource, key.Name)
	}
	return do(k, now)
}

// change replaces an object by what edit returns of its current version, except for its status, or only its status, and then shows
// the result in o.
func (a *API) change(o client.Object, sub string, edit func(now client.Object) (client.Object, error)) error {
	return a.withCurrent(client.ObjectKeyFromObject(o), o, func(k *objects, now client.Object) error {
		next, err := edit(now)
		if err != nil {
			return err
		}
		next, err = a.replace(k, sub, now, next)
		if err == nil {
			fill(o, next)
		}
		return err
	})
}

// replace stores the next version of an object, if it differs, and returns it with the metadata that an API server sets. a.mu is held.
func (a *API) replace(k *objects, sub string, now, next client.Object) (client.Object, error) {
	if v, uid := next.GetResourceVersion(), next.GetUID(); v != "" && v != now.GetResourceVersion() || uid != "" && uid != now.GetUID() {
		return nil, k.conflict(now, fmt.Sprintf("the change is for UID %q and resourceVersion %q", uid, v))
	}
	if k.hasStatus {
		if sub == "status" {
			status := next
			next = shallow(now)
			setField(next, "Status", status)
		} else {
			setField(next, "Status", now)
		}
	}
	keepMetadata(next, now)
	switch {
	case reflect.DeepEqual(next, now):
	case next.GetDeletionTimestamp() != nil && len(next.GetFinalizers()) == 0:
		a.store(k, watch.Deleted, next)
	default:
		if sub == "" && changesSpec(next, now) {
			next.SetGeneration(now.GetGeneration() + 1)
		}
		a.store(k, watch.Modified, next)
	}
	return next, nil
}

// remove deletes an object, or marks it as deleted while it has finalizers. a.mu is held.
func (a *API) remove(k *objects, now client.Object) {
	switch {
	case len(now.GetFinalizers()) == 0:
		a.store(k, watch.Deleted, shallow(now))
	case now.GetDeletionTimestamp() == nil:
		next := shallow(now)
		at := metav1.NewTime(time.Now().Truncate(time.Second))
		next.SetDeletionTimestamp(&at)
		next.SetGeneration(now.GetGeneration() + 1)
		a.store(k, watch.Modified, next)
	}
}

// keepMetadata sets the metadata that clients cannot change.
func keepMetadata(next, now client.Object) {
	next.SetUID(now.GetUID())
	next.SetResourceVersion(now.GetResourceVersion())
	next.SetGeneration(now.GetGeneration())
	next.SetCreationTimestamp(now.GetCreationTimestamp())
	next.SetDeletionTimestamp(now.GetDeletionTimestamp())
	next.GetObjectKind().SetGroupVersionKind(now.GetObjectKind().GroupVersionKind())
}

// shallow returns a copy of an object that shares everything to which the object refers.
func shallow(o client.Object) client.Object {
	v := reflect.New(reflect.TypeOf(o).Elem())
	v.Elem().Set(reflect.ValueOf(o).Elem())
	return v.Interface().(client.Object)
}

// setField sets a field of an object to that of another of the same kind.
func setField(o client.Object, name string, from client.Object) {
	reflect.ValueOf(o).Elem().FieldByName(name).Set(reflect.ValueOf(from).Elem().FieldByName(name))
}

// changesSpec reports whether two versions of an object differ in more than metadata and status.
func changesSpec(next, now client.Object) bool {
	x, y := reflect.ValueOf(next).Elem(), reflect.ValueOf(now).Elem()
	for i := range x.NumField() {
		switch x.Type().Field(i).Name {
		case "TypeMeta", "ObjectMeta", "Status":
		default:
			if !reflect.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()) {
				return true
			}
		}
	}
	return false
}

// fill sets an object to a copy of another, or of its metadata.
func fill(o, from client.Object) {
	if m, is := o.(*metav1.PartialObjectMetadata); is {
		kind := m.GroupVersionKind()
		metadataOf(from).DeepCopyInto(m)
		m.SetGroupVersionKind(kind)
		return
	}
	reflect.ValueOf(o).Elem().Set(reflect.ValueOf(from.DeepCopyObject()).Elem())
}

// metadataOf returns the metadata of an object, which it shares.
func metadataOf(o client.Object) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: reflect.ValueOf(o).Elem().FieldByName("ObjectMeta").Interface().(metav1.ObjectMeta)}
}
