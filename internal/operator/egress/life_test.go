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

// Lifecycle of an Egress: from creation to usable gateways, until all of its objects are gone.
func TestEgressLifecycle(t *testing.T) {
	w := start(t)
	budget := intstr.FromInt32(1)
	e := w.egress("nat", v1alpha1.EgressSpec{
		Destinations: []string{"0.0.0.0/0", "::/0"}, Replicas: new(int32(2)),
		PodDisruptionBudget: &v1alpha1.EgressPodDisruptionBudget{MaxUnavailable: &budget},
	})
	pods := w.pods("nat", 2)
	w.status("nat", "has no ready gateway", conditionIs(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.EgressNoGateways, "pod nat-", "starts"))
	svc := w.service("nat", "is dual-stack", controllers.If(func(s *corev1.Service) bool {
		return len(s.Spec.ClusterIPs) == 2 && s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP && s.Spec.Ports[0].Port == 5555 && s.Spec.Ports[0].Protocol == corev1.ProtocolUDP
	}))
	harness.OK(t, controllers.Same("objects", len(w.owned("nat")), 6))
	w.ready(pods[0], corev1.ConditionTrue, "10.0.0.1")
	w.status("nat", "lacks IPv6", conditionIs(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.EgressFamilyMissing, "spec.destinations[1]: ::/0 is of IPv6"))
	w.ready(pods[1], corev1.ConditionTrue, "10.0.0.2", "2001:db8::2")
	got := w.status("nat", "is available", conditionIs(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.EgressGatewaysReady)).Status
	if got.ReadyGateways != 2 || got.Replicas != 2 || got.Selector != "egress.berth.dev/name=nat" || got.ObservedGeneration != 1 || !slices.Equal(got.ServiceIPs, svc.Spec.ClusterIPs) {
		t.Errorf("status = %+v, want 2 ready gateways and the Service's addresses", got)
	}
	for i, g := range got.Gateways {
		if g.Ending || g.Name != pods[i].Name || g.UID != string(pods[i].UID) || len(g.Addresses) != i+1 {
			t.Errorf("status.gateways = %+v, want the two pods", got.Gateways)
		}
	}
	harness.OK(t, conditionIs(v1alpha1.ConditionServiceReady, metav1.ConditionTrue, v1alpha1.EgressApplied)(got))

	harness.OK(t, w.client.Delete(t.Context(), e))
	controllers.AwaitValue(t, "remaining objects", func() []string { return w.owned("nat") }, nil)
	w.pods("nat", 0)
	controllers.AwaitValue(t, "objects in the operator's memory", w.c.Known, 0)
}

