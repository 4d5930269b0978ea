package egress

import (
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/egress/gatewayplan"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// A foreign object with the Egress's name stays as it is, with or without the label of the Egress. The
// Egress reports the conflict and continues once the object is gone.
func TestForeignObjectsStay(t *testing.T) {
	w := start(t)
	for name, labels := range map[string]map[string]string{"plain": nil, "labelled": {v1alpha1.LabelEgress: "labelled"}} {
		mine := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name, Labels: labels}, Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}},
		}}
		harness.OK(t, w.client.Create(t.Context(), mine))
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: mine.ObjectMeta}
		budget.ResourceVersion, budget.UID = "", ""
		harness.OK(t, w.client.Create(t.Context(), budget))
		w.egress(name, v1alpha1.EgressSpec{})
		w.status(name, "reports the conflict", conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionFalse, v1alpha1.EgressNameTaken, "Service "+name, "belongs to no Egress"))
		w.pods(name, 1) // the other objects are created
		harness.OK(t, controllers.Same("resource version of the foreign Service", w.service(name, "exists", isThere).ResourceVersion, mine.ResourceVersion))
		if b := controllers.Await(t, w.key(name), "exists", isThere[*policyv1.PodDisruptionBudget]); b.UID != budget.UID || len(b.OwnerReferences) > 0 {
			t.Errorf("foreign PodDisruptionBudget was changed: %+v", b)
		}
		harness.OK(t, w.client.Delete(t.Context(), mine))
		w.status(name, "has its Service", conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionTrue, v1alpha1.EgressApplied))
		own := controllers.Get[v1alpha1.Egress](t, w.key(name))
		w.service(name, "belongs to the Egress", controllers.If(func(s *corev1.Service) bool { return metav1.IsControlledBy(s, own) }))
	}
}

// A foreign object created at the moment when the operator is about to create one of the same name, or
// to restore it, stays as it is.
func TestForeignObjectsCreatedConcurrently(t *testing.T) {
	w := stage(t)
	mine := func(name string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	}
	var replace sync.Map // names of Services to replace by foreign ones before the operator's next write
	w.run(Options{}, harness.Through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		name := path.Base(r.URL.Path)
		if r.Method != http.MethodPatch || !strings.HasSuffix(path.Dir(r.URL.Path), "/services") {
			return next.RoundTrip(r)
		}
		if _, now := replace.LoadAndDelete(name); now {
			if err := errors.Join(client.IgnoreNotFound(w.client.Delete(r.Context(), mine(name))), w.client.Create(r.Context(), mine(name))); err != nil {
				t.Error(err)
			}
		}
		return next.RoundTrip(r)
	}))
	isMine := controllers.If(func(s *corev1.Service) bool {
		return len(s.OwnerReferences) == 0 && len(s.Labels) == 0 && s.Spec.Ports[0].Port == 80
	})
	taken := conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionFalse, v1alpha1.EgressNameTaken, "Service")
	replace.Store("made", true)
	w.egress("made", v1alpha1.EgressSpec{})
	w.status("made", "reports the foreign Service", taken)
	w.service("made", "is unchanged", isMine)

	e := w.egress("mended", v1alpha1.EgressSpec{})
	w.status("mended", "is ready", conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionTrue, v1alpha1.EgressApplied))
	replace.Store("mended", true)
	w.change(e, `{"spec":{"sessionAffinity":"None"}}`)
	w.status("mended", "reports the foreign Service", taken)
	w.service("mended", "is unchanged", isMine)
}

