package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/berthnet/berth/lab/run/poll"
)

// waitUntilReady waits until the API server reports itself as ready.
func (c *ControlPlane) waitUntilReady(ctx context.Context) error {
	api, err := discovery.NewDiscoveryClientForConfig(c.Config())
	if err != nil {
		return err
	}
	return c.programs.until(ctx, "wait for the API server", func() error {
		return api.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// waitForBootstrap waits for the objects that the API server creates by itself, some of them after it is ready.
func (c *ControlPlane) waitForBootstrap(ctx context.Context) error {
	api, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		return err
	}
	for _, name := range []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, metav1.NamespaceDefault} {
		if err := c.programs.until(ctx, "wait for namespace "+name, func() error {
			_, err := api.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
			return err
		}); err != nil {
			return err
		}
	}
	return c.programs.until(ctx, "wait for Service default/kubernetes", func() error {
		_, err := api.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
		return err
	})
}

// waitForController waits, with Controllers, for the service account without which namespace "default" admits no pod.
func (c *ControlPlane) waitForController(ctx context.Context) error {
	if !c.Controllers {
		return nil
	}
	api, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		return err
	}
	return c.programs.until(ctx, "wait for service account default/default", func() error {
		_, err := api.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

var crds = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// InstallCRDs applies the CustomResourceDefinitions of the *.yaml files, and waits until their objects can be created.
func (c *ControlPlane) InstallCRDs(ctx context.Context, files fs.FS) error {
	return c.installCRDs(ctx, files, false)
}

// installCRDs implements InstallCRDs. With keep it does not apply existing CRDs.
func (c *ControlPlane) installCRDs(ctx context.Context, files fs.FS, keep bool) error {
	objects, err := readObjects(files)
	if err != nil {
		return err
	}
	api, err := dynamic.NewForConfig(c.Config())
	if err != nil {
		return err
	}
	var found *unstructured.UnstructuredList
	if err := c.programs.until(ctx, "install CRDs", func() (err error) {
		found, err = api.Resource(crds).List(ctx, metav1.ListOptions{})
		return err
	}); err != nil {
		return err
	}
	for _, o := range objects {
		if o.GetKind() != "CustomResourceDefinition" {
			return fmt.Errorf("install CRDs: unexpected object %s %q", o.GetKind(), o.GetName())
		}
		if keep && slices.ContainsFunc(found.Items, func(f unstructured.Unstructured) bool { return f.GetName() == o.GetName() }) {
			continue
		}
		if err := apply(ctx, api.Resource(crds), o); err != nil {
			return err
		}
	}
	var usable time.Time
	for _, o := range objects {
		established, err := c.programs.established(ctx, api, o.GetName())
		if err != nil {
			return err
		}
		if t := established.Add(creationPause); t.After(usable) {
			usable = t
		}
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("install CRDs: %w", ctx.Err())
	case <-time.After(time.Until(usable)):
		return nil
	}
}

// creationPause is how long the API server delays the creation of objects after their CRD was established
// (apiextensions-apiserver, serveResource). Conditions have whole seconds.
const creationPause = 2 * time.Second

// established waits until the CRD is established, and returns the time of that.
func (s *programs) established(ctx context.Context, api dynamic.Interface, name string) (since time.Time, err error) {
	err = s.until(ctx, "install CRD "+name, func() error {
		crd, err := api.Resource(crds).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
		for _, v := range conditions {
			condition, _ := v.(map[string]any)
			if condition["type"] == "Established" && condition["status"] == "True" {
				since, err = time.Parse(time.RFC3339, fmt.Sprint(condition["lastTransitionTime"]))
				return err
			}
		}
		return fmt.Errorf("not established: %v", conditions)
	})
	return since, err
}

// notReady are errors of admission plugins that have not synced their objects or kinds yet
// (k8s.io/apiserver/pkg/admission.WaitForReady and plugin/policy). Their reason is Forbidden or Invalid.
var notReady = []string{"not yet ready to handle request", "failed to configure policy", "failed to configure binding"}

// Unavailable reports whether an error means that the API server cannot serve the request, for example because it
// waits for etcd. Other errors are rejections.
func Unavailable(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return true // no response
	}
	contains := func(text string) bool { return strings.Contains(err.Error(), text) }
	return slices.ContainsFunc(notReady, contains) || apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsConflict(err)
}

// Retry retries a request while the API server is Unavailable. Errors begin with what.
func Retry(ctx context.Context, what string, do func() error) error {
	if err := poll.Retry(ctx, do, Unavailable); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
