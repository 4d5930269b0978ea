package kubectl

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/rollout"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/test/harness"
)

// movers is a cluster of two nodes that are moved: the API server is real; this is the DaemonSet controller, the kubelets
// and the node tool.
type movers struct {
	t       *testing.T
	c       client.Client
	server  *httptest.Server // the kubelets
	stop    context.CancelFunc
	ended   sync.WaitGroup
	mu      sync.Mutex
	runs    []string                       // of the node tool: NODE VERB
	adopted map[string][]corev1.Pod        // by node: pods that berthd serves
	answer  func(node, verb string) string // replaces the node tool's output, if not empty
	faults  []string
}

const movedNodes = 2

// newMovers makes the cluster: on each node two pods of a ReplicaSet and one of a DaemonSet.
func newMovers(t *testing.T, former string, labels map[string]string) *movers {
	t.Helper()
	harness.KubeClean(t)
	m := &movers{t: t, c: harness.KubeClient(t), adopted: map[string][]corev1.Pod{}}
	m.server = httptest.NewTLSServer(http.HandlerFunc(m.logs))
	t.Cleanup(m.server.Close)
	u, err := url.Parse(m.server.URL)
	harness.OK(t, err)
	port, err := strconv.Atoi(u.Port())
	harness.OK(t, err)
	for i := range movedNodes {
		n := node(fmt.Sprintf("node-%d", i), corev1.ConditionTrue)
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: u.Hostname()}}
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
		create(t, &n)
		for j := range 3 {
			p := podOn(n.Name, fmt.Sprintf("web-%d-%d", i, j), fmt.Sprintf("10.0.%d.%d", i, 10+j))
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: new(true)}}
			if j == 2 {
				p.OwnerReferences[0].Kind = "DaemonSet"
			}
			create(t, &p)
		}
	}
	name := strings.TrimPrefix(former, "kube-system/")
	ds := m.daemonSet(name, labels)
	ds.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelOSStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"linux"}}}}},
	}}}
	ds.Spec.Template.Spec.InitContainers = []corev1.Container{{Name: "clean-cilium-state", Image: "cilium:v1.20.0", Command: []string{"/init-container.sh"}}}
	berthd := m.daemonSet(connect.DaemonName, map[string]string{connect.NameLabel: connect.DaemonName})
	berthd.Spec.Template.Spec.NodeSelector = map[string]string{rollout.Label: rollout.Serving}
	berthd.Spec.Template.Spec.Containers[0].Args = []string{"--ipam=eni"}
	for _, d := range []*appsv1.DaemonSet{ds, berthd} {
		harness.OK(t, m.c.Create(t.Context(), d))
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	m.stop = stop
	m.ended.Go(func() { m.run(ctx) })
	t.Cleanup(m.end)
	harness.Eventually(t, harness.Patience, "the former daemons run", func() error {
		if len(m.daemons(name)) != movedNodes {
			return fmt.Errorf("%d pods", len(m.daemons(name)))
		}
		return nil
	})
	return m
}

// end stops the controllers and deletes what harness.KubeClean does not know.
func (m *movers) end() {
	m.stop()
	m.ended.Wait()
	ctx := context.Background() // that of the test has ended
	for _, o := range []client.Object{&appsv1.DaemonSet{}, &corev1.Pod{}, &policyv1.PodDisruptionBudget{}} {
		for _, namespace := range []string{"kube-system", "default"} {
			harness.OK(m.t, m.c.DeleteAllOf(ctx, o, client.InNamespace(namespace), client.GracePeriodSeconds(0)))
		}
	}
	harness.OK(m.t, client.IgnoreNotFound(m.c.Delete(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: progressName}})))
}

// hurried is a clock whose timers are fast: waiting for others is not what is tested.
type hurried struct{ clock.Real }

func (hurried) After(d time.Duration) <-chan time.Time { return time.After(d / 40) }

func podOn(node, name, ip string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: new(int64(0)), Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

func (m *movers) daemonSet(name string, labels map[string]string) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: name, Image: name + ":v1"}}}},
		},
	}
}

// daemons returns the nodes with a pod of a DaemonSet.
func (m *movers) daemons(name string) (nodes []string) {
	var pods corev1.PodList
	if err := m.c.List(context.Background(), &pods, client.InNamespace("kube-system")); err != nil {
		return nil
	}
	for _, p := range pods.Items {
		if p.Name == name+"-"+p.Spec.NodeName {
			nodes = append(nodes, p.Spec.NodeName)
		}
	}
	return nodes
}

