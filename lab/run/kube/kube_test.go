package kube

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab/run/poll"
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

// crd is the least that a CustomResourceDefinition can be.
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
		if _, err := things.Create(t.Context(), thing, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		since, err := c.established(t.Context(), api, "things.test.berth.dev")
		ok(t, err)
		if age := began.Sub(since); age < creationPause {
			t.Errorf("the first object had to wait: its kind was known for %v", age)
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

	t.Run("a token names the pod's node", func(t *testing.T) {
		token, err := c.NodeToken(t.Context(), types.NamespacedName{Namespace: "kube-system", Name: "agent"}, "node-7")
		ok(t, err)
		claims, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
		if err != nil || !strings.Contains(string(claims), `"node":{"name":"node-7"`) {
			t.Errorf("claims %s, %v", claims, err)
		}
		_, err = client(t, c.ConfigWithToken(token)).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "system:serviceaccount:kube-system:agent") {
			t.Errorf("who has the token lists nodes: %v", err)
		}
	})

	t.Run("the kubeconfig works elsewhere", func(t *testing.T) {
		cfg, err := clientcmd.BuildConfigFromFlags("", c.AdminKubeconfig())
		ok(t, err)
		if _, err := client(t, cfg).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	})

	t.Run("strangers are refused", func(t *testing.T) {
		if resp, err := http.Get(c.URL() + "/api"); err == nil {
			resp.Body.Close()
			t.Error("a client that does not know the authority was served")
		}
	})
}

// The API server goes away and comes back with what it knew.
func TestAPIServerDown(t *testing.T) {
	c := up(t, Options{})
	api := client(t, c.Config()).CoreV1().Nodes()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	if _, err := api.Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ok(t, c.KillAPIServer())
	if err := c.until(t.Context(), "the port refuses", func() error { // after the connections that were open
		_, err := api.Get(t.Context(), "node-1", metav1.GetOptions{})
		if err == nil {
			t.Fatal("an API server answers that was killed")
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			return nil
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	ok(t, c.StartAPIServer(t.Context()))
	if _, err := api.Get(t.Context(), "node-1", metav1.GetOptions{}); err != nil {
		t.Errorf("after its return: %v", err)
	}
	ok(t, c.Stop())
	for _, p := range c.programs {
		if p.Running() {
			t.Errorf("%s runs after Stop", p)
		}
	}
}

// The controllers make a namespace's account and collect what lost its owner;
// the scheduler finds a node. All of it goes by IPv6, if it is to, and Services have IPv6.
func TestControllersAndScheduler(t *testing.T) {
	c := up(t, Options{Controllers: true, Scheduler: true, Families: ipfamily.OnlyIPv6})
	api := client(t, c.Config()).CoreV1()
	if s, err := api.Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}); err != nil || s.Spec.ClusterIP != "fd00:96::1" {
		t.Errorf("the API server's Service has the address %q, want the first of IPv6; %v", s.Spec.ClusterIP, err)
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}},
		},
	}
	if _, err := api.Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	pods := api.Pods("default")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod-1"},
		Spec: corev1.PodSpec{
			Containers:  []corev1.Container{{Name: "c", Image: "i"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.until(ctx, "schedule it", func() error {
		p, err := pods.Get(ctx, "pod-1", metav1.GetOptions{})
		if err == nil && p.Spec.NodeName != "node-1" {
			err = errors.New("not scheduled")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestStartFails(t *testing.T) {
	t.Run("without programs", func(t *testing.T) {
		_, err := Start(t.Context(), Options{Assets: t.TempDir(), Dir: t.TempDir()})
		if err == nil || !strings.Contains(err.Error(), "hack/kubebox.sh") {
			t.Errorf("error %v, want one that says how to get them", err)
		}
	})
	t.Run("with a wrong argument", func(t *testing.T) {
		_, err := Start(t.Context(), Options{Assets: assets(t), Dir: t.TempDir(), APIServerArgs: []string{"--no-such-flag"}})
		if err == nil || !strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
			t.Errorf("error %v, want the program's own words", err)
		}
	})
	t.Run("at an address of a family that Services have not", func(t *testing.T) {
		_, err := Start(t.Context(), Options{Assets: assets(t), Dir: t.TempDir(), Families: ipfamily.OnlyIPv6, Address: netip.MustParseAddr("127.0.0.1")})
		if err == nil || !strings.Contains(err.Error(), "address 127.0.0.1 of the API server: want one of IPv6") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("with another object among the CRDs", func(t *testing.T) {
		files := fstest.MapFS{"a.yaml": {Data: []byte("{apiVersion: v1, kind: Node, metadata: {name: node-1}}")}}
		_, err := Start(t.Context(), Options{Assets: assets(t), Dir: t.TempDir(), CRDs: files})
		if err == nil || !strings.Contains(err.Error(), `there is a Node "node-1" among them`) {
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

// A control plane ends with its starter, however that ends.
func TestEndsWithItsStarter(t *testing.T) {
	if dir := os.Getenv("KUBE_TEST_STARTER"); dir != "" {
		c, err := Start(t.Context(), Options{Assets: assets(t), Dir: dir})
		ok(t, err)
		_ = os.WriteFile(filepath.Join(dir, "url"), []byte(c.URL()), 0o600)
		os.Stdout.WriteString("up\n")
		select {} // until killed
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestEndsWithItsStarter$")
	cmd.Env = append(os.Environ(), "KUBE_TEST_STARTER="+dir)
	out, err := cmd.StdoutPipe()
	ok(t, err)
	ok(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "up\n" {
		rest, _ := io.ReadAll(out)
		t.Fatalf("the starter said %q %s, %v", line, rest, err)
	}
	ok(t, cmd.Process.Kill())
	_ = cmd.Wait()
	url, err := os.ReadFile(filepath.Join(dir, "url"))
	ok(t, err)
	at := netip.MustParseAddrPort(strings.TrimPrefix(string(url), "https://"))
	deadline, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for {
		ln, err := listen("", at)
		if err == nil {
			ln.Close()
			break
		}
		select {
		case <-deadline.Done():
			t.Fatalf("the API server outlives its starter: %v", err)
		case <-time.After(poll.Often):
		}
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
