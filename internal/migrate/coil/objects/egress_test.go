package objects_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/migrate/coil/objects"
	"github.com/berthnet/berth/lab/replay"
	"github.com/berthnet/berth/test/harness"
)

// faults fails each write twice: before the API server has it, and after.
type faults struct{ seen map[string]int }

var errKilled = errors.New("killed")

func (f *faults) wrap(r *http.Request, next http.RoundTripper) (*http.Response, error) {
	if r.Method == http.MethodGet {
		return next.RoundTrip(r)
	}
	what := r.Method + " " + r.URL.Path
	if r.Body != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(body)
		if err != nil {
			return nil, err
		}
		// Versions of objects change between the calls.
		version, _, _ := strings.Cut(string(text), `"resourceVersion"`)
		what += version
	}
	f.seen[what]++
	switch f.seen[what] {
	case 1:
		return nil, errKilled
	case 2:
		if _, err := next.RoundTrip(r); err != nil {
			return nil, err
		}
		return nil, errKilled
	}
	return next.RoundTrip(r)
}

// egresses are the Egresses of a recorded cluster, with their objects, in a control plane. It collects garbage as
// kube-controller-manager does.
type egresses struct {
	t *testing.T
	c client.Client
	m *objects.Cluster
}

func egressesOf(t *testing.T, name string) *egresses {
	t.Helper()
	m, c := clusterOf(t, name, true)
	e := &egresses{t, c, m}
	harness.OK(t, replay.Apply(t.Context(), c, name, "Egress"))
	cfg := rest.CopyConfig(harness.ControlPlane.Config())
	cfg.GroupVersion, cfg.NegotiatedSerializer, cfg.ContentType = &schema.GroupVersion{}, serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion(), runtime.ContentTypeJSON
	cfg.Wrap(harness.Through((&faults{map[string]int{}}).wrap))
	api, err := rest.UnversionedRESTClientFor(cfg)
	harness.OK(t, err)
	m.API = api
	for _, name := range []string{"nat", "partner"} {
		e.objectsOf(name)
	}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "internet", Name: "coil-egress"}}
	harness.OK(t, client.IgnoreAlreadyExists(c.Create(t.Context(), sa)))
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	go e.collect(ctx)
	return e
}

// objectsOf creates what Coil's controller keeps for an Egress.
func (e *egresses) objectsOf(name string) {
	e.t.Helper()
	labels := map[string]string{"app.kubernetes.io/name": "coil", "app.kubernetes.io/component": "egress", "app.kubernetes.io/instance": name}
	of := e.coils(name)
	meta := metav1.ObjectMeta{Namespace: "internet", Name: name, Labels: labels, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(of, of.GroupVersionKind())}}
	replicas, template := int32(2), corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "egress", Image: "coil"}}}}
	d := &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template}}
	harness.OK(e.t, e.c.Create(e.t.Context(), d))
	s := &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: d.Spec.Selector, Template: template}}
	s.Name, s.OwnerReferences = name+"-b48c4b77c", []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))}
	svc := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 5555, Protocol: corev1.ProtocolUDP}}}}
	b := &policyv1.PodDisruptionBudget{ObjectMeta: meta, Spec: policyv1.PodDisruptionBudgetSpec{Selector: d.Spec.Selector}}
	for _, o := range []client.Object{s, svc, b} {
		harness.OK(e.t, e.c.Create(e.t.Context(), o))
	}
}

func (e *egresses) coils(name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: replay.Group, Version: "v2", Kind: "Egress"})
	if err := e.c.Get(e.t.Context(), client.ObjectKey{Namespace: "internet", Name: name}, o); err != nil {
		return nil
	}
	return o
}

