package egress

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// From an Egress to gateways that nodes can use, and to nothing left of it.
func TestEgressLives(t *testing.T) {
	w := start(t)
	budget := intstr.FromInt32(1)
	e := w.egress("nat", v1alpha1.EgressSpec{
		Destinations: []string{"0.0.0.0/0", "::/0"}, Replicas: new(int32(2)),
		PodDisruptionBudget: &v1alpha1.EgressPodDisruptionBudget{MaxUnavailable: &budget},
	})
	pods := w.pods("nat", 2)
	w.status("nat", "has none ready", conditionIs(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.EgressNoGateways, "pod nat-", "starts"))
	svc := w.service("nat", "is of both families", controllers.If(func(s *corev1.Service) bool {
		return len(s.Spec.ClusterIPs) == 2 && s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP && s.Spec.Ports[0].Port == 5555 && s.Spec.Ports[0].Protocol == corev1.ProtocolUDP
	}))
	harness.OK(t, controllers.Same("objects", len(w.owned("nat")), 6))
	w.ready(pods[0], corev1.ConditionTrue, "10.0.0.1")
	w.status("nat", "lacks IPv6", conditionIs(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.EgressFamilyMissing, "spec.destinations[1]: ::/0 is of IPv6"))
	w.ready(pods[1], corev1.ConditionTrue, "10.0.0.2", "2001:db8::2")
	got := w.status("nat", "is available", conditionIs(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.EgressGatewaysReady)).Status
	if got.ReadyGateways != 2 || got.Replicas != 2 || got.Selector != "egress.berth.dev/name=nat" || got.ObservedGeneration != 1 || !slices.Equal(got.ServiceIPs, svc.Spec.ClusterIPs) {
		t.Errorf("status %+v", got)
	}
	for i, g := range got.Gateways {
		if g.Ending || g.Name != pods[i].Name || g.UID != string(pods[i].UID) || len(g.Addresses) != i+1 {
			t.Errorf("gateways %+v", got.Gateways)
		}
	}
	harness.OK(t, conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionTrue, v1alpha1.EgressApplied)(got))

	harness.OK(t, w.client.Delete(t.Context(), e))
	controllers.AwaitValue(t, "what is left", func() []string { return w.owned("nat") }, nil)
	w.pods("nat", 0)
	controllers.AwaitValue(t, "objects that the operator knows", w.c.Known, 0)
}

