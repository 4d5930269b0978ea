package kubectl

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/rollout"
	"github.com/berthnet/berth/test/harness"
)

// A cluster moves from the Amazon VPC CNI in place, back, and again to the end. The DaemonSet gets its affinity back, pods
// that cannot be adopted are evicted within their budget, and nothing of the migration is left.
func TestMigrateInPlace(t *testing.T) {
	m := newMovers(t, "kube-system/aws-node", map[string]string{"k8s-app": "aws-node"})
	before := m.former("aws-node").Spec
	o := Options{Config: harness.ControlPlane.Config(), Dial: m.dial(), Clock: hurried{}}
	of := func(args ...string) (string, int, error) {
		return try(t, o, append([]string{"migrate", migrate.AmazonVPCCNI}, args...)...)
	}

	out, code, err := of("plan")
	if !strings.Contains(out, "warm-ip-target: 5") || !strings.Contains(out, "MAGIC=1: unknown") {
		t.Errorf("plan lacks the settings of aws-node:\n%s", out)
	}
	if err != nil || code != 0 || strings.Count(out, "to be moved") != movedNodes || !strings.Contains(out, "node-1   to be moved   3      1          0          0") {
		t.Errorf("plan: exit code = %d, error = %v\n%s", code, err, out)
	}
	if d := m.former("aws-node"); d.ResourceVersion == "" || d.Generation != 1 {
		t.Errorf("plan changed the DaemonSet: generation %d", d.Generation)
	}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
	}}
	harness.OK(t, m.c.Create(t.Context(), budget))
	budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, DisruptionsAllowed: 0, CurrentHealthy: 6, ExpectedPods: 6}
	harness.OK(t, m.c.Status().Update(t.Context(), budget))

	if out, code, err = of("apply", "--nodes", "node-0"); err != nil || code != 0 {
		t.Fatalf("apply: exit code = %d, error = %v\n%s", code, err, out)
	}
	if at := m.daemons("aws-node"); !slices.Equal(at, []string{"node-1"}) || !slices.Equal(m.daemons("berthd"), []string{"node-0"}) {
		t.Errorf("aws-node runs on %v, berthd on %v", at, m.daemons("berthd"))
	}
	if d := m.former("aws-node"); d.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType || len(d.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions) != 2 {
		t.Errorf("DaemonSet during the migration: %+v", d.Spec)
	}
	var pods corev1.PodList
	harness.OK(t, m.c.List(t.Context(), &pods, client.InNamespace("default")))
	if len(pods.Items) != 5 || !strings.Contains(out, "evicted pod default/web-0-0") || !strings.Contains(out, "node-0: waits: pod default/web-0-0: ") {
		t.Errorf("%d pods are left of 6, want one evicted\n%s", len(pods.Items), out)
	}
	m.mu.Lock()
	m.adopted["node-0"] = m.adopted["node-0"][1:]
	m.mu.Unlock()
	if out, code, err = of("verify"); err != nil || code != 0 || !strings.Contains(out, "1 nodes of Berth, 2 pods: 0 problems\nAddresses that answered: 2 by ICMP echo\n") {
		t.Errorf("verify: exit code = %d, error = %v\n%s", code, err, out)
	}
	var daemon corev1.Pod
	harness.OK(t, m.c.Get(t.Context(), types.NamespacedName{Namespace: "kube-system", Name: "berthd-node-0"}, &daemon))
	ready := daemon.Status.Conditions
	daemon.Status.Conditions = nil
	harness.OK(t, m.c.Status().Update(t.Context(), &daemon))
	if out, code, err = of("verify"); err != nil || code != ExitUnwell || !strings.Contains(out, "! node-0: berthd is not ready: the node's pods were not checked\n") {
		t.Errorf("verify while berthd is not ready: exit code = %d, error = %v\n%s", code, err, out)
	}
	daemon.Status.Conditions = ready
	harness.OK(t, m.c.Status().Update(t.Context(), &daemon))
	m.mu.Lock()
	m.mute = "web-0-1"
	m.mu.Unlock()
	if out, code, err = of("verify", "-o", "wide"); err != nil || code != ExitUnwell || !strings.Contains(out, "! node-0: pod default/web-0-1: the node tool has no answer of its address 10.0.0.11\n") || !strings.Contains(out, "default/web-0-2   10.0.0.12   ICMP echo") {
		t.Errorf("verify with a pod that does not answer: exit code = %d, error = %v\n%s", code, err, out)
	}
	m.mu.Lock()
	forgotten := m.adopted["node-0"]
	m.adopted["node-0"] = forgotten[1:]
	m.mu.Unlock()
	if out, code, err = of("verify", "--no-node-pods"); err != nil || code != ExitUnwell || !strings.Contains(out, "pod default/web-0-1 has address 10.0.0.11, which berthd did not give to it") {
		t.Errorf("verify of a pod that berthd does not know: exit code = %d, error = %v\n%s", code, err, out)
	}
	if _, _, err = of("apply", "--finish"); err == nil || !strings.Contains(err.Error(), "node node-1 is not moved and verified") {
		t.Errorf("finish in the middle: error = %v", err)
	}
	if out, code, err = of("rollback"); err != nil || code != 0 {
		t.Fatalf("rollback: exit code = %d, error = %v\n%s", code, err, out)
	}
	if after := m.former("aws-node").Spec; !equalJSON(t, before, after) {
		t.Errorf("DaemonSet after the rollback = %+v, want %+v", after, before)
	}
	m.traces(t)

	if out, code, err = of("apply"); err != nil || code != 0 {
		t.Fatalf("apply: exit code = %d, error = %v\n%s", code, err, out)
	}
	runs := len(m.runs)
	if out, code, err = of("apply"); err != nil || code != 0 || len(m.runs) != runs {
		t.Errorf("a second apply: exit code = %d, error = %v, %d runs of the node tool\n%s", code, err, len(m.runs)-runs, out)
	}
	if out, code, err = of("apply", "--finish"); err != nil || code != 0 || len(m.daemons("berthd")) != movedNodes || strings.Count(out, "finished") != movedNodes {
		t.Fatalf("finish: exit code = %d, error = %v, berthd on %v\n%s", code, err, m.daemons("berthd"), out)
	}
	if err := m.c.Get(t.Context(), types.NamespacedName{Namespace: "kube-system", Name: "aws-node"}, &appsv1.DaemonSet{}); err == nil {
		t.Error("DaemonSet aws-node is there after apply --finish")
	}
	m.noFaults()
}

