package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

// Apply applies the objects of the *.yaml files in the order of the file names, as kubectl apply does.
func (c *ControlPlane) Apply(ctx context.Context, files fs.FS) error {
	objects, err := readObjects(files)
	if err != nil {
		return err
	}
	return c.ApplyObjects(ctx, objects)
}

// ApplyObjects applies objects in the given order.
func (c *ControlPlane) ApplyObjects(ctx context.Context, objects []*unstructured.Unstructured) error {
	api, err := dynamic.NewForConfig(c.Config())
	if err != nil {
		return err
	}
	for _, o := range objects {
		m, err := c.mapping(ctx, o.GroupVersionKind())
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		target := dynamic.ResourceInterface(api.Resource(m.Resource))
		if m.Scope.Name() == meta.RESTScopeNameNamespace {
			target = api.Resource(m.Resource).Namespace(o.GetNamespace())
		}
		if err := apply(ctx, target, o); err != nil {
			return err
		}
	}
	return nil
}

// mapping returns the resource of a kind. It caches the list of kinds, and refreshes it if a kind is missing.
func (c *ControlPlane) mapping(ctx context.Context, kind schema.GroupVersionKind) (*meta.RESTMapping, error) {
	if kinds := c.kinds.Load(); kinds != nil {
		if m, err := (*kinds).RESTMapping(kind.GroupKind(), kind.Version); err == nil {
			return m, nil
		}
	}
	discoverer, err := discovery.NewDiscoveryClientForConfig(c.Config())
	if err != nil {
		return nil, err
	}
	var groups []*restmapper.APIGroupResources
	if err := Retry(ctx, "list the API's kinds", func() (err error) {
		groups, err = restmapper.GetAPIGroupResources(discoverer)
		return err
	}); err != nil {
		return nil, err
	}
	kinds := restmapper.NewDiscoveryRESTMapper(groups)
	c.kinds.Store(&kinds)
	return kinds.RESTMapping(kind.GroupKind(), kind.Version)
}

// fieldOwner is the field manager of applied objects.
const fieldOwner = "vpclab"

func apply(ctx context.Context, target dynamic.ResourceInterface, o *unstructured.Unstructured) error {
	return Retry(ctx, "apply "+o.GetKind()+" "+o.GetName(), func() error {
		_, err := target.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: fieldOwner, Force: true})
		return err
	})
}

// readObjects reads every object of the *.yaml files, in order of their names.
func readObjects(files fs.FS) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Ext(name) != ".yaml" {
			return err
		}
		f, err := files.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		decoder := yaml.NewYAMLOrJSONDecoder(f, 4096)
		for {
			o := &unstructured.Unstructured{}
			if err := decoder.Decode(&o.Object); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if len(o.Object) > 0 { // zero: only comments
				objects = append(objects, o)
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	return objects, nil
}
