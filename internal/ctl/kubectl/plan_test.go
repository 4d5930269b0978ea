package kubectl

import (
	"encoding/json"
	"net/http"
	"net/netip"
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

// Of a node without NodeNetwork, the addresses that its ENIs have are counted, not those that they may have. EC2's number
// of used addresses without them is what others use.
func TestAddressesHeldByENIs(t *testing.T) {
	of, addr, prefix := introspect.Origin{ENI: "eni-1"}, netip.MustParseAddr, netip.MustParsePrefix("10.0.1.0/28")
	allocated := func(addrs ...string) (list []introspect.Allocated) {
		for _, a := range addrs {
			list = append(list, introspect.Allocated{Address: addr(a), Origin: of})
		}
		return list
	}
	free := []introspect.Available{{Address: addr("10.0.1.2"), Origin: of, Prefix: prefix}, {Address: addr("10.0.1.3"), Origin: of, Prefix: prefix}}
	for name, c := range map[string]struct {
		prefixes int
		doc      introspect.Document
		want     int
	}{
		"primary address only":     {want: 1},
		"secondary addresses":      {doc: introspect.Document{Allocated: allocated("10.0.0.5", "10.0.0.6"), Available: []introspect.Available{{Address: addr("10.0.0.7"), Origin: of}}, Cooling: []introspect.Cooling{{Address: addr("10.0.0.8"), Origin: of}}}, want: 5},
		"IPv6":                     {doc: introspect.Document{Allocated: allocated("2001:db8::5")}, want: 1},
		"of another ENI":           {doc: introspect.Document{Cooling: []introspect.Cooling{{Address: addr("10.0.0.8"), Origin: introspect.Origin{ENI: "eni-9"}}}}, want: 1},
		"prefix":                   {prefixes: 1, doc: introspect.Document{Allocated: allocated("10.0.1.1"), Available: free}, want: 17},
		"prefix and others":        {prefixes: 1, doc: introspect.Document{Allocated: allocated("10.0.1.1", "10.0.2.1"), Available: free}, want: 18},
		"full prefix and others":   {prefixes: 2, doc: introspect.Document{Allocated: allocated("10.0.1.1", "10.0.3.1", "10.0.3.2", "10.0.2.1"), Available: free}, want: 34},
		"full prefixes, no others": {prefixes: 3, doc: introspect.Document{Allocated: allocated("10.0.3.1")}, want: 49},
	} {
		t.Run(name, func(t *testing.T) {
			c.doc.ENIs = []introspect.ENI{{ID: "eni-1", Subnet: "subnet-1", Capacity: 240, Prefixes: c.prefixes}, {ID: "eni-2", Subnet: "subnet-2", Capacity: 240}}
			if held := heldByENIs(c.doc); held["subnet-1"] != c.want || held["subnet-2"] != 1 {
				t.Errorf("held = %v, want %d in subnet-1 and 1 in subnet-2", held, c.want)
			}
		})
	}
}