// Errors in a template are reported with their field, whether found by Berth or by the API server.
// Existing gateways stay, and the other objects of the Egress are created.
func TestInvalidTemplates(t *testing.T) {
	w := start(t)
	e := w.egress("nat", v1alpha1.EgressSpec{})
	w.pods("nat", 1)
	for spec, want := range map[string]string{
		`{"containers":[{"name":"egress","resourcs":{}}]}`:                                           `spec.template.spec: unknown field "containers[0].resourcs"`,
		`{"containers":[{"name":"log"}]}`:                                                            "spec.template.spec.containers[0].image: Required value",
		`{"tolerations":[{"key":"a","operator":"Maybe"}]}`:                                           "spec.template.spec.tolerations[0].operator: Unsupported value",
		`{"restartPolicy":"Never"}`:                                                                  "spec.template.spec.restartPolicy: Unsupported value",
		`{"containers":[{"name":"egress","resources":{"limits":{"memory":"many"}}}]}`:                "spec.template.spec: ",
		`{"volumes":[{"name":"berth-egress-token","emptyDir":{}}]}`:                                  "spec.template.spec.volumes[0].projected: Forbidden: may not specify more than 1 volume type",
		`{"containers":[{"name":"log","image":"log:1","ports":[{"containerPort":1,"name":"a_b"}]}]}`: "ports[0].name: Invalid value",
	} {
		w.change(e, `{"spec":{"template":{"spec":null}}}`)
		w.status("nat", "is ready", conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionTrue, v1alpha1.EgressApplied))
		w.change(e, `{"spec":{"template":{"spec":%s}}}`, spec)
		w.status("nat", "reports the error in "+spec, conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionFalse, v1alpha1.EgressInvalidTemplate, want))
	}
	w.pods("nat", 1)
	one := intstr.FromInt32(1)
	w.egress("bad", v1alpha1.EgressSpec{
		Template: &v1alpha1.EgressPodTemplate{Spec: raw(`{"containers":[{"name":"egress","resourcs":{}}]}`)}, PodDisruptionBudget: &v1alpha1.EgressPodDisruptionBudget{MinAvailable: &one},
	})
	w.status("bad", "reports the error", conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionFalse, v1alpha1.EgressInvalidTemplate, "spec.template.spec: unknown field"))
	controllers.AwaitValue(t, "objects of bad", func() int { return len(w.owned("bad")) }, 5)
}

// If a namespace's Pod Security level forbids NET_ADMIN, the Egress reports that.
func TestPodsRefused(t *testing.T) {
	w := start(t)
	w.change(controllers.Named[corev1.Namespace](w.ns), `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"baseline"}}}`)
	w.egress("nat", v1alpha1.EgressSpec{})
	w.status("nat", "reports that pods are rejected", conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionFalse, v1alpha1.EgressPodsRefused, "NET_ADMIN"))
}

// An Egress recreated immediately gets its own objects once Kubernetes has removed those of its
// predecessor.
func TestEgressRecreatedImmediately(t *testing.T) {
	w := start(t)
	e := w.egress("nat", v1alpha1.EgressSpec{})
	w.pods("nat", 1)
	harness.OK(t, w.client.Delete(t.Context(), e))
	again := w.egress("nat", v1alpha1.EgressSpec{})
	w.service("nat", "belongs to the new Egress", controllers.If(func(s *corev1.Service) bool { return metav1.IsControlledBy(s, again) }))
	w.status("nat", "is ready", conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionTrue, v1alpha1.EgressApplied))
	w.pods("nat", 1)
}

// A status derived from an Egress is not written to a new Egress of the same name.
func TestStatusOfRecreatedEgress(t *testing.T) {
	w := stage(t)
	answers := make(chan int, 1)
	var once sync.Once
	w.run(Options{}, harness.Through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if r.Method != http.MethodPatch || !strings.HasSuffix(r.URL.Path, "/egresses/nat/status") {
			return next.RoundTrip(r)
		}
		replaced := false
		once.Do(func() {
			replaced = true
			before := &v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "nat"}}
			again := &v1alpha1.Egress{ObjectMeta: before.ObjectMeta, Spec: v1alpha1.EgressSpec{Destinations: []string{"::/0"}}}
			if err := errors.Join(w.client.Delete(r.Context(), before), w.client.Create(r.Context(), again)); err != nil {
				t.Error(err)
			}
		})
		resp, err := next.RoundTrip(r)
		if replaced && err == nil {
			answers <- resp.StatusCode
		}
		return resp, err
	}))
	w.egress("nat", v1alpha1.EgressSpec{})
	select {
	case got := <-answers:
		if got != http.StatusConflict {
			t.Errorf("write of the old Egress's status returned %d, want %d", got, http.StatusConflict)
		}
	case <-t.Context().Done():
	}
	w.status("nat", "is ready", conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionTrue, v1alpha1.EgressApplied))
}

