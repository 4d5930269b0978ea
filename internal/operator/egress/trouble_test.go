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
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/egress/gatewayplan"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// An object of the Egress's name that is somebody's stays as it is, with the label of the
// Egress or without; the Egress says what is in its way, and goes on once it is gone.
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
		w.status(name, "says what is in the way", conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionFalse, v1alpha1.EgressNameTaken, "Service "+name, "belongs to no Egress"))
		w.pods(name, 1) // what can be there is
		harness.OK(t, controllers.Same("the version of somebody's Service", w.service(name, "is there", isThere).ResourceVersion, mine.ResourceVersion))
		if b := controllers.Await(t, w.key(name), "is there", isThere[*policyv1.PodDisruptionBudget]); b.UID != budget.UID || len(b.OwnerReferences) > 0 {
			t.Errorf("somebody's budget was written: %+v", b)
		}
		harness.OK(t, w.client.Delete(t.Context(), mine))
		w.status(name, "has its Service", conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionTrue, v1alpha1.EgressApplied))
		own := controllers.Get[v1alpha1.Egress](t, w.key(name))
		w.service(name, "is the Egress's", controllers.If(func(s *corev1.Service) bool { return metav1.IsControlledBy(s, own) }))
	}
}

// Somebody who makes an object of the name at the moment when the operator is about to, or
// in place of one that it is about to mend, keeps it.
func TestObjectsOfTheLastMoment(t *testing.T) {
	w := stage(t)
	mine := func(name string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	}
	var replace sync.Map // names of Services to be somebody's before the operator's next write
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
	w.status("made", "finds another's Service", taken)
	w.service("made", "is mine", isMine)

	e := w.egress("mended", v1alpha1.EgressSpec{})
	w.status("mended", "is well", conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionTrue, v1alpha1.EgressApplied))
	replace.Store("mended", true)
	w.change(e, `{"spec":{"sessionAffinity":"None"}}`)
	w.status("mended", "finds another's Service", taken)
	w.service("mended", "is mine", isMine)
}

// A template that is none is said where it is wrong, by Berth and by the API server; what
// is there stays, and all else of the Egress comes.
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
		w.status("nat", "is well", conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionTrue, v1alpha1.EgressApplied))
		w.change(e, `{"spec":{"template":{"spec":%s}}}`, spec)
		w.status("nat", "says what is wrong with "+spec, conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionFalse, v1alpha1.EgressInvalidTemplate, want))
	}
	w.pods("nat", 1)
	one := intstr.FromInt32(1)
	w.egress("bad", v1alpha1.EgressSpec{
		Template: &v1alpha1.EgressPodTemplate{Spec: raw(`{"containers":[{"name":"egress","resourcs":{}}]}`)}, PodDisruptionBudget: &v1alpha1.EgressPodDisruptionBudget{MinAvailable: &one},
	})
	w.status("bad", "says so", conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionFalse, v1alpha1.EgressInvalidTemplate, "spec.template.spec: unknown field"))
	controllers.AwaitValue(t, "objects of bad", func() int { return len(w.owned("bad")) }, 5)
}

// A namespace whose pods may not have NET_ADMIN says so on the Egress.
func TestPodsRefused(t *testing.T) {
	w := start(t)
	w.change(controllers.Named[corev1.Namespace](w.ns), `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"baseline"}}}`)
	w.egress("nat", v1alpha1.EgressSpec{})
	w.status("nat", "says that pods are refused", conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionFalse, v1alpha1.EgressPodsRefused, "NET_ADMIN"))
}

// An Egress that is made anew at once has objects of its own, once Kubernetes has removed
// those of the one before.
func TestEgressMadeAnewAtOnce(t *testing.T) {
	w := start(t)
	e := w.egress("nat", v1alpha1.EgressSpec{})
	w.pods("nat", 1)
	harness.OK(t, w.client.Delete(t.Context(), e))
	again := w.egress("nat", v1alpha1.EgressSpec{})
	w.service("nat", "is the new one's", controllers.If(func(s *corev1.Service) bool { return metav1.IsControlledBy(s, again) }))
	w.status("nat", "is well", conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionTrue, v1alpha1.EgressApplied))
	w.pods("nat", 1)
}

// What was seen of an Egress is not written to another one of its name, made between.
func TestStatusIsNotAnothers(t *testing.T) {
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
			t.Errorf("the status of the Egress before was answered with %d, want %d", got, http.StatusConflict)
		}
	case <-t.Context().Done():
	}
	w.status("nat", "is well", conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionTrue, v1alpha1.EgressApplied))
}

// A pod that has a gateway's label and another maker, such as one of before the policy that refuses it, gets nothing
// from clients: nodes get no address of the Service while it would send packets there.
func TestForeignPods(t *testing.T) {
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
	st := w.status("nat", "tells nodes of no Service", conditionIs(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.EgressForeignPods, "to pod posing,")).Status
	if err := addresses(st, 0); err != nil || len(st.Gateways) != 1 {
		t.Errorf("%v, gateways %v", err, st.Gateways)
	}
	w.change(pod, `{"metadata":{"labels":{%q:null}}}`, v1alpha1.LabelEgress)
	w.status("nat", "is available again", served)
}

// addresses wants a status to have so many of the Service.
func addresses(st v1alpha1.EgressStatus, n int) error {
	if len(st.ServiceIPs) != n {
		return fmt.Errorf("the Service's addresses are %q, want %d", st.ServiceIPs, n)
	}
	return nil
}
