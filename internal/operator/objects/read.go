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
	"sigs.k8s.io/controller-runtime/pkg/client"
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
