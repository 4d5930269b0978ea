package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab/run/kube"
)

// ControlPlane is the package's control plane while Kube runs.
var ControlPlane *kube.ControlPlane

// Kube starts a control plane that has Berth's CRDs, has prepare add to it, runs a
// package's tests, and returns the exit code, for TestMain. In a virtual machine the
// control plane is the host's (test/guest), which the tests of several packages share.
//
//	func TestMain(m *testing.M) { os.Exit(harness.Kube(m.Run)) }
func Kube(run func() int, prepare ...func() error) (code int) {
	return kubeOf(kube.Options{}, run, prepare...)
}

// KubeWithControllers is Kube with kube-controller-manager and dual-stack Services: Deployments get
// pods, which nobody runs, and garbage is collected.
func KubeWithControllers(run func() int, prepare ...func() error) (code int) {
	return kubeOf(kube.Options{Controllers: true, Families: ipfamily.Dual}, run, prepare...)
}

// KubeWithScheduler is Kube with kube-scheduler: pods get Nodes, on which nobody runs them. Nobody
// removes the first taint of a Node.
func KubeWithScheduler(run func() int, prepare ...func() error) (code int) {
	return kubeOf(kube.Options{Scheduler: true}, run, prepare...)
}

func kubeOf(o kube.Options, run func() int, prepare ...func() error) (code int) {
	ctrllog.SetLogger(logr.Discard()) // of the tests' own clients
	own, err := kubeUp(o)
	for _, do := range prepare {
		if err == nil {
			err = do()
		}
	}
	if err == nil {
		code = run()
	}
	if own {
		err = errors.Join(err, ControlPlane.Stop(), os.RemoveAll(ControlPlane.Dir))
	}
	if err != nil {
		fmt.Println("FAIL:", err)
		return 1
	}
	return code
}

// StartKube runs a control plane as Kube does until the test ends, for packages whose other
// tests need none.
func StartKube(t *testing.T) {
	t.Helper()
	own, err := kubeUp(kube.Options{})
	OK(t, err)
	if own {
		t.Cleanup(func() { OK(t, errors.Join(ControlPlane.Stop(), os.RemoveAll(ControlPlane.Dir))) })
	}
}

// kubeUp sets ControlPlane, and starts it (own) unless another process runs one for the tests.
func kubeUp(o kube.Options) (own bool, err error) {
	if dir := os.Getenv(kube.RemoteDir); dir != "" {
		ControlPlane, err = kube.Remote(dir)
		return false, err
	}
	o.Assets, o.CRDs = os.Getenv("KUBEBUILDER_ASSETS"), deploy.CRDs()
	if o.Assets == "" {
		return false, errors.New("these tests need a Kubernetes control plane: run them by `make test`, or set KUBEBUILDER_ASSETS to the folder that hack/kubebox.sh prints")
	}
	if o.Dir, err = os.MkdirTemp("", "kube-"); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if ControlPlane, err = kube.Start(ctx, o); err != nil {
		return false, errors.Join(err, os.RemoveAll(o.Dir))
	}
	return true, nil
}

// WithoutAPIServer kills the API server of ControlPlane. back, or the end of the test, starts it again
// with its data.
func WithoutAPIServer(t *testing.T) (back func()) {
	t.Helper()
	OK(t, ControlPlane.KillAPIServer())
	up := false
	t.Cleanup(func() {
		if !up {
			_ = ControlPlane.StartAPIServer(context.Background())
		}
	})
	return func() {
		t.Helper()
		OK(t, ControlPlane.StartAPIServer(Deadline(t, 10*time.Minute)))
		up = true
	}
}

// KubeClient is the administrator's client for Berth's and Kubernetes' kinds, without a cache.
func KubeClient(t *testing.T) client.Client {
	t.Helper()
	return KubeClientFor(t, ControlPlane.Config())
}