// run is the controllers and kubelets, until ctx ends.
func (m *movers) run(ctx context.Context) {
	for ctx.Err() == nil {
		m.round(ctx)
		select {
		case <-time.After(20 * time.Millisecond): //nolint:forbidigo // the pace of a controller
		case <-ctx.Done():
		}
	}
}

func (m *movers) round(ctx context.Context) {
	var nodes corev1.NodeList
	var sets appsv1.DaemonSetList
	var pods corev1.PodList
	for _, list := range []client.ObjectList{&nodes, &sets, &pods} {
		if m.c.List(ctx, list) != nil {
			return
		}
	}
	running := map[string][]string{} // by node
	for _, d := range sets.Items {
		for i := range nodes.Items {
			n := &nodes.Items[i]
			name := d.Name + "-" + n.Name
			at := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.Name == name })
			switch wanted := d.DeletionTimestamp == nil && matches(&d.Spec.Template.Spec, n); {
			case wanted && at < 0:
				p := podOn(n.Name, name, "192.0.2.1")
				p.Namespace, p.Labels, p.Spec.HostNetwork = "kube-system", d.Spec.Template.Labels, true
				p.Spec.Containers = d.Spec.Template.Spec.Containers
				p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(&d, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
				status := p.Status
				if m.c.Create(ctx, &p) == nil {
					p.Status = status
					_ = m.c.Status().Update(ctx, &p)
				}
			case !wanted && at >= 0:
				_ = m.c.Delete(ctx, &pods.Items[at], client.GracePeriodSeconds(0))
			}
			if at >= 0 {
				running[n.Name] = append(running[n.Name], d.Name)
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for node, names := range running {
		if len(names) > 1 {
			m.faults = append(m.faults, fmt.Sprintf("%v run on %s", names, node))
		}
	}
	for i := range pods.Items { // the kubelet runs the node tool
		p := &pods.Items[i]
		if p.Labels[connect.NameLabel] != toolLabel || p.Status.Phase != corev1.PodPending {
			continue
		}
		verb := p.Labels[toolVerb]
		if verb != rollout.Survey && verb != rollout.Verify && verb != string(rollout.Finish) && len(running[p.Spec.NodeName]) > 0 {
			m.faults = append(m.faults, fmt.Sprintf("the node tool runs %s on %s beside %v", verb, p.Spec.NodeName, running[p.Spec.NodeName]))
		}
		m.runs = append(m.runs, p.Spec.NodeName+" "+verb)
		if verb == string(rollout.Apply) {
			m.adopted[p.Spec.NodeName] = slices.DeleteFunc(slices.Clone(pods.Items), func(of corev1.Pod) bool { return of.Namespace != "default" || of.Spec.NodeName != p.Spec.NodeName })
		}
		p.Status.Phase = corev1.PodSucceeded
		_ = m.c.Status().Update(ctx, p)
	}
}

// matches reports whether a DaemonSet's pods run on a node, for the selectors and operators that are used here.
func matches(of *corev1.PodSpec, n *corev1.Node) bool {
	for key, value := range of.NodeSelector {
		if n.Labels[key] != value {
			return false
		}
	}
	if of.Affinity == nil || of.Affinity.NodeAffinity == nil {
		return true
	}
	for _, t := range of.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		if !slices.ContainsFunc(t.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
			return slices.Contains(r.Values, n.Labels[r.Key]) != (r.Operator == corev1.NodeSelectorOpIn)
		}) {
			return true
		}
	}
	return false
}

// logs are the kubelets' logs of the node tool.
func (m *movers) logs(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // containerLogs/NAMESPACE/POD/CONTAINER
	var pod corev1.Pod
	if len(parts) != 4 || m.c.Get(r.Context(), types.NamespacedName{Namespace: parts[1], Name: parts[2]}, &pod) != nil {
		http.NotFound(w, r)
		return
	}
	node, verb := pod.Spec.NodeName, pod.Labels[toolVerb]
	if m.answer != nil {
		if text := m.answer(node, verb); text != "" {
			fmt.Fprint(w, text)
			return
		}
	}
	var of []migrate.Pod
	for i, p := range m.adopted[node] {
		fate := migrate.Adopted
		if i == 0 && verb == string(rollout.Apply) {
			fate = migrate.Replace
		}
		of = append(of, migrate.Pod{Namespace: p.Namespace, Name: p.Name, Interface: "eth0", Fate: fate})
	}
	var v any = migrate.Report{From: migrate.AmazonVPCCNI, Command: verb, Pods: of}.Complete()
	if verb == rollout.Survey {
		v = migrate.Plan{From: migrate.AmazonVPCCNI, Found: []string{"ipamd v1.23"}, Pods: []migrate.Pod{{Name: "web", Fate: migrate.Adopt}}}.Complete()
	}
	text, _ := json.MarshalIndent(v, "", "  ")
	fmt.Fprintf(w, "time=now level=INFO msg=\"reads the node\"\n%s\n", text)
}