// A pod with a gateway's label but another owner, for example created before the policy that rejects it, gets no
// client traffic: the status has no Service addresses while the Service would send packets to that pod.
func TestForeignPodsWithGatewayLabels(t *testing.T) {
	w := start(t)
	w.egress("nat", v1alpha1.EgressSpec{TunnelTo: v1alpha1.TunnelToService, Template: &v1alpha1.EgressPodTemplate{}})
	w.ready(w.pods("nat", 1)[0], corev1.ConditionTrue, "10.0.0.1")
	served := func(st v1alpha1.EgressStatus) error {
		return errors.Join(conditionIs(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.EgressGatewaysReady)(st), addresses(st, 2))
	}
	w.status("nat", "is available", served)

	web := corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}}
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "web"}, Spec: appsv1.ReplicaSetSpec{
		Replicas: new(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: web},
	}}
	harness.OK(t, w.client.Create(t.Context(), set))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "posing", Labels: gatewayplan.Labels("nat"), OwnerReferences: []metav1.OwnerReference{
		*metav1.NewControllerRef(set, gatewayplan.ReplicaSet),
	}}, Spec: web}
	cfg, err := harness.ControlPlane.ConfigFor("system:kube-controller-manager", "system:masters")
	harness.OK(t, err)
	harness.OK(t, harness.KubeClientFor(t, cfg).Create(t.Context(), pod))
	w.ready(*pod, corev1.ConditionTrue, "10.0.0.2")
	st := w.status("nat", "reports the foreign pod", conditionIs(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.EgressForeignPods, "to pod posing,")).Status
	if err := addresses(st, 0); err != nil || len(st.Gateways) != 1 {
		t.Errorf("with a foreign pod: %v; gateways = %v, want 1", err, st.Gateways)
	}
	w.change(pod, `{"metadata":{"labels":{%q:null}}}`, v1alpha1.LabelEgress)
	w.status("nat", "is available again", served)
}

// addresses checks the number of Service addresses in a status.
func addresses(st v1alpha1.EgressStatus, n int) error {
	if len(st.ServiceIPs) != n {
		return fmt.Errorf("status.serviceIPs = %q, want %d addresses", st.ServiceIPs, n)
	}
	return nil
}

// An Egress with clients of Coil does without the Service of Coil's Egress, and has it with its address once the end of a
// migration has given it to the Egress.
func TestServiceOfCoil(t *testing.T) {
	w := start(t)
	coils := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "nat", OwnerReferences: []metav1.OwnerReference{{APIVersion: "coil.cybozu.com/v2", Kind: "Egress", Name: "nat", UID: "coil", Controller: new(true)}}},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "coil"}, Ports: []corev1.ServicePort{{Port: 5555, Protocol: corev1.ProtocolUDP}}},
	}
	harness.OK(t, w.client.Create(t.Context(), coils))
	e := w.egress("nat", v1alpha1.EgressSpec{})
	w.status("nat", "reports the conflict", conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionFalse, v1alpha1.EgressNameTaken, "Service nat"))
	patch := func(o client.Object, text string) {
		t.Helper()
		harness.OK(t, w.client.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(text))))
	}
	patch(e, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationCoilClients+`":"true","`+v1alpha1.AnnotationCoilEgress+`":"coil"}}}`)
	w.status("nat", "does without the Service", conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionTrue, v1alpha1.EgressApplied))
	harness.OK(t, controllers.Same("resource version of Coil's Service", w.service("nat", "exists", isThere).ResourceVersion, coils.ResourceVersion))
	patch(coils, fmt.Sprintf(`{"metadata":{"labels":{%[1]q:"nat"},"ownerReferences":[{"apiVersion":%[2]q,"kind":"Egress","name":"nat","uid":%[3]q,"controller":true}]},"spec":{"selector":{"app":null,%[1]q:"nat"}}}`,
		v1alpha1.LabelEgress, v1alpha1.GroupVersion.String(), e.UID))
	w.service("nat", "is the Egress's, with its address", controllers.If(func(s *corev1.Service) bool {
		return s.UID == coils.UID && s.Spec.ClusterIP == coils.Spec.ClusterIP && len(s.Spec.Ports) == 1 && s.Spec.Ports[0].Name != "" && s.Labels["app.kubernetes.io/managed-by"] == v1alpha1.OwnerOperator
	}))
}
