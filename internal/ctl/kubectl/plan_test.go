package kubectl

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/planner"
	"github.com/berthnet/berth/lab/cloud/endpoints"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/check"
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

// nodesSubnet is the subnet of nodes in node mode.
const nodesSubnet = "subnet-0123456789abcdef0"

// nodeModeCluster is planCluster in node mode, with these settings in addition to others.
func nodeModeCluster(t *testing.T, settings ...introspect.Setting) Options {
	t.Helper()
	o := planCluster(t, "eni")
	settings = append(settings, introspect.Setting{Name: "max-pods", Value: "0"}, introspect.Setting{Name: "ip-families", Value: "ipv4"})
	handlers := map[string]http.Handler{}
	for _, name := range []string{"node-a", "node-b"} {
		doc, mux := document(name), http.NewServeMux()
		doc.ENIs[0].Subnet = nodesSubnet
		mux.Handle("/", serving(doc))
		mux.HandleFunc("GET "+introspect.SettingsPath, func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(introspect.Settings{Settings: settings})
		})
		handlers[name] = mux
	}
	o.Dial = pipes(handlers)
	return o
}

func TestPlanOfANodeModeCluster(t *testing.T) {
	o := nodeModeCluster(t, introspect.Setting{Name: "warm-ip-target", Value: "4"}, introspect.Setting{Name: "warm-eni-target", Value: ""}, introspect.Setting{Name: "cooling-period", Value: "1m0s"})
	if _, code, err := try(t, o, "plan", "--show"); code == 0 || !strings.Contains(err.Error(), "subnet "+nodesSubnet+": its block is not known here: add --subnet "+nodesSubnet+"=CIDR") {
		t.Errorf("exit code = %d, error = %v, want the missing flag", code, err)
	}
	s := shown(t, o, "--subnet", nodesSubnet+"=10.0.0.0/25=7")
	if e := s.Settings.ENI; s.Settings.Mode != planner.ModeNode || *e.WarmIPTarget != 4 || e.WarmENITarget != nil || s.Settings.Cooling.Std().Seconds() != 60 || s.Subnets[0].Used != 7 {
		t.Errorf("settings = %+v, want warmIPTarget 4 and a cooling period of 1m; subnets %+v", s.Settings, s.Subnets)
	}
}

// plan --ec2 reads the subnets of nodes and of the settings' tags from EC2, with the right to call DescribeSubnets alone.
func TestPlanWithSubnetsFromEC2(t *testing.T) {
	o := nodeModeCluster(t, introspect.Setting{Name: "subnet-tags", Value: "for=pods"})
	s := spec.Default()
	s.Throttle, s.Consistency = "none", spec.Consistency{}
	s.AccessKeys = []spec.AccessKey{{ID: "AKIAPLANPLANPLANPLAN", Secret: "of a person who plans", Actions: []string{"ec2:DescribeSubnets"}}}
	nodes, pods := &s.VPCs[0].Subnets[0], &s.VPCs[0].Subnets[1]
	nodes.ID, pods.ID, pods.Tags = nodesSubnet, "subnet-0fedcba9876543210", map[string]string{"for": "pods", "team": "x"}
	s.Instances = []spec.Instance{ // the ENI of each node has an address, and a pod's
		{Name: "node-a", Type: "m5.large", Subnet: "a", Secondary: 1}, {Name: "node-b", Type: "m5.large", Subnet: "a", Secondary: 1},
		{Name: "database", Type: "m5.large", Subnet: "a", Secondary: 6}, {Name: "cache", Type: "m5.large", Subnet: "b"},
	}
	lab, err := endpoints.Serve(s)
	harness.OK(t, err)
	t.Cleanup(lab.Close)
	key := lab.Credentials()
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL_EC2": lab.EC2URL, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": key.AccessKeyID, "AWS_SECRET_ACCESS_KEY": key.SecretAccessKey,
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
	} {
		t.Setenv(name, value)
	}
	got := shown(t, o, "--ec2", "--region=lab-1").Subnets
	want := []planner.Subnet{
		{Name: nodes.ID, CIDR: "10.0.0.0/22", Zone: "eu-central-1a", Used: 7}, {Name: pods.ID, CIDR: "10.0.4.0/22", Zone: "lab-1b", Used: 1, Tags: map[string]string{"for": "pods"}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("subnets (-want +got):\n%s", d)
	}
	if _, code, err := try(t, o, "plan", "--ec2"); code == 0 || !strings.Contains(err.Error(), "--ec2: read subnets from EC2 (ec2:DescribeSubnets)") {
		t.Errorf("in another region: exit code = %d, error = %v, want EC2's", code, err)
	}
}

// The page shows what the command prints.
func TestPlanOnPage(t *testing.T) {
	o := nodeModeCluster(t, introspect.Setting{Name: "warm-eni-target", Value: "1"})
	o.Now = func() time.Time { return time.Unix(1_800_000_000, 0) } // of the recorded answers
	metric := regexp.MustCompile(`(berth|kube)_\w+`)
	prometheus := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, filepath.Join(harness.Tree(), "internal", "planner", "testdata", "prometheus", metric.FindString(r.FormValue("query"))+".json"))
	}))
	t.Cleanup(prometheus.Close)
	check.OutputOnPage(t, filepath.Join(harness.Tree(), "docs", "guides", "plan.md"), "kubectl berth plan --prometheus", func(args []string) string {
		for i, a := range args {
			args[i] = strings.Replace(a, "http://localhost:9090", prometheus.URL, 1)
		}
		out, code, err := try(t, o, args[2:]...)
		if code != 0 || err != nil {
			t.Fatalf("exit code = %d, error = %v", code, err)
		}
		return out
	})
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