// KubeClientFor is KubeClient for another user.
func KubeClientFor(t *testing.T, cfg *rest.Config) client.Client {
	t.Helper()
	c, err := newKubeClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newKubeClient(cfg *rest.Config) (client.Client, error) {
	scheme, err := kubeScheme()
	if err != nil {
		return nil, err
	}
	o := client.Options{Scheme: scheme}
	if ControlPlane != nil && cfg.Host == ControlPlane.URL() {
		if o.Mapper, err = kubeMapper(); err != nil {
			return nil, err
		}
	}
	return client.New(cfg, o)
}

// kubeScheme and kubeMapper, which is ControlPlane's, are made once: tests make hundreds of clients,
// and each mapper asks the API server for its kinds.
var (
	kubeScheme = sync.OnceValues(func() (*runtime.Scheme, error) {
		scheme := runtime.NewScheme()
		return scheme, errors.Join(clientscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme))
	})
	kubeMapper = sync.OnceValues(func() (meta.RESTMapper, error) {
		cfg := ControlPlane.Config()
		with, err := rest.HTTPClientFor(cfg)
		if err != nil {
			return nil, err
		}
		return apiutil.NewDynamicRESTMapper(cfg, with)
	})
)

// KubeClean removes all objects of Berth's kinds, Nodes, Events and Pods, now and when the test ends.
func KubeClean(t *testing.T) {
	t.Helper()
	if err := kubeClean(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kubeClean(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func kubeClean(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	c, err := newKubeClient(ControlPlane.Config())
	if err != nil {
		return err
	}
	return kube.Retry(ctx, "clean up", func() error { return kubeCleanOnce(ctx, c) })
}

func kubeCleanOnce(ctx context.Context, c client.Client) error {
	namespaces := &corev1.NamespaceList{}
	if err := c.List(ctx, namespaces); err != nil {
		return err
	}
	for _, ns := range namespaces.Items {
		for _, o := range []client.Object{&corev1.Pod{}, &corev1.Event{}} {
			// No kubelet ends pods here.
			if err := c.DeleteAllOf(ctx, o, client.InNamespace(ns.Name), client.GracePeriodSeconds(0)); err != nil {
				return fmt.Errorf("namespace %s: %w", ns.Name, err)
			}
		}
	}
	if err := c.DeleteAllOf(ctx, &corev1.Node{}); err != nil {
		return fmt.Errorf("nodes: %w", err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "berth-operator"}} // of one that is no more
	if err := client.IgnoreNotFound(c.Delete(ctx, lease)); err != nil {
		return fmt.Errorf("the Lease of operators: %w", err)
	}
	for _, list := range []client.ObjectList{
		&v1alpha1.NodeNetworkList{}, &v1alpha1.NodeNetworkTemplateList{}, &v1alpha1.BlockRequestList{}, &v1alpha1.AddressBlockList{}, &v1alpha1.AddressPoolList{},
		&v1alpha1.NICPolicyList{}, &v1alpha1.PodNICList{}, &v1alpha1.VPCList{},
		&v1alpha1.EgressClientSliceList{}, &v1alpha1.EgressClientList{}, &v1alpha1.EgressList{},
	} {
		if err := removeAll(ctx, c, list); err != nil {
			return err
		}
	}
	return nil
}

// removeAll deletes the objects of a kind with their finalizers.
func removeAll(ctx context.Context, c client.Client, list client.ObjectList) error {
	if err := c.List(ctx, list); err != nil {
		return err
	}
	return meta.EachListItem(list, func(item runtime.Object) error {
		o := item.(client.Object)
		if err := client.IgnoreNotFound(c.Delete(ctx, o)); err != nil || len(o.GetFinalizers()) == 0 {
			return err
		}
		return client.IgnoreNotFound(c.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
	})
}

// KubeTable is what `kubectl get` shows of a cluster-scoped resource.
func KubeTable(t *testing.T, resource schema.GroupVersionResource) metav1.Table {
	t.Helper()
	api, err := discovery.NewDiscoveryClientForConfig(ControlPlane.Config())
	if err != nil {
		t.Fatal(err)
	}
	data, err := api.RESTClient().Get().AbsPath("/apis", resource.Group, resource.Version, resource.Resource).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(data, &table); err != nil {
		t.Fatal(err)
	}
	return table
}
