package kubectl

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/planner"
	"github.com/berthnet/berth/test/harness"
)

// planCluster creates a cluster of two nodes in a mode, with a Deployment's pods.
func planCluster(t *testing.T, ipam string) Options {
	t.Helper()
	dial, _ := inMode(t, ipam)
	yes := true
	for i, name := range []string{"api-1", "api-2", "api-3"} {
		create(t, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: name, Labels: map[string]string{"pod-template-hash": "abc"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "api-abc", UID: "1", Controller: &yes}},
			},
			Spec:   corev1.PodSpec{NodeName: []string{"node-a", "node-b"}[i%2], Containers: []corev1.Container{{Name: "api", Image: "api"}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		})
	}
	for _, name := range []string{"node-a", "node-b"} {
		n := corev1.Node{}
		c := harness.KubeClient(t)
		harness.OK(t, c.Get(t.Context(), client.ObjectKey{Name: name}, &n))
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("29")}
		harness.OK(t, c.Status().Update(t.Context(), &n))
	}
	return Options{Config: person(t), Dial: dial}
}

// shown returns the scenario that plan --show prints.
func shown(t *testing.T, o Options, args ...string) planner.Scenario {
	t.Helper()
	out, code, err := try(t, o, append([]string{"plan", "--show"}, args...)...)
	if code != 0 || err != nil {
		t.Fatalf("exit code = %d, error = %v", code, err)
	}
	s, err := planner.Parse([]byte(out))
	harness.OK(t, err)
	harness.OK(t, s.Check())
	return s
}

func TestPlanOfAnOperatorCluster(t *testing.T) {
	o := planCluster(t, "eni-operator")
	for _, name := range []string{"node-a", "node-b"} {
		n := network(name, 3, 1, 4)
		six := int32(6)
		n.Spec.ENI.PreAllocate = &six
		create(t, &n)
	}
	s := shown(t, o)
	if s.Settings.Mode != planner.ModeOperator || *s.Settings.ENI.PreAllocate != 6 || len(s.Nodes) != 1 || s.Nodes[0].Count != 2 || s.Nodes[0].MaxPods != 28 || s.Subnets[0].CIDR != "10.0.0.0/24" {
		t.Errorf("scenario = %+v, want two m5.large of operator mode in subnet-1 with preAllocate 6, and 28 pods beside berthd", s)
	}
	if d := s.Workload.Deployments; len(d) != 2 || d[0].Name != "default/api" || d[0].Replicas != 3 || d[1].Name != "default/single pods" {
		t.Errorf("deployments = %+v, want api with 3 replicas, and single pods", d)
	}
	out, code, err := try(t, o, "plan")
	if code != 0 || err != nil || !strings.Contains(out, "CURRENT SETTINGS") || !strings.Contains(out, "Recommendation: ") {
		t.Errorf("exit code = %d, error = %v, want a table and a recommendation:\n%s", code, err, out)
	}
}

func TestPlanOfANodeModeCluster(t *testing.T) {
	o := planCluster(t, "eni")
	handlers := map[string]http.Handler{}
	for _, name := range []string{"node-a", "node-b"} {
		mux := http.NewServeMux()
		mux.Handle("/", serving(document(name)))
		mux.HandleFunc("GET "+introspect.SettingsPath, func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(introspect.Settings{Settings: []introspect.Setting{
				{Name: "warm-ip-target", Value: "4"}, {Name: "warm-eni-target", Value: ""}, {Name: "max-pods", Value: "0"}, {Name: "cooling-period", Value: "1m0s"}, {Name: "ip-families", Value: "ipv4"},
			}})
		})
		handlers[name] = mux
	}
	o.Dial = pipes(handlers)
	if _, code, err := try(t, o, "plan", "--show"); code == 0 || !strings.Contains(err.Error(), "subnet subnet-1: its block is not known here: add --subnet subnet-1=CIDR") {
		t.Errorf("exit code = %d, error = %v, want the missing flag", code, err)
	}
	s := shown(t, o, "--subnet", "subnet-1=10.0.0.0/25=7")
	if e := s.Settings.ENI; s.Settings.Mode != planner.ModeNode || *e.WarmIPTarget != 4 || e.WarmENITarget != nil || s.Settings.Cooling.Std().Seconds() != 60 || s.Subnets[0].Used != 7 {
		t.Errorf("settings = %+v, want warmIPTarget 4 and a cooling period of 1m; subnets %+v", s.Settings, s.Subnets)
	}
}