func equalJSON(t *testing.T, x, y any) bool {
	t.Helper()
	a, err := json.Marshal(x)
	harness.OK(t, err)
	b, err := json.Marshal(y)
	harness.OK(t, err)
	return string(a) == string(b)
}

// traces finds what a migration leaves.
func (m *movers) traces(t *testing.T) {
	t.Helper()
	var nodes corev1.NodeList
	var pods corev1.PodList
	harness.OK(t, m.c.List(t.Context(), &nodes))
	harness.OK(t, m.c.List(t.Context(), &pods, client.MatchingLabels{connect.NameLabel: toolLabel}))
	for _, n := range nodes.Items {
		if label, has := n.Labels[rollout.Label]; has || n.Spec.Unschedulable {
			t.Errorf("Node %s has the label %q, unschedulable = %t", n.Name, label, n.Spec.Unschedulable)
		}
	}
	if err := m.c.Get(t.Context(), types.NamespacedName{Namespace: "kube-system", Name: progressName}, &corev1.ConfigMap{}); err == nil || len(pods.Items) > 0 {
		t.Errorf("the ConfigMap or %d pods of the node tool are left", len(pods.Items))
	}
}

// A node's word moves no other node: its kubelet can fake the answer of the node tool, and its own label.
func TestMigrateDistrustsNodes(t *testing.T) {
	m := newMovers(t, "kube-system/aws-node", map[string]string{"k8s-app": "aws-node"})
	o := Options{Config: harness.ControlPlane.Config(), Dial: m.dial(), Clock: hurried{}}
	of := func(args ...string) (string, int, error) {
		return try(t, o, append([]string{"migrate", migrate.AmazonVPCCNI}, args...)...)
	}
	said := ""
	m.answer = func(node, verb string) string {
		if node == "node-0" && verb == string(rollout.Apply) {
			return said
		}
		return ""
	}
	for name, tt := range map[string]struct{ said, want string }{
		"no answer":       {"\x1b[2Jnothing\n", `node node-0: berthctl migrate apply: it failed: \u001b[2Jnothing`},
		"not JSON":        {"{\"from\": \"amazon-vpc-cni\", \n", "it failed"},
		"of another type": {`{"from": "amazon-vpc-cni", "pods": 7}` + "\n", "its answer is not of this command"},
		"problems":        {`{"from": "amazon-vpc-cni", "problems": ["berthd answers"]}` + "\n", "node node-0: berthctl migrate apply: berthd answers"},
	} {
		m.mu.Lock()
		said = tt.said
		m.mu.Unlock()
		if out, code, err := of("apply"); code != ExitTrouble || err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: exit code = %d, error = %v, want %q\n%s", name, code, err, tt.want, out)
		}
		if at := m.daemons("aws-node"); !slices.Equal(at, []string{"node-1"}) {
			t.Errorf("%s: aws-node runs on %v, want it to stay on node-1", name, at)
		}
	}
	// It names pods of another node.
	m.mu.Lock()
	said = `{"from": "amazon-vpc-cni", "pods": [{"namespace": "default", "name": "web-1-0", "fate": "replace"}]}` + "\n"
	m.mu.Unlock()
	if out, code, err := of("apply", "--nodes", "node-0"); code != 0 || err != nil || strings.Contains(out, "evicted") {
		t.Errorf("pod of another node: exit code = %d, error = %v\n%s", code, err, out)
	}
	// A kubelet labels its own Node.
	var n corev1.Node
	harness.OK(t, m.c.Get(t.Context(), types.NamespacedName{Name: "node-1"}, &n))
	n.Labels[rollout.Label] = rollout.Moving
	harness.OK(t, m.c.Update(t.Context(), &n))
	if _, code, err := of("apply"); code != ExitTrouble || err == nil || !strings.Contains(err.Error(), `node node-1: its label berth.dev/network="moving" was not set by this migration`) {
		t.Errorf("label of a kubelet: exit code = %d, error = %v", code, err)
	}
	m.noFaults()
}

