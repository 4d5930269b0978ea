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
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	mute    string                         // pod that answers no node tool
	faults  []string
	served  int // rounds in which berthd ran: a disruption allowance comes late
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
	ds.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "WARM_IP_TARGET", Value: "5"}, {Name: "MAGIC", Value: "1"}}
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
		case <-time.After(20 * time.Millisecond):
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
			case wanted && pods.Items[at].Status.Phase == corev1.PodPending: // the API server went away before
				p := pods.Items[at]
				p.Status = podOn(n.Name, name, "192.0.2.1").Status
				_ = m.c.Status().Update(ctx, &p)
			case !wanted && at >= 0:
				_ = m.c.Delete(ctx, &pods.Items[at], client.GracePeriodSeconds(0))
			}
			if at >= 0 {
				running[n.Name] = append(running[n.Name], d.Name)
			}
		}
	}
	m.allow(ctx, running)
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

// allow is the disruption controller: it allows disruptions once berthd has run for a while.
func (m *movers) allow(ctx context.Context, running map[string][]string) {
	for _, names := range running {
		if slices.Contains(names, connect.DaemonName) {
			m.served++
		}
	}
	var budgets policyv1.PodDisruptionBudgetList
	if m.served < 30 || m.c.List(ctx, &budgets) != nil {
		return
	}
	for i := range budgets.Items {
		if b := &budgets.Items[i]; b.Status.DisruptionsAllowed == 0 {
			b.Status.DisruptionsAllowed = 100
			_ = m.c.Status().Update(ctx, b)
		}
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
		one := migrate.Pod{Namespace: p.Namespace, Name: p.Name, Interface: "eth0", Fate: fate}
		if verb == rollout.Verify && p.Name != m.mute {
			one.Reached = []migrate.Reached{{Address: netip.MustParseAddr(p.Status.PodIP), By: migrate.ByICMP}}
		}
		of = append(of, one)
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
