// Package objects reads and writes Kubernetes objects in the way that all controllers of berth-operator do:
// with the operator's field owner, and only if an object is still the one that the decision was based on.
package objects

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/berthnet/berth/api/v1alpha1"
)

// PageSize is how many objects a request for a list returns at most. The API server may serve the further requests of a list
// from etcd instead of its cache, which takes several times as long.
const PageSize = 10_000

// Shared makes Get return the cache's own object instead of a copy. The caller must not modify it.
const Shared = client.UnsafeDisableDeepCopy

// Get returns an object by key, or nil if it does not exist.
func Get[T any, P interface {
	*T
	client.Object
}](ctx context.Context, r client.Reader, key client.ObjectKey, opts ...client.GetOption) (P, error) {
	o := P(new(T))
	err := r.Get(ctx, key, o, opts...)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %s %s: %w", reflect.TypeFor[T]().Name(), nameOf(key), err)
	}
	return o, nil
}

// List returns the objects selected by opts. If r is a cache, they are the cache's own objects, which the
// caller must not modify.
func List[T any, P interface {
	*T
	client.ObjectList
}](ctx context.Context, r client.Reader, opts ...client.ListOption) (P, error) {
	list := P(new(T))
	if err := r.List(ctx, list, append(opts, client.UnsafeDisableDeepCopy)...); err != nil {
		return nil, fmt.Errorf("list %ss: %w", strings.TrimSuffix(reflect.TypeFor[T]().Name(), "List"), err)
	}
	return list, nil
}

// Keys returns the keys of the objects selected by opts, or none if they cannot be read.
func Keys(ctx context.Context, r client.Reader, list client.ObjectList, opts ...client.ListOption) (keys []client.ObjectKey) {
	if r.List(ctx, list, append(opts, client.UnsafeDisableDeepCopy)...) != nil {
		return nil
	}
	_ = meta.EachListItem(list, func(o runtime.Object) error {
		keys = append(keys, client.ObjectKeyFromObject(o.(client.Object)))
		return nil
	})
	return keys
}

// nameOf formats a key for messages.
func nameOf(key client.ObjectKey) string {
	if key.Namespace == "" {
		return key.Name
	}
	return key.String()
}

// describe names an object in an error.
func describe(o client.Object) string {
	return reflect.TypeOf(o).Elem().Name() + " " + nameOf(client.ObjectKeyFromObject(o))
}

// owner is the operator's field owner.
var owner = client.FieldOwner(v1alpha1.OwnerOperator)

// IfUnchanged returns a patch with the differences from before. If the object has changed since, the API
// server returns a conflict, after which queue.RetryConflicts reconciles the object again.
func IfUnchanged(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}

// Patch changes before to after. It returns a conflict if the object has changed since before was read, and
// NotFound if it is gone. after is updated to the API server's version.
func Patch(ctx context.Context, c client.Client, before, after client.Object) error {
	if err := c.Patch(ctx, after, IfUnchanged(before), owner); err != nil {
		return fmt.Errorf("write %s: %w", describe(before), err)
	}
	return nil
}

// AddFinalizer adds a finalizer to an object, and reports whether it was missing. It returns a conflict if
// the object has changed since it was read. The passed object is not modified.
func AddFinalizer(ctx context.Context, c client.Client, o client.Object, finalizer string) (added bool, err error) {
	after := o.DeepCopyObject().(client.Object)
	if !controllerutil.AddFinalizer(after, finalizer) {
		return false, nil
	}
	if err := c.Patch(ctx, after, IfUnchanged(o), owner); err != nil {
		return false, fmt.Errorf("add finalizer %s to %s: %w", finalizer, describe(o), err)
	}
	return true, nil
}

// RemoveFinalizer removes a finalizer from an object, and reports whether the object had it. It is no error
// if the object is gone. It returns a conflict if the object has changed since it was read. The passed
// object is not modified.
func RemoveFinalizer(ctx context.Context, c client.Client, o client.Object, finalizer string) (removed bool, err error) {
	after := o.DeepCopyObject().(client.Object)
	if !controllerutil.RemoveFinalizer(after, finalizer) {
		return false, nil
	}
	if err := c.Patch(ctx, after, IfUnchanged(o), owner); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("remove finalizer %s from %s: %w", finalizer, describe(o), err)
	}
	return true, nil
}

// Delete deletes an object by its UID. It is no error if the object is gone or was recreated.
func Delete(ctx context.Context, c client.Client, o client.Object) error {
	uid := o.GetUID()
	err := c.Delete(ctx, o.DeepCopyObject().(client.Object), client.Preconditions{UID: &uid})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", describe(o), err)
	}
	return nil
}

// DeleteUnchanged deletes an object, or returns a conflict if it has changed since it was read. It is no
// error if the object is gone.
func DeleteUnchanged(ctx context.Context, c client.Client, o client.Object) error {
	uid, version := o.GetUID(), o.GetResourceVersion()
	err := c.Delete(ctx, o.DeepCopyObject().(client.Object), client.Preconditions{UID: &uid, ResourceVersion: &version})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete %s: %w", describe(o), err)
	}
	return nil
}

// PatchStatus writes an object's status by a patch made with IfUnchanged or client.MergeFrom. It is no error
// if the object is gone: o then keeps its resource version. Otherwise it is updated to the API server's version.
func PatchStatus(ctx context.Context, c client.Client, o client.Object, patch client.Patch) error {
	name := describe(o)
	if err := c.Status().Patch(ctx, o, patch, owner); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the status of %s: %w", name, err)
	}
	return nil
}

// ApplyStatus writes fields of an object's status by server-side apply with a field owner. It returns the
// resulting resource version, or "" if the object is gone. It returns a conflict if the object has changed
// since it was read: for a status, the API server checks the resource version and not the UID.
func ApplyStatus(ctx context.Context, c client.Client, o client.Object, kind schema.GroupVersionKind, fieldOwner string, status map[string]any) (version string, err error) {
	u := &unstructured.Unstructured{Object: map[string]any{"status": status}}
	u.SetGroupVersionKind(kind)
	u.SetNamespace(o.GetNamespace())
	u.SetName(o.GetName())
	u.SetResourceVersion(o.GetResourceVersion())
	err = c.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(fieldOwner), client.ForceOwnership)
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("write the status of %s: %w", describe(o), err)
	}
	return u.GetResourceVersion(), nil
}
