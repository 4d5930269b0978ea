package egress

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness/controllers"
)

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
			if got := w.owned("nat"); len(got) != 5 {
				t.Errorf("there are %q", got)
			}
			if n := deaths(); n != 1 {
				t.Errorf("%d operators died", n)
			}
		})
	}
}