// collect leaves what a Deployment without owner has, and deletes Deployments of Egresses that are gone.
func (e *egresses) collect(ctx context.Context) {
	for ctx.Err() == nil {
		deployments, sets := &appsv1.DeploymentList{}, &appsv1.ReplicaSetList{}
		_ = errors.Join(e.c.List(ctx, deployments, client.InNamespace("internet")), e.c.List(ctx, sets, client.InNamespace("internet")))
		for _, d := range deployments.Items {
			owner := metav1.GetControllerOf(&d)
			if owner != nil && strings.HasPrefix(owner.APIVersion, v1alpha1.GroupVersion.Group) && d.DeletionTimestamp == nil &&
				apierrors.IsNotFound(e.c.Get(ctx, client.ObjectKey{Namespace: d.Namespace, Name: owner.Name}, &v1alpha1.Egress{})) {
				_ = e.c.Delete(ctx, &d)
			}
			if !slices.Contains(d.Finalizers, metav1.FinalizerOrphanDependents) {
				continue
			}
			for _, s := range sets.Items {
				if metav1.IsControlledBy(&s, &d) {
					s.OwnerReferences = nil
					_ = e.c.Update(ctx, &s)
				}
			}
			d.Finalizers = nil
			_ = e.c.Update(ctx, &d)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// until repeats a step, which is killed before and after each change, until it ends.
func (e *egresses) until(what string, step func(context.Context) ([]string, error)) {
	e.t.Helper()
	kills := 0
	for ; kills < 500; kills++ {
		if _, err := step(e.t.Context()); err == nil {
			break
		} else if !errors.Is(err, errKilled) && !strings.Contains(err.Error(), errKilled.Error()) {
			e.t.Fatalf("%s after %d kills: %v", what, kills, err)
		}
	}
	if changed, err := step(e.t.Context()); kills < 4 || err != nil || len(changed) > 0 {
		e.t.Errorf("%s after %d kills changed %q once more, %v; want at least 4 kills, and no change", what, kills, changed, err)
	}
}

// state describes the objects of an Egress.
func (e *egresses) state(name string) string {
	e.t.Helper()
	ctx, key := e.t.Context(), client.ObjectKey{Namespace: "internet", Name: name}
	owner := func(o client.Object) string {
		if of := metav1.GetControllerOf(o); of != nil {
			group, _, _ := strings.Cut(of.APIVersion, "/")
			return group + "/" + of.Kind
		}
		return "nobody"
	}
	var out []string
	add := func(what string, key client.ObjectKey, o client.Object) {
		if e.c.Get(ctx, key, o) == nil {
			out = append(out, what+" of "+owner(o))
		}
	}
	add("Deployment", key, &appsv1.Deployment{})
	add("ReplicaSet", client.ObjectKey{Namespace: "internet", Name: name + "-b48c4b77c"}, &appsv1.ReplicaSet{})
	svc := &corev1.Service{}
	add("Service", key, svc)
	add("PodDisruptionBudget", key, &policyv1.PodDisruptionBudget{})
	add("ServiceAccount", client.ObjectKey{Namespace: "internet", Name: "coil-egress"}, &corev1.ServiceAccount{})
	if e.coils(name) != nil {
		out = append(out, "Coil's Egress")
	}
	b := &v1alpha1.Egress{}
	if e.c.Get(ctx, key, b) == nil {
		out = append(out, fmt.Sprintf("Berth's Egress %v replicas %d, %s", b.Spec.Destinations, *b.Spec.Replicas, b.Annotations[v1alpha1.AnnotationCoilClients]))
	}
	return strings.Join(out, "; ")
}

// Coil's Egresses become Berth's, with gateways beside Coil's, also if the tool is killed before and after each change. A
// rollback removes them, and what berthd of a returned node has reported. In the end Berth's have the Services, whose addresses
// are those of before, and nothing of Coil is left. An Egress of Berth that somebody else made is not taken for Coil's, and
// Coil's stays meanwhile.
func TestEgressesOfCluster(t *testing.T) {
	harness.StartKube(t)
	e := egressesOf(t, replay.V2NewestEgress)
	p, err := e.m.Plan(t.Context())
	if err != nil || len(p.Steps) != 3 || p.Steps[1].Name != "egress" || p.Steps[1].Final || len(p.Obstacles) != 0 {
		t.Fatalf("plan = %+v, %v; want a step for Egresses, and nothing in the way", p, err)
	}
	service := func() *corev1.Service {
		s := &corev1.Service{}
		harness.OK(t, e.c.Get(t.Context(), client.ObjectKey{Namespace: "internet", Name: "nat"}, s))
		return s
	}
	is := func(when, want string) {
		t.Helper()
		if got := e.state("nat"); got != want {
			t.Errorf("%s: %s\nwant: %s", when, got, want)
		}
	}
	const (
		coils   = "Deployment of coil.cybozu.com/Egress; ReplicaSet of apps/Deployment; "
		others  = "Service of coil.cybozu.com/Egress; PodDisruptionBudget of coil.cybozu.com/Egress; ServiceAccount of nobody; Coil's Egress"
		berths  = "Berth's Egress [0.0.0.0/0 ::/0] replicas 2, true"
		beside  = "ReplicaSet of nobody; " + others + "; " + berths
		finally = "Service of berth.dev/Egress; PodDisruptionBudget of berth.dev/Egress; " + berths
	)
	before := service()
	is("at first", coils+others)
	e.until("begin", e.m.Begin)
	is("after begin", beside)

	b := &v1alpha1.Egress{}
	harness.OK(t, e.c.Get(t.Context(), client.ObjectKey{Namespace: "internet", Name: "nat"}, b))
	if text := string(b.Spec.Template.Spec.Raw); !strings.Contains(text, `"berth.dev/network":"berth"`) || b.Spec.TunnelTo != v1alpha1.TunnelToGateways {
		t.Errorf("template %s, tunnels to %s; want moved nodes, and gateways", text, b.Spec.TunnelTo)
	}
	labels := map[string]string{"app": "berth-egress"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "internet", Name: "nat", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(b, v1alpha1.GroupVersion.WithKind("Egress"))}}}
	d.Spec = appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "egress", Image: "berth"}}},
	}}
	harness.OK(t, e.c.Create(t.Context(), d))
	stranger := &v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: "internet", Name: "stranger", Annotations: b.Annotations}, Spec: b.Spec}
	harness.OK(t, e.c.Create(t.Context(), stranger))
	e.returned()
	e.until("back", e.m.Back)
	harness.OK(t, e.c.Delete(t.Context(), stranger)) // back leaves an Egress beside no Egress of Coil, whatever it claims
	is("after back", "ReplicaSet of nobody; "+others)

	e.until("begin again", e.m.Begin)
	partner := &v1alpha1.Egress{}
	harness.OK(t, e.c.Get(t.Context(), client.ObjectKey{Namespace: "internet", Name: "partner"}, partner))
	refused := func(because string) {
		t.Helper()
		for name, step := range map[string]func(context.Context) ([]string, error){"begin": e.m.Begin, "finish": e.m.Finish} {
			var err error
			for range 100 { // past the kills
				if _, err = step(t.Context()); err == nil || !strings.Contains(err.Error(), errKilled.Error()) {
					break
				}
			}
			if err == nil || !strings.Contains(err.Error(), "internet/partner") {
				t.Errorf("%s with %s: %v, want an error that names it", name, because, err)
			}
		}
	}
	annotations := partner.Annotations
	for because, of := range map[string]map[string]string{
		"another's Egress": nil, "the Egress of an earlier one of Coil's": {v1alpha1.AnnotationCoilEgress: "earlier"},
	} {
		partner.Annotations = of
		harness.OK(t, e.c.Update(t.Context(), partner))
		refused(because)
	}
	partner.Annotations = annotations
	harness.OK(t, e.c.Update(t.Context(), partner))

	// Somebody's objects with the name are not taken over.
	// A refused step changes nothing: the Service is still Coil's when the PodDisruptionBudget was another's.
	for _, o := range []client.Object{&policyv1.PodDisruptionBudget{}, &corev1.Service{}} {
		kind := fmt.Sprintf("%T", o)
		harness.OK(t, e.c.Get(t.Context(), client.ObjectKey{Namespace: "internet", Name: "partner"}, o))
		owners := o.GetOwnerReferences()
		others := slices.Clone(owners)
		others[0].UID = "another"
		o.SetOwnerReferences(others)
		harness.OK(t, e.c.Update(t.Context(), o))
		refused("another's " + kind)
		o.SetOwnerReferences(owners)
		harness.OK(t, e.c.Update(t.Context(), o))
	}
	e.until("finish", e.m.Finish)
	is("after finish", finally)
	after := service()
	if after.UID != before.UID || !slices.Equal(after.Spec.ClusterIPs, before.Spec.ClusterIPs) || fmt.Sprint(after.Spec.Selector) != "map[egress.berth.dev/name:nat]" {
		t.Errorf("Service = %s %v %v, want %s %v, and that it selects Berth's gateways", after.UID, after.Spec.ClusterIPs, after.Spec.Selector, before.UID, before.Spec.ClusterIPs)
	}
}