// What others write on the objects stays: a rollout restart, an administrator's labels and
// annotations. What an Egress asks for is put right, and goes when it is not asked for any
// more.
func TestFieldsHaveOwners(t *testing.T) {
	w := start(t)
	half := intstr.FromString("50%")
	e := w.egress("nat", v1alpha1.EgressSpec{
		Strategy: &appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &half}},
		Template: &v1alpha1.EgressPodTemplate{
			Metadata: v1alpha1.EgressPodMetadata{Annotations: map[string]string{"example.com/a": "b"}},
			Spec:     raw(`{"nodeSelector":{"a":"b"},"containers":[{"name":"egress","resources":{"limits":{"memory":"1Gi"}}},{"name":"log","image":"log:1"}]}`),
		},
		SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(60))}},
	})
	d := w.deployment("nat", "has what is asked for", func(d *appsv1.Deployment) error {
		spec := d.Spec.Template.Spec
		if spec.NodeSelector["a"] != "b" || len(spec.Containers) != 2 || d.Spec.Strategy.RollingUpdate.MaxSurge.StrVal != "50%" || d.Spec.Template.Annotations["example.com/a"] != "b" {
			return errors.New("is otherwise")
		}
		return nil
	})
	w.change(d, `{"metadata":{"annotations":{"example.com/mine":"1"},"labels":{"team":"net"}},"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"now"}}}}}`)
	was := w.service("nat", "is there", isThere)
	w.change(was, `{"metadata":{"annotations":{"example.com/mine":"1"}},"spec":{"sessionAffinity":"None"}}`)
	harness.Eventually(t, controllers.Limit, "admission refuses another selector", func() error {
		err := w.client.Patch(t.Context(), was.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"selector":{"a":"b"}}}`)))
		if !apierrors.IsForbidden(err) {
			return fmt.Errorf("it does not: %w", err)
		}
		return nil
	})
	svc := w.service("nat", "is put right", controllers.If(func(s *corev1.Service) bool {
		return s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP && *s.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds == 60 && s.Spec.Selector[v1alpha1.LabelEgress] == "nat"
	}))
	harness.OK(t, controllers.Same("the administrator's annotation", svc.Annotations["example.com/mine"], "1"))
	// All goes that is not asked for any more.
	w.change(e, `{"spec":{"strategy":null,"template":null,"sessionAffinity":"None","sessionAffinityConfig":null}}`)
	d = w.deployment("nat", "is as without them", func(d *appsv1.Deployment) error {
		spec := d.Spec.Template.Spec
		if spec.NodeSelector != nil || len(spec.Containers) != 1 || len(spec.Containers[0].Resources.Limits) > 0 || d.Spec.Strategy.RollingUpdate.MaxSurge.StrVal != "25%" || d.Spec.Template.Annotations["example.com/a"] != "" {
			return errors.New("is otherwise")
		}
		return nil
	})
	if d.Annotations["example.com/mine"] != "1" || d.Labels["team"] != "net" || d.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] != "now" {
		t.Errorf("what others wrote is gone: %v %v %v", d.Annotations, d.Labels, d.Spec.Template.Annotations)
	}
	w.service("nat", "is without affinity", controllers.If(func(s *corev1.Service) bool {
		return s.Spec.SessionAffinity == corev1.ServiceAffinityNone && s.Spec.SessionAffinityConfig == nil
	}))
	w.change(e, `{"spec":{"strategy":{"type":"Recreate"}}}`)
	w.deployment("nat", "is replaced at once", controllers.If(func(d *appsv1.Deployment) bool {
		return d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType && d.Spec.Strategy.RollingUpdate == nil
	}))
	w.change(e, `{"spec":{"strategy":null}}`)
	w.deployment("nat", "is replaced in turn", controllers.If(func(d *appsv1.Deployment) bool {
		return d.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType && d.Spec.Strategy.RollingUpdate != nil
	}))
}

func raw(text string) *runtime.RawExtension { return &runtime.RawExtension{Raw: []byte(text)} }

// An autoscaler scales the Egress; a person who scales the Deployment does not.
func TestScale(t *testing.T) {
	w := start(t)
	e := w.egress("nat", v1alpha1.EgressSpec{})
	w.pods("nat", 1)
	scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 3}}
	harness.OK(t, w.client.SubResource("scale").Update(t.Context(), e, client.WithSubResourceBody(scale)))
	w.pods("nat", 3)
	got := &autoscalingv1.Scale{}
	harness.Eventually(t, controllers.Limit, "the scale says what there is", func() error {
		if err := w.client.SubResource("scale").Get(t.Context(), e, got); err != nil {
			return err
		}
		if got.Status.Replicas != 3 || got.Status.Selector != "egress.berth.dev/name=nat" {
			return fmt.Errorf("scale %+v", got)
		}
		return nil
	})
	w.change(w.deployment("nat", "is there", isThere), `{"spec":{"replicas":1}}`)
	w.deployment("nat", "is scaled as the Egress", controllers.If(func(d *appsv1.Deployment) bool { return *d.Spec.Replicas == 3 && d.Generation >= 4 }))
}

// A gateway is listed as long as it serves: while it ends, until its probe fails; one
// whose node is gone is left out.
func TestGatewaysComeAndGo(t *testing.T) {
	w := start(t)
	w.egress("nat", v1alpha1.EgressSpec{Replicas: new(int32(2)), Template: &v1alpha1.EgressPodTemplate{}})
	pods := w.pods("nat", 2)
	for i, p := range pods {
		w.ready(p, corev1.ConditionTrue, fmt.Sprintf("10.0.0.%d", i+1))
	}
	gateways := func(want ...string) func(v1alpha1.EgressStatus) error {
		return controllers.If(func(st v1alpha1.EgressStatus) bool {
			var got []string
			for _, g := range st.Gateways {
				got = append(got, g.Addresses[0]+map[bool]string{true: " ends"}[g.Ending])
			}
			slices.Sort(got)
			return slices.Equal(got, want)
		})
	}
	w.status("nat", "has two", gateways("10.0.0.1", "10.0.0.2"))
	// Pods that run end when the kubelet says so: a finalizer stands for it.
	w.change(&pods[0], `{"metadata":{"finalizers":["example.com/kubelet"]}}`)
	t.Cleanup(func() { w.release(pods[0]) })
	harness.OK(t, w.client.Delete(t.Context(), &pods[0]))
	w.status("nat", "has one that ends", gateways("10.0.0.1 ends", "10.0.0.2"))
	w.ready(pods[0], corev1.ConditionFalse)
	w.status("nat", "has one", gateways("10.0.0.2"))
	w.ready(pods[1], corev1.ConditionFalse) // as the node controller says of a node that is gone
	st := w.status("nat", "has none", gateways()).Status
	harness.OK(t, conditionIs(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.EgressNoGateways, "is not ready")(st))
}

// release lets a pod go that has a finalizer.
func (w *world) release(p corev1.Pod) {
	_ = w.client.Patch(w.t.Context(), p.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
}

// What somebody deletes is made anew, and the status follows; a budget goes when none is
// asked for.
func TestDeletedObjectsAreMadeAnew(t *testing.T) {
	w := start(t)
	one := intstr.FromInt32(1)
	e := w.egress("nat", v1alpha1.EgressSpec{PodDisruptionBudget: &v1alpha1.EgressPodDisruptionBudget{MinAvailable: &one}})
	svc := w.service("nat", "is there", isThere)
	w.status("nat", "has its addresses", controllers.If(func(st v1alpha1.EgressStatus) bool { return slices.Equal(st.ServiceIPs, svc.Spec.ClusterIPs) }))
	harness.OK(t, w.client.Delete(t.Context(), svc))
	again := w.service("nat", "is made anew", controllers.If(func(s *corev1.Service) bool { return s.UID != svc.UID }))
	w.status("nat", "follows", controllers.If(func(st v1alpha1.EgressStatus) bool { return slices.Equal(st.ServiceIPs, again.Spec.ClusterIPs) }))
	w.pods("nat", 1)
	harness.OK(t, w.client.Delete(t.Context(), w.deployment("nat", "is there", isThere), client.PropagationPolicy(metav1.DeletePropagationBackground)))
	w.pods("nat", 1)
	controllers.Await(t, w.key("nat"), "is there", isThere[*policyv1.PodDisruptionBudget])
	w.change(e, `{"spec":{"podDisruptionBudget":{"minAvailable":null,"maxUnavailable":"30%%"}}}`)
	controllers.Await(t, w.key("nat"), "has changed", controllers.If(func(b *policyv1.PodDisruptionBudget) bool {
		return b.Spec.MinAvailable == nil && b.Spec.MaxUnavailable != nil && b.Spec.MaxUnavailable.StrVal == "30%"
	}))
	w.change(e, `{"spec":{"podDisruptionBudget":null}}`)
	w.awaitGone(&policyv1.PodDisruptionBudget{}, "nat")
}

// An operator that is killed at any step leaves nothing that the next one does not finish.
func TestKillAtEveryFailpoint(t *testing.T) {
	for _, name := range controllers.Failpoints(t, "operator.gateways.", 6) {
		t.Run(name, func(t *testing.T) {
			w := stage(t)
			deaths := controllers.Killed(t, operatorConfig(t), name+"=kill")
			one := intstr.FromInt32(1)
			e := w.egress("nat", v1alpha1.EgressSpec{PodDisruptionBudget: &v1alpha1.EgressPodDisruptionBudget{MinAvailable: &one}})
			for i, p := range w.pods("nat", 1) {
				w.ready(p, corev1.ConditionTrue, []string{"10.0.0.1", "10.0.0.2"}[i])
			}
			w.status("nat", "is available", conditionIs(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.EgressGatewaysReady))
			controllers.Await(t, w.key("nat"), "is there", isThere[*policyv1.PodDisruptionBudget])
			w.change(e, `{"spec":{"podDisruptionBudget":null,"replicas":2}}`)
			w.awaitGone(&policyv1.PodDisruptionBudget{}, "nat")
			w.pods("nat", 2)
			harness.OK(t, controllers.Same("objects", len(w.owned("nat")), 5))
			harness.OK(t, controllers.Same("operators that died", deaths(), 1))
		})
	}
}
