package objects_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/migrate/coil/etcd"
	"github.com/berthnet/berth/internal/migrate/coil/objects"
	"github.com/berthnet/berth/lab/replay"
	"github.com/berthnet/berth/test/harness"
)

// clusterOf puts the objects of a recorded cluster into a control plane.
func clusterOf(t *testing.T, name string, egress bool) (*objects.Cluster, client.Client) {
	t.Helper()
	c := harness.KubeClient(t)
	crds := []string{}
	for _, crd := range replay.CRDs() {
		crds = append(crds, crd.GetName())
		harness.OK(t, client.IgnoreAlreadyExists(c.Create(t.Context(), crd)))
	}
	kinds := []string{"Node", "Namespace", "AddressPool", "AddressBlock", "BlockRequest"}
	harness.Eventually(t, time.Minute, "Coil's kinds "+strings.Join(crds, ", "), func() error { return replay.Apply(t.Context(), c, name, kinds...) })
	replicas := int32(2)
	labels := map[string]string{"app": "coil-controller"}
	d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}}}
	d.Namespace, d.Name, d.Spec.Template.Labels = "kube-system", "coil-controller", labels
	harness.OK(t, client.IgnoreAlreadyExists(c.Create(t.Context(), d)))

	cfg := rest.CopyConfig(harness.ControlPlane.Config())
	s := runtime.NewScheme()
	cfg.GroupVersion, cfg.NegotiatedSerializer = &schema.GroupVersion{}, serializer.NewCodecFactory(s).WithoutConversion()
	cfg.ContentType = runtime.ContentTypeJSON
	api, err := rest.UnversionedRESTClientFor(cfg)
	harness.OK(t, err)
	release := deploy.InMode(deploy.PoolMode, "test")
	release.Values["egress"] = map[string]any{"enabled": egress}
	harness.OperatorConfigOf(t, release) // with the admission policies and the role
	return &objects.Cluster{API: api, Operator: "system:serviceaccount:kube-system:berth-operator", Namespace: "kube-system", Clock: clock.Real{}}, c
}

func names(t *testing.T, c client.Client) (list []string) {
	t.Helper()
	blocks := &v1alpha1.AddressBlockList{}
	harness.OK(t, c.List(t.Context(), blocks))
	for _, b := range blocks.Items {
		text := fmt.Sprintf("%s %s", b.Name, b.NodeName)
		if b.DeletionTimestamp != nil {
			text += " deleted"
		}
		list = append(list, text)
	}
	pools := &v1alpha1.AddressPoolList{}
	harness.OK(t, c.List(t.Context(), pools))
	for _, p := range pools.Items {
		text := fmt.Sprintf("pool %s %v", p.Name, p.Spec.Reserved)
		if p.DeletionTimestamp != nil {
			text += " deleted"
		}
		list = append(list, text)
	}
	slices.Sort(list)
	return list
}

// waiting is a clock whose timers do something, and fire at once.
type waiting struct {
	clock.Real
	do func()
}

func (w waiting) After(time.Duration) <-chan time.Time {
	w.do()
	return time.After(0)
}