// returned checks that once a node is Coil's again, the EgressClients on which its berthd has reported are deleted, so that
// berth-operator creates them again without the report. Others stay.
func (e *egresses) returned() {
	e.t.Helper()
	t := e.t
	as := func(account, node string) client.Client {
		cfg := harness.ControlPlane.Config()
		cfg.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:kube-system:" + account, Extra: map[string][]string{"authentication.kubernetes.io/node-name": {node}}}
		return harness.KubeClientFor(t, cfg)
	}
	for name, node := range map[string]string{"elsewhere": "node-2", "moved-1": "node-1", "moved-2": "node-1", "waits": "node-1"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "internet", Name: name}, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "c"}}}}
		harness.OK(t, e.c.Create(t.Context(), pod))
		o := &v1alpha1.EgressClient{ObjectMeta: metav1.ObjectMeta{Namespace: "internet", Name: name}, Spec: v1alpha1.EgressClientSpec{PodUID: string(pod.UID), NodeName: node}}
		o.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))}
		o.OwnerReferences[0].BlockOwnerDeletion = nil
		harness.OK(t, as("berth-operator", "").Create(t.Context(), o))
		if name != "waits" {
			report := client.RawPatch(types.MergePatchType, []byte(`{"status":{"node":{"state":"SetUp"}}}`))
			harness.OK(t, as("berthd", node).Status().Patch(t.Context(), o, report))
		}
	}
	e.until("node-1 is back", func(ctx context.Context) ([]string, error) { return e.m.Returned(ctx, "node-1") })
	left, names := &v1alpha1.EgressClientList{}, []string{}
	harness.OK(t, e.c.List(t.Context(), left))
	for _, o := range left.Items {
		names = append(names, o.Name)
	}
	if !slices.Equal(names, []string{"elsewhere", "waits"}) {
		t.Errorf("EgressClients after node-1 is back: %q, want those of other nodes, and those without a report", names)
	}
}