// dial answers as the berthd of each node.
func (m *movers) dial() connect.Dialer {
	handlers := map[string]http.Handler{}
	for i := range movedNodes {
		name := fmt.Sprintf("node-%d", i)
		handlers[name] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			m.mu.Lock()
			defer m.mu.Unlock()
			doc := introspect.Document{Node: name}
			for _, p := range m.adopted[name] {
				doc.Allocated = append(doc.Allocated, introspect.Allocated{Address: netip.MustParseAddr(p.Status.PodIP), Namespace: p.Namespace, Pod: p.Name})
			}
			serving(doc).ServeHTTP(w, r)
		})
	}
	return pipes(handlers)
}

func (m *movers) noFaults() {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.faults) > 0 {
		m.t.Error(m.faults)
	}
}

func (m *movers) former(name string) *appsv1.DaemonSet {
	m.t.Helper()
	var d appsv1.DaemonSet
	harness.OK(m.t, m.c.Get(m.t.Context(), types.NamespacedName{Namespace: "kube-system", Name: name}, &d))
	return &d
}

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
	budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, DisruptionsAllowed: 100, CurrentHealthy: 6, ExpectedPods: 6}
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
	if len(pods.Items) != 5 || !strings.Contains(out, "evicted pod default/web-0-0") {
		t.Errorf("%d pods are left of 6, want one evicted\n%s", len(pods.Items), out)
	}
	m.mu.Lock()
	m.adopted["node-0"] = m.adopted["node-0"][1:]
	m.mu.Unlock()
	if out, code, err = of("verify"); err != nil || code != 0 || !strings.Contains(out, "1 nodes of Berth, 2 pods: 0 problems") {
		t.Errorf("verify: exit code = %d, error = %v\n%s", code, err, out)
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
	if out, code, err = of("apply", "--finish"); err != nil || code != 0 || len(m.daemons("berthd")) != movedNodes {
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

// A cluster moves from Cilium: every pod is evicted before berthd comes, and Cilium's operator no longer manages the node.
func TestMigrateFromCilium(t *testing.T) {
	m := newMovers(t, "kube-system/cilium", map[string]string{"k8s-app": "cilium"})
	harness.Eventually(t, harness.Patience, "the kind is served", func() error {
		return harness.ControlPlane.Apply(t.Context(), fstest.MapFS{"kind.yaml": {Data: []byte(ciliumKind)}})
	})
	for i := range movedNodes {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": map[string]any{"name": fmt.Sprintf("node-%d", i)}, "spec": map[string]any{}}}
		harness.Eventually(t, harness.Patience, "CiliumNode", func() error { return client.IgnoreAlreadyExists(m.c.Create(t.Context(), o)) })
	}
	network := network("node-0", 3, 1, 4)
	create(t, &network) // as berthd would make it
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
	m.noFaults()
}

// Wrong arguments are refused before anything is read.
func TestMigrateArguments(t *testing.T) {
	for args, want := range map[string]string{
		"calico plan": `FROM is "calico": expected one of amazon-vpc-cni`, "cilium look": `"look" is unknown: expected one of plan`, "cilium": "accepts 2 arg",
		"cilium apply --max-unavailable 0": "--max-unavailable is 0", "cilium plan --daemonset x": `--daemonset is "x": expected NAMESPACE/NAME`,
		"cilium rollback --finish": "--finish is for apply", "cilium apply --finish --nodes a": "--finish is for apply",
	} {
		if _, code, err := try(t, Options{Config: harness.ControlPlane.Config()}, append([]string{"migrate"}, strings.Fields(args)...)...); code != ExitTrouble || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: exit code = %d, error = %v, want %q", args, code, err, want)
		}
	}
}
