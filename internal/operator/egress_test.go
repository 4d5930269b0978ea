package operator

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/test/harness"
)

// An operator that works for Egresses alone, under the roles and policies that the chart
// gives it beside node mode, where there is no other operator.
func TestEgressAlone(t *testing.T) {
	c := newCluster(t)
	r := deploy.InMode(deploy.NodeMode, "test")
	r.Values["egress"] = map[string]any{"enabled": true, "port": 5556, "image": map[string]any{"repository": "berth-egress", "tag": "v1"}}
	c.use(harness.OperatorConfigOf(t, r))
	o := c.start("one", "--ipam=", "--egress", "--egress-image=berth-egress:v1", "--egress-port=5556")
	o.until(c.leads("one"))
	e := &v1alpha1.Egress{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "nat"}, Spec: v1alpha1.EgressSpec{Destinations: []string{"203.0.113.0/24"}, Replicas: new(int32(2))},
	}
	harness.OK(t, c.client.Create(t.Context(), e))
	d := &appsv1.Deployment{}
	o.until(func() error { return c.client.Get(t.Context(), client.ObjectKeyFromObject(e), d) })
	pod := d.Spec.Template.Spec
	if *d.Spec.Replicas != 2 || pod.Containers[0].Image != "berth-egress:v1" || pod.Containers[0].Ports[0].ContainerPort != 5556 {
		t.Errorf("Deployment %+v", d.Spec)
	}
	o.until(func() error {
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(e), e); err != nil {
			return err
		}
		for kind, want := range map[string]bool{v1alpha1.ConditionServiceReady: true, v1alpha1.ConditionAvailable: false, v1alpha1.ConditionClientsReady: true} {
			if s := meta.FindStatusCondition(e.Status.Conditions, kind); s == nil || (s.Status == metav1.ConditionTrue) != want {
				return fmt.Errorf("conditions %+v", e.Status.Conditions)
			}
		}
		return nil
	})
	if len(e.Status.ServiceIPs) != 1 {
		t.Errorf("status %+v", e.Status)
	}
	o.until(o.shows(map[string]string{
		`berth_operator_egress_gateways{egress="nat",namespace="default",state="desired"}`: "2",
		`berth_operator_egress_gateways{egress="nat",namespace="default",state="ready"}`:   "0",
		`berth_operator_egress_applies_total{kind="Deployment",result="success"}`:          "1",
		`leader_election_master_status{name="berth-operator"}`:                             "1",
	}))
	for path, status := range map[string]int{"/livez": 200, "/readyz": 200} {
		harness.OK(t, answersWith(o.health, path, status)())
	}
	o.logsNone("orbidden", "level=ERROR")
}
