package kube

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berthnet/berth/internal/ipfamily"
)

func assets(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("KUBEBUILDER_ASSETS")
	if dir == "" {
		t.Fatal("KUBEBUILDER_ASSETS is not set: run make test, or set it to what hack/kubebox.sh prints")
	}
	return dir
}

// up starts a control plane, which is stopped when the test ends.
func up(t *testing.T, o Options) *ControlPlane {
	t.Helper()
	o.Assets, o.Dir = assets(t), t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c, err := Start(ctx, o)
	ok(t, err)
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func client(t *testing.T, cfg *rest.Config) *kubernetes.Clientset {
	t.Helper()
	api, err := kubernetes.NewForConfig(cfg)
	ok(t, err)
	return api
}

// crd is a minimal CustomResourceDefinition.
const crd = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.test.berth.dev}
spec:
  group: test.berth.dev
  scope: Cluster
  names: {kind: Thing, plural: things, singular: thing, listKind: ThingList}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

func TestAControlPlane(t *testing.T) {
	c := up(t, Options{CRDs: fstest.MapFS{"things.yaml": {Data: []byte("# comment\n---" + crd)}}})

	t.Run("CRDs are usable at once", func(t *testing.T) {
		api, err := dynamic.NewForConfig(c.Config())
		ok(t, err)
		thing := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "test.berth.dev/v1", "kind": "Thing", "metadata": map[string]any{"name": "one"},
		}}
		things := api.Resource(schema.GroupVersionResource{Group: "test.berth.dev", Version: "v1", Resource: "things"})
		began := time.Now()
		_, err = things.Create(t.Context(), thing, metav1.CreateOptions{})
		ok(t, err)
		since, err := c.programs.established(t.Context(), api, "things.test.berth.dev")
		ok(t, err)
		if age := began.Sub(since); age < creationPause {
			t.Errorf("creation of the first object waited: its CRD was established for only %v", age)
		}
	})

	t.Run("RBAC decides", func(t *testing.T) {
		nobody, err := c.ConfigFor("nobody", "testers")
		ok(t, err)
		_, err = client(t, nobody).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `"nobody"`) {
			t.Errorf("a user without a role lists nodes: %v", err)
		}
	})

	t.Run("strangers are refused", func(t *testing.T) {
		if resp, err := http.Get(c.URL() + "/api"); err == nil {
			resp.Body.Close()
			t.Error("a client that does not know the authority was served")
		}
	})
}