// ciliumKind defines Cilium's kind.
const ciliumKind = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ciliumnodes.cilium.io}
spec:
  group: cilium.io
  scope: Cluster
  names: {plural: ciliumnodes, singular: ciliumnode, kind: CiliumNode}
  versions:
  - {name: v2, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// createCiliumNodes creates Cilium's kind, and an object for each node.
func (m *movers) createCiliumNodes(t *testing.T) {
	t.Helper()
	harness.Eventually(t, harness.Patience, "the kind is served", func() error {
		return harness.ControlPlane.Apply(t.Context(), fstest.MapFS{"kind.yaml": {Data: []byte(ciliumKind)}})
	})
	for i := range movedNodes {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": map[string]any{"name": fmt.Sprintf("node-%d", i)}, "spec": map[string]any{}}}
		harness.Eventually(t, harness.Patience, "CiliumNode", func() error { return client.IgnoreAlreadyExists(m.c.Create(t.Context(), o)) })
	}
}

// A cluster moves from Cilium: every pod is evicted before berthd comes, and Cilium's operator no longer manages the node.
func TestMigrateFromCilium(t *testing.T) {
	m := newMovers(t, "kube-system/cilium", map[string]string{"k8s-app": "cilium"})
	m.createCiliumNodes(t)
	network := network("node-0", 3, 1, 4)
	create(t, &network) // as berthd would make it
	var tainted corev1.Node
	harness.OK(t, m.c.Get(t.Context(), types.NamespacedName{Name: "node-0"}, &tainted))
	tainted.Spec.Taints = append(tainted.Spec.Taints, corev1.Taint{Key: "node.cilium.io/agent-not-ready", Effect: corev1.TaintEffectNoSchedule}, corev1.Taint{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule})
	harness.OK(t, m.c.Update(t.Context(), &tainted)) // as Cilium's operator does while the agent ends
	o := Options{Config: harness.ControlPlane.Config(), Dial: m.dial(), Clock: hurried{}}
	of := func(args ...string) (string, int, error) {
		return try(t, o, append([]string{"migrate", migrate.Cilium}, args...)...)
	}
	out, code, err := of("plan")
	if err != nil || code != 0 || !strings.Contains(out, "node-0   to be moved   3      0          3          0") {
		t.Errorf("plan: exit code = %d, error = %v\n%s", code, err, out)
	}
	if out, code, err = of("apply", "--nodes", "node-0"); err != nil || code != 0 || strings.Count(out, "evicted pod default/web-0-") != 3 {
		t.Fatalf("apply: exit code = %d, error = %v\n%s", code, err, out)
	}
	if !slices.Equal(m.runs, []string{"node-0 apply"}) {
		t.Errorf("the node tool ran: %v, want Cilium's cleanup once", m.runs)
	}
	harness.OK(t, m.c.Get(t.Context(), types.NamespacedName{Name: "node-0"}, &tainted))
	if slices.ContainsFunc(tainted.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key != "dedicated" && t.Key != corev1.TaintNodeUnschedulable && t.Key != corev1.TaintNodeNotReady
	}) || tainted.Spec.Unschedulable {
		t.Errorf("taints after apply = %v, unschedulable = %t", tainted.Spec.Taints, tainted.Spec.Unschedulable)
	}
	left := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "cilium.io/v2", "kind": "CiliumNode"}}
	harness.OK(t, m.c.List(t.Context(), left))
	if len(left.Items) != 1 || left.Items[0].GetName() != "node-1" {
		t.Errorf("CiliumNodes: %v, want that of node-1", left.Items)
	}
	lone := podOn("node-0", "lone", "10.0.0.77")
	create(t, &lone)
	if _, code, err = of("rollback"); code != ExitTrouble || err == nil || !strings.Contains(err.Error(), "pod default/lone must be replaced, and no controller would create it again") {
		t.Errorf("rollback with a pod that nobody creates again: exit code = %d, error = %v", code, err)
	}
	if out, code, err = of("rollback", "--evict-unmanaged"); err != nil || code != 0 {
		t.Fatalf("rollback: exit code = %d, error = %v\n%s", code, err, out)
	}
	if err := m.c.Get(t.Context(), types.NamespacedName{Name: "node-0"}, &v1alpha1.NodeNetwork{}); err == nil {
		t.Error("the NodeNetwork is left, and berth-operator would go on to manage the node")
	}
	m.traces(t)
	m.mu.Lock()
	m.answer = func(_, verb string) string {
		if verb == string(rollout.Finish) {
			return `{"from": "cilium", "command": "finish", "kept": ["/opt/cni/bin/cilium-cni: it is used by 05-cilium.conflist"]}` + "\n"
		}
		return ""
	}
	m.mu.Unlock()
	if out, code, err = of("apply", "--evict-unmanaged"); err != nil || code != 0 {
		t.Fatalf("apply: exit code = %d, error = %v\n%s", code, err, out)
	}
	if out, code, err = of("apply", "--finish"); err != nil || code != 0 || strings.Count(out, "the former system's state is removed, except /opt/cni/bin/cilium-cni: it is used by 05-cilium.conflist") != movedNodes {
		t.Errorf("apply --finish: exit code = %d, error = %v\n%s", code, err, out)
	}
	m.noFaults()
}

// Wrong arguments are refused before anything is read.
func TestMigrateArguments(t *testing.T) {
	for args, want := range map[string]string{
		"calico plan": `FROM is "calico": expected one of amazon-vpc-cni`, "cilium look": `"look" is unknown: expected one of plan`, "cilium": "accepts 2 arg",
		"cilium apply --max-unavailable 0": "--max-unavailable is 0", "cilium plan --parallel 0": "--parallel is 0", "cilium plan --daemonset x": `--daemonset is "x": expected NAMESPACE/NAME`,
		"cilium plan --etcd-dump x": "expected a file with coil-v1", "coil-v1 plan": "expected a file with coil-v1", "coil-v1 plan --etcd-dump /none": "no such file",
		"cilium rollback --finish": "--finish is for apply", "cilium apply --finish --nodes a": "--finish is for apply",
	} {
		if _, code, err := try(t, Options{Config: harness.ControlPlane.Config()}, append([]string{"migrate"}, strings.Fields(args)...)...); code != ExitTrouble || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: exit code = %d, error = %v, want %q", args, code, err, want)
		}
	}
}