// Fields set by others stay: a rollout restart, an administrator's labels and annotations. Fields that
// the Egress sets are restored, and removed when it no longer sets them.
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
	d := w.deployment("nat", "has the fields of the Egress", func(d *appsv1.Deployment) error {
		spec := d.Spec.Template.Spec
		if spec.NodeSelector["a"] != "b" || len(spec.Containers) != 2 || d.Spec.Strategy.RollingUpdate.MaxSurge.StrVal != "50%" || d.Spec.Template.Annotations["example.com/a"] != "b" {
			return errors.New("fields of the Egress are missing")
		}
		return nil
	})
	w.change(d, `{"metadata":{"annotations":{"example.com/mine":"1"},"labels":{"team":"net"}},"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"now"}}}}}`)
	was := w.service("nat", "exists", isThere)
	w.change(was, `{"metadata":{"annotations":{"example.com/mine":"1"}},"spec":{"sessionAffinity":"None"}}`)
	harness.Eventually(t, controllers.Limit, "admission rejects another selector", func() error {
		err := w.client.Patch(t.Context(), was.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"selector":{"a":"b"}}}`)))
		if !apierrors.IsForbidden(err) {
			return fmt.Errorf("want Forbidden, got: %w", err)
		}
		return nil
	})
	svc := w.service("nat", "is restored", controllers.If(func(s *corev1.Service) bool {
		return s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP && *s.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds == 60 && s.Spec.Selector[v1alpha1.LabelEgress] == "nat"
	}))
	harness.OK(t, controllers.Same("annotation of the administrator", svc.Annotations["example.com/mine"], "1"))
	// Fields that the Egress no longer sets are removed.
	w.change(e, `{"spec":{"strategy":null,"template":null,"sessionAffinity":"None","sessionAffinityConfig":null}}`)
	d = w.deployment("nat", "has the defaults again", func(d *appsv1.Deployment) error {
		spec := d.Spec.Template.Spec
		if spec.NodeSelector != nil || len(spec.Containers) != 1 || len(spec.Containers[0].Resources.Limits) > 0 || d.Spec.Strategy.RollingUpdate.MaxSurge.StrVal != "25%" || d.Spec.Template.Annotations["example.com/a"] != "" {
			return errors.New("fields of the Egress are left")
		}
		return nil
	})
	if d.Annotations["example.com/mine"] != "1" || d.Labels["team"] != "net" || d.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] != "now" {
		t.Errorf("fields set by others are gone: annotations %v, labels %v, pod annotations %v", d.Annotations, d.Labels, d.Spec.Template.Annotations)
	}
	w.service("nat", "has no session affinity", controllers.If(func(s *corev1.Service) bool {
		return s.Spec.SessionAffinity == corev1.ServiceAffinityNone && s.Spec.SessionAffinityConfig == nil
	}))
	w.change(e, `{"spec":{"strategy":{"type":"Recreate"}}}`)
	w.deployment("nat", "has strategy Recreate", controllers.If(func(d *appsv1.Deployment) bool {
		return d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType && d.Spec.Strategy.RollingUpdate == nil
	}))
	w.change(e, `{"spec":{"strategy":null}}`)
	w.deployment("nat", "has strategy RollingUpdate", controllers.If(func(d *appsv1.Deployment) bool {
		return d.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType && d.Spec.Strategy.RollingUpdate != nil
	}))
}

func raw(text string) *runtime.RawExtension { return &runtime.RawExtension{Raw: []byte(text)} }

// An autoscaler scales the Egress; scaling the Deployment by hand has no lasting effect.
func TestScale(t *testing.T) {
	w := start(t)
	e := w.egress("nat", v1alpha1.EgressSpec{})
	w.pods("nat", 1)
	scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 3}}
	harness.OK(t, w.client.SubResource("scale").Update(t.Context(), e, client.WithSubResourceBody(scale)))
	w.pods("nat", 3)
	got := &autoscalingv1.Scale{}
	harness.Eventually(t, controllers.Limit, "scale subresource up to date", func() error {
		if err := w.client.SubResource("scale").Get(t.Context(), e, got); err != nil {
			return err
		}
		if got.Status.Replicas != 3 || got.Status.Selector != "egress.berth.dev/name=nat" {
			return fmt.Errorf("scale = %+v, want 3 replicas and the selector", got)
		}
		return nil
	})
	w.change(w.deployment("nat", "exists", isThere), `{"spec":{"replicas":1}}`)
	w.deployment("nat", "has the replicas of the Egress", controllers.If(func(d *appsv1.Deployment) bool { return *d.Spec.Replicas == 3 && d.Generation >= 4 }))
}

// A gateway is listed as long as it serves: when it is being deleted, until its probe fails. A gateway
// whose node is gone is not listed.
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
	w.status("nat", "lists two gateways", gateways("10.0.0.1", "10.0.0.2"))
	// Running pods end when the kubelet says so: a finalizer takes its place here.
	w.change(&pods[0], `{"metadata":{"finalizers":["example.com/kubelet"]}}`)
	t.Cleanup(func() { w.release(pods[0]) })
	harness.OK(t, w.client.Delete(t.Context(), &pods[0]))
	w.status("nat", "lists an ending gateway", gateways("10.0.0.1 ends", "10.0.0.2"))
	w.ready(pods[0], corev1.ConditionFalse)
	w.status("nat", "lists one gateway", gateways("10.0.0.2"))
	w.ready(pods[1], corev1.ConditionFalse) // as set by the node controller for a lost node
	st := w.status("nat", "lists no gateways", gateways()).Status
	harness.OK(t, conditionIs(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.EgressNoGateways, "is not ready")(st))
}

// release removes a pod's finalizers.
func (w *world) release(p corev1.Pod) {
	_ = w.client.Patch(w.t.Context(), p.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
}

// Deleted objects are recreated, and the status follows. A budget is removed when the Egress no longer
// asks for one.
func TestDeletedObjectsAreRecreated(t *testing.T) {
	w := start(t)
	one := intstr.FromInt32(1)
	e := w.egress("nat", v1alpha1.EgressSpec{PodDisruptionBudget: &v1alpha1.EgressPodDisruptionBudget{MinAvailable: &one}})
	svc := w.service("nat", "exists", isThere)
	w.status("nat", "has the Service's addresses", controllers.If(func(st v1alpha1.EgressStatus) bool { return slices.Equal(st.ServiceIPs, svc.Spec.ClusterIPs) }))
	harness.OK(t, w.client.Delete(t.Context(), svc))
	again := w.service("nat", "is recreated", controllers.If(func(s *corev1.Service) bool { return s.UID != svc.UID }))
	w.status("nat", "has the new Service's addresses", controllers.If(func(st v1alpha1.EgressStatus) bool { return slices.Equal(st.ServiceIPs, again.Spec.ClusterIPs) }))
	w.pods("nat", 1)
	harness.OK(t, w.client.Delete(t.Context(), w.deployment("nat", "exists", isThere), client.PropagationPolicy(metav1.DeletePropagationBackground)))
	w.pods("nat", 1)
	controllers.Await(t, w.key("nat"), "exists", isThere[*policyv1.PodDisruptionBudget])
	w.change(e, `{"spec":{"podDisruptionBudget":{"minAvailable":null,"maxUnavailable":"30%%"}}}`)
	controllers.Await(t, w.key("nat"), "has changed", controllers.If(func(b *policyv1.PodDisruptionBudget) bool {
		return b.Spec.MinAvailable == nil && b.Spec.MaxUnavailable != nil && b.Spec.MaxUnavailable.StrVal == "30%"
	}))
	w.change(e, `{"spec":{"podDisruptionBudget":null}}`)
	w.awaitGone(&policyv1.PodDisruptionBudget{}, "nat")
}

// An operator killed at any step leaves nothing that its successor does not complete.
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
			controllers.Await(t, w.key("nat"), "exists", isThere[*policyv1.PodDisruptionBudget])
			w.change(e, `{"spec":{"podDisruptionBudget":null,"replicas":2}}`)
			w.awaitGone(&policyv1.PodDisruptionBudget{}, "nat")
			w.pods("nat", 2)
			harness.OK(t, controllers.Same("objects", len(w.owned("nat")), 5))
			controllers.AwaitValue(t, "killed operators", deaths, 1)
		})
	}
}