func TestStartFails(t *testing.T) {
	t.Run("without programs", func(t *testing.T) {
		_, err := Start(t.Context(), Options{Assets: t.TempDir(), Dir: t.TempDir()})
		if err == nil || !strings.Contains(err.Error(), "hack/kubebox.sh") {
			t.Errorf("error %v, want one that names hack/kubebox.sh", err)
		}
	})
	t.Run("with a wrong argument", func(t *testing.T) {
		_, err := Start(t.Context(), Options{Assets: assets(t), Dir: t.TempDir(), APIServerArgs: []string{"--no-such-flag"}})
		if err == nil || !strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
			t.Errorf("error %v, want the program's message", err)
		}
	})
	t.Run("at an address of a family that Services have not", func(t *testing.T) {
		_, err := Start(t.Context(), Options{Assets: assets(t), Dir: t.TempDir(), Families: ipfamily.OnlyIPv6, Address: netip.MustParseAddr("127.0.0.1")})
		if err == nil || !strings.Contains(err.Error(), "address 127.0.0.1 of the API server: expected an IPv6 address") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("with another object among the CRDs", func(t *testing.T) {
		files := fstest.MapFS{"a.yaml": {Data: []byte("{apiVersion: v1, kind: Node, metadata: {name: node-1}}")}}
		_, err := Start(t.Context(), Options{Assets: assets(t), Dir: t.TempDir(), CRDs: files})
		if err == nil || !strings.Contains(err.Error(), `unexpected object Node "node-1"`) {
			t.Errorf("error %v", err)
		}
	})
}

// Applied objects are of any kind and scope, in the order of the files.
func TestApply(t *testing.T) {
	c := up(t, Options{})
	files := fstest.MapFS{
		"1.yaml": {Data: []byte("{apiVersion: v1, kind: Namespace, metadata: {name: here}}")},
		"2.yaml": {Data: []byte("{apiVersion: v1, kind: ServiceAccount, metadata: {name: a, namespace: here}}\n---\n" +
			"{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: r}, rules: []}")},
		"README": {Data: []byte("not an object")},
	}
	for range 2 {
		ok(t, c.Apply(t.Context(), files))
	}
	if _, err := client(t, c.Config()).CoreV1().ServiceAccounts("here").Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	bad := fstest.MapFS{"1.yaml": {Data: []byte("{apiVersion: v1, kind: Nonsense, metadata: {name: x}}")}}
	if err := c.Apply(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "Nonsense x") {
		t.Errorf("error %v, want one that names the object", err)
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAway(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	unconfigured := apierrors.NewForbidden(pods, "p", errors.New("a policy denied request: failed to configure policy"))
	unconfigured.ErrStatus.Reason = metav1.StatusReasonInvalid // the reason of every denial by a policy
	for _, tt := range []struct {
		err         error
		unavailable bool
	}{
		{errors.New("connection refused"), true},
		{apierrors.NewServiceUnavailable("etcd"), true},
		{apierrors.NewForbidden(pods, "p", errors.New("not yet ready to handle request")), true},
		{unconfigured, true},
		{apierrors.NewForbidden(pods, "p", errors.New("no such right")), false},
		{apierrors.NewNotFound(pods, "p"), false},
		{apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", nil), false},
	} {
		if got := Unavailable(tt.err); got != tt.unavailable {
			t.Errorf("Unavailable(%v) is %v, want %v", tt.err, got, tt.unavailable)
		}
		tries := 0
		err := Retry(t.Context(), "create a pod", func() error {
			if tries++; tries > 1 {
				return nil
			}
			return tt.err
		})
		if (err == nil) != tt.unavailable || !tt.unavailable && !errors.Is(err, tt.err) {
			t.Errorf("%v: tried %d times, then %v", tt.err, tries, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Retry(ctx, "create a pod", func() error { return errors.New("connection refused") }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}

// TestRemote reads an exported control plane.
func TestRemote(t *testing.T) {
	own := &ControlPlane{
		address: netip.MustParseAddrPort("127.0.0.1:6443"),
		admin: &rest.Config{
			Host: "https://127.0.0.1:6443", BearerToken: "administrator",
			TLSClientConfig: rest.TLSClientConfig{CAData: []byte("authority")},
		},
	}
	dir := t.TempDir()
	if _, err := own.Export(dir, netip.MustParseAddr("198.51.100.2")); err != nil {
		t.Fatal(err)
	}
	c, err := Remote(dir)
	if err != nil {
		t.Fatal(err)
	}
	for token, cfg := range map[string]*rest.Config{"administrator": c.Config(), "user": c.ConfigWithToken("user")} {
		if cfg.Host != "https://198.51.100.2:6443" || cfg.ServerName != "127.0.0.1" || string(cfg.CAData) != "authority" || cfg.BearerToken != token {
			t.Errorf("%s has server %s (%s), authority %q, token %q", token, cfg.Host, cfg.ServerName, cfg.CAData, cfg.BearerToken)
		}
	}
	if string(c.CA()) != "authority" {
		t.Errorf("the authority is %q", c.CA())
	}
	_, err = c.ConfigFor("user")
	for what, err := range map[string]error{"a certificate": err, "an end": c.KillAPIServer(), "a start": c.StartAPIServer(t.Context())} {
		if !errors.Is(err, errRemote) {
			t.Errorf("%s: got %v, want %v", what, err, errRemote)
		}
	}
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := Remote(t.TempDir()); err == nil {
		t.Error("Remote of an empty folder: no error")
	}
}

// A control plane starts from the snapshot of an earlier one. A damaged snapshot is removed, and the control
// plane starts without it.
func TestSnapshot(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	o := Options{CRDs: fstest.MapFS{"things.yaml": {Data: []byte(crd)}}}
	made := func() []string {
		t.Helper()
		snapshots, err := filepath.Glob(filepath.Join(cache, "berth", "control-planes", "*", "member"))
		ok(t, err)
		return snapshots
	}
	first := up(t, o)
	if n := len(made()); !first.restored || n != 1 {
		t.Fatalf("first control plane: restored is %v, with %d snapshots; want true and one snapshot", first.restored, n)
	}
	ok(t, first.Stop())

	mine, err := first.snapshot()
	ok(t, err)
	first.CRDs = nil
	if others, err := first.snapshot(); err != nil || others == mine {
		t.Errorf("snapshot without CRDs is %s, with CRDs %s, error %v: want different folders", others, mine, err)
	}

	damaged := filepath.Join(made()[0], "snap", "db")
	ok(t, os.WriteFile(damaged, []byte("not an etcd database"), 0o600))
	second := up(t, o)
	if _, err := client(t, second.Config()).Discovery().ServerResourcesForGroupVersion("test.berth.dev/v1"); err != nil {
		t.Errorf("with a damaged snapshot: %v", err)
	}
	ok(t, second.Stop())
	if left := made(); second.restored || len(left) != 0 {
		t.Errorf("with a damaged snapshot: restored is %v, remaining snapshots %q; want false and none", second.restored, left)
	}

	old := filepath.Join(filepath.Dir(mine), "old")
	ok(t, os.MkdirAll(old, 0o700))
	ok(t, os.Chtimes(old, time.Time{}, time.Now().Add(-2*snapshotAge)))
	young := filepath.Join(filepath.Dir(mine), "young")
	ok(t, os.MkdirAll(young, 0o700))
	ok(t, removeOld(filepath.Dir(mine)))
	if _, err := os.Stat(old); !os.IsNotExist(err) {
		t.Errorf("old snapshot not removed: %v", err)
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("new snapshot removed: %v", err)
	}
}