// The objects of a real cluster become Berth's, with the same indexes and nodes; a second run changes nothing, a rollback
// removes them, and in the end nothing of Coil is left.
func TestObjectsOfCluster(t *testing.T) {
	harness.StartKube(t)
	m, c := clusterOf(t, replay.V2Newest, false)
	if p, err := m.Plan(t.Context()); err != nil || len(p.Steps) != 2 || len(p.Obstacles) != 1 || len(names(t, c)) != 0 {
		t.Fatalf("plan = %+v, %v; want two steps and one obstacle, and no objects", p, err)
	}
	want := []string{
		"default-0 node-1", "default-1 node-1", "default-2 node-2", "default-3 node-3", "default-40 node-2",
		"dual-0 node-1", "dual-1 node-2 deleted", "dual-2 node-2", "dual-3 node-3",
		"global-0 node-1", "global-1 node-2", "global-2 node-2", "global-3 node-1",
		"pool default [10.72.0.32/29 10.72.1.64/29]", "pool dual []", "pool global []", "pool v6only [] deleted",
		"v6only-0 node-1", "v6only-1 node-2",
	}
	run := func(what string, do func() ([]string, error), changes bool) {
		t.Helper()
		changed, err := do()
		if err != nil || (len(changed) > 0) != changes {
			t.Fatalf("%s changed %q, error %v", what, changed, err)
		}
	}
	annotation := func(of string) string {
		ns := &corev1.Namespace{}
		harness.OK(t, c.Get(t.Context(), client.ObjectKey{Name: "shop"}, ns))
		return ns.Annotations[of]
	}
	controller := func() string {
		d := &appsv1.Deployment{}
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "coil-controller"}, d); err != nil {
			return "gone"
		}
		return fmt.Sprint(*d.Spec.Replicas)
	}
	is := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s = %s, want %s", what, got, want)
		}
	}
	begin := func() ([]string, error) { return m.Begin(t.Context()) }

	// A pod of Coil's controller that is being deleted still cuts blocks, though its Deployment does not count it.
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "c", Image: "c"}}}}
	pod.Namespace, pod.Name, pod.Labels = "kube-system", "coil-controller-x-y", map[string]string{"app": "coil-controller"}
	coils := &appsv1.Deployment{}
	harness.OK(t, c.Get(t.Context(), client.ObjectKey{Namespace: pod.Namespace, Name: "coil-controller"}, coils))
	set := &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Selector: coils.Spec.Selector, Template: coils.Spec.Template}}
	set.Namespace, set.Name, set.Labels = pod.Namespace, "coil-controller-x", pod.Labels
	set.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(coils, appsv1.SchemeGroupVersion.WithKind("Deployment"))}
	harness.OK(t, c.Create(t.Context(), set))
	others := pod.DeepCopy() // of another Deployment with the same labels
	others.Name = "coil-controller-x-z"
	others.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: set.Name, UID: "x", Controller: new(true)}}
	harness.OK(t, c.Create(t.Context(), others))
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	harness.OK(t, c.Create(t.Context(), pod))
	harness.OK(t, c.Delete(t.Context(), pod))
	waits := 0
	m.Clock = waiting{do: func() {
		if waits++; waits == 2 {
			is("objects while Coil's controller ends", strings.Join(names(t, c), "\n"), "")
			harness.OK(t, c.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
		}
	}}
	run("begin", begin, true)
	is("waits for Coil's controller", fmt.Sprint(waits), "2")
	run("begin again", begin, false)
	is("objects", strings.Join(names(t, c), "\n"), strings.Join(want, "\n"))
	is("annotation", annotation(v1alpha1.AnnotationPool), "dual")
	is("replicas", controller(), "0")

	// What Berth did with its objects since is not undone by a repeated begin.
	b, pool := &v1alpha1.AddressBlock{}, &v1alpha1.AddressPool{}
	harness.OK(t, c.Get(t.Context(), client.ObjectKey{Name: "default-0"}, b))
	harness.OK(t, c.Get(t.Context(), client.ObjectKey{Name: "default"}, pool))
	harness.OK(t, c.Delete(t.Context(), b))
	harness.OK(t, c.Patch(t.Context(), b, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))))
	run("begin a third time", begin, false)

	run("back", func() ([]string, error) { return m.Back(t.Context()) }, true)
	run("back again", func() ([]string, error) { return m.Back(t.Context()) }, false)
	is("objects after the rollback", strings.Join(names(t, c), "\n"), "")
	is("replicas after the rollback", controller(), "2")

	// Objects that Berth has already do not give a block of Coil's to another node, nor what is reserved to pods.
	reserved := pool.Spec.Reserved
	pool.ObjectMeta, pool.Spec.Reserved = metav1.ObjectMeta{Name: pool.Name}, nil
	harness.OK(t, c.Create(t.Context(), pool))
	refused := func(says string) {
		t.Helper()
		if _, err := begin(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("begin with a pool of Berth: %v, want %q", err, says)
		}
	}
	refused("spec.reserved lacks 10.72.0.32/29")
	pool.Spec.Reserved = reserved
	harness.OK(t, c.Update(t.Context(), pool))
	block := b.DeepCopy()
	block.ObjectMeta, block.NodeName = metav1.ObjectMeta{Name: b.Name, OwnerReferences: b.OwnerReferences}, "node-2"
	block.OwnerReferences[0].UID = pool.UID
	block.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "AddressBlock"}
	text, err := json.Marshal(block)
	harness.OK(t, err)
	harness.OK(t, m.API.Post().AbsPath("/apis/berth.dev/v1alpha1/addressblocks").SetHeader("Content-Type", "application/json").
		SetHeader("Impersonate-User", m.Operator).Body(text).Do(t.Context()).Error())
	refused("AddressBlock default-0 exists, and not for Node node-1")
	harness.OK(t, c.Delete(t.Context(), block))
	harness.OK(t, c.Delete(t.Context(), pool))

	run("begin after the rollback", begin, true)
	run("finish", func() ([]string, error) { return m.Finish(t.Context()) }, true)
	run("finish again", func() ([]string, error) { return m.Finish(t.Context()) }, false)
	is("annotation of Coil", annotation("coil.cybozu.com/pool"), "")
	is("controller", controller(), "gone")
	for _, kind := range []string{"AddressPool", "AddressBlock", "BlockRequest"} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(schema.GroupVersionKind{Group: replay.Group, Version: "v2", Kind: kind + "List"})
		harness.OK(t, c.List(t.Context(), list))
		if len(list.Items) > 0 {
			t.Errorf("%d objects of Coil's kind %s are left", len(list.Items), kind)
		}
	}

	// Coil v1, with two of its three nodes.
	harness.KubeClean(t)
	for _, name := range []string{"node-1", "node-2"} {
		n := &corev1.Node{}
		n.Name = name
		harness.OK(t, client.IgnoreAlreadyExists(c.Create(t.Context(), n)))
	}
	data, err := replay.EtcdDump()
	harness.OK(t, err)
	d, err := etcd.ParseDump(bytes.TrimSpace(data), etcd.DefaultPrefix)
	harness.OK(t, err)
	m.Dump = &d
	run("begin of v1", begin, true)
	run("begin of v1 again", begin, false)
	if got := strings.Join(names(t, c), "\n"); !strings.Contains(got, "shop-2 node-2") || !strings.Contains(got, "pool default [10.64.0.24/29]") {
		t.Errorf("objects of v1:\n%s", got)
	}
}
