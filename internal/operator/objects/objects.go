// Package objects reads and writes objects of the Kubernetes API the way all controllers of
// berth-operator do: under the operator's field owner, and only if an object still is the one
// that the decision was made on.
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

// Shared has Get return the cache's own object instead of a copy: the caller must not change it.
const Shared = client.UnsafeDisableDeepCopy

// Get returns the object of a key, or nil if there is none.
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

// List returns the objects that opts select. They are the cache's own where r is one: the caller
// must not change them.
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

// Keys returns the keys of the objects that opts select; none while they cannot be read.
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

// nameOf is a key as people write it.
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

// IfUnchanged is a patch with what differs from before. The API server answers with a conflict
// if the object has changed since: queue.RetryConflicts reconciles it again then.
func IfUnchanged(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}

// Patch changes before to after, unless the object has changed since it was before. The error is
// a conflict then, and NotFound if it is gone. After becomes the object as it is at the API server.
func Patch(ctx context.Context, c client.Client, before, after client.Object) error {
	if err := c.Patch(ctx, after, IfUnchanged(before), owner); err != nil {
		return fmt.Errorf("write %s: %w", describe(before), err)
	}
	return nil
}

// AddFinalizer gives an object a finalizer, and reports whether it had none. The error is a
// conflict if the object has changed since it was read. The object itself stays as it was read.
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

// RemoveFinalizer takes a finalizer off an object, and reports whether it had it. An object that is
// gone is no error; the error is a conflict if the object has changed since it was read. The
// object itself stays as it was read.
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

// Delete deletes the object that was read, by its UID. One that is gone, or was replaced by
// another of its name, is no error.
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

// DeleteUnchanged deletes an object unless it has changed since it was read: the error is a
// conflict then. One that is gone is no error.
func DeleteUnchanged(ctx context.Context, c client.Client, o client.Object) error {
	uid, version := o.GetUID(), o.GetResourceVersion()
	err := c.Delete(ctx, o.DeepCopyObject().(client.Object), client.Preconditions{UID: &uid, ResourceVersion: &version})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete %s: %w", describe(o), err)
	}
	return nil
}

// PatchStatus writes an object's status by a patch, which IfUnchanged or client.MergeFrom makes. An
// object that is gone is no error. O becomes the object as it is at the API server.
func PatchStatus(ctx context.Context, c client.Client, o client.Object, patch client.Patch) error {
	name := describe(o)
	if err := c.Status().Patch(ctx, o, patch, owner); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the status of %s: %w", name, err)
	}
	return nil
}

// ApplyStatus writes fields of the status of an object that was read, by server-side apply
// under a field owner. It returns the resource version after that, which is empty if the object
// is gone. The error is a conflict if the object has changed since: of a status the API server
// checks the resource version, and not the UID.
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
