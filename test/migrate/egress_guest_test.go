//go:build guest && e2e

package migrate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/coil"
	"github.com/berthnet/berth/internal/migrate/coil/objects"
	"github.com/berthnet/berth/internal/migrate/rollout"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/replay"
	"github.com/berthnet/berth/lab/run/faults"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/test/harness"
)

const egressNamespace = "internet"

var natKey = types.NamespacedName{Namespace: egressNamespace, Name: "nat"}

// egressMove is a lab on whose nodes a recorded cluster of Coil with clients and gateways of Egresses runs.
type egressMove struct {
	*replay.Raised
	t        *testing.T
	lab      *lab.Lab
	objects  *objects.Cluster
	clients  []replay.Pod
	services map[netip.Addr]string // names of Egresses by the addresses of their Services
	talks    *harness.Conversations
	faults   *faults.Faults
	began    time.Time
}

// TestEgressesMoveFromCoil moves the recorded Egresses of Coil with real programs: berthctl, berthd, berth-operator and
// gateways. Clients keep running, with their connections within the cluster; they leave Coil's gateways for Berth's with
// their nodes, return with a node that is rolled back, and reach Berth's gateways by the same Service in the end, when
// nothing of Coil is left. berthctl and berthd are killed at random steps.
func TestEgressesMoveFromCoil(t *testing.T) {
	m := raiseEgressMove(t)
	m.step("the pods converse")
	m.converse()
	m.seenByNode("before", map[string][]netip.Addr{})
	m.step("begin")
	m.begin()
	through := m.through("node-1")
	m.there("node-1")
	m.seenByNode("after node-1 has moved", map[string][]netip.Addr{"node-1": m.berths()})
	if _, err := through.Ask(t.Context(), "x"); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("a connection through Coil's gateway once the client has left it: %v, want that it is reset", err)
	}
	m.clientsWait("node-2")
	m.there("node-2")
	m.seenByNode("after node-2 has moved", map[string][]netip.Addr{"node-1": m.berths(), "node-2": m.berths()})
	m.back("node-2")
	m.seenByNode("after the rollback of node-2", map[string][]netip.Addr{"node-1": m.berths()})
	m.there("node-2")
	m.seenByNode("after node-2 has moved again", map[string][]netip.Addr{"node-1": m.berths(), "node-2": m.berths()})
	m.step("apply again")
	m.again()

	m.step("finish")
	m.finish()
	m.seenByNode("after finish", map[string][]netip.Addr{"node-1": m.berths(), "node-2": m.berths()})
	m.step("nothing is left")
	m.gatewaysOfCoilEnd()
	m.nothingLeft()
	m.step("the Service leads to Berth's gateways")
	m.byService()
	m.talks.GoOn(t, 30)
	harness.OK(t, m.talks.End())
	m.step("the end")
}

// step logs the time at which a step begins.
func (m *egressMove) step(what string) {
	m.t.Helper()
	m.t.Logf("%4.0f s: %s", time.Since(m.began).Seconds(), what)
}

func raiseEgressMove(t *testing.T) *egressMove {
	t.Helper()
	var err error
	harness.ControlPlane, err = kube.Remote(os.Getenv(kube.RemoteDir))
	harness.OK(t, err)
	harness.KubeClean(t) // labs of other packages use the same names of pools and nodes
	f, err := faults.New()
	harness.OK(t, err)
	t.Log(f)
	m := &egressMove{t: t, services: map[netip.Addr]string{}, faults: f, began: time.Now()}
	l := harness.Raise(t, lab.Options{
		Mode: lab.PoolMode, Egress: true, Nodes: 2, NoDaemons: true, RestartOperators: true, Pools: []v1alpha1.AddressPool{},
		DaemonArgs: append(slices.Clone(lab.EgressArgs), "--cni-network="+coil.DefaultNetwork),
	})
	m.lab = l
	m.recordedObjects()
	c, err := replay.Load(replay.V2NewestEgress)
	harness.OK(t, err)
	c = c.Only("node-1", "node-2")
	pods := &corev1.PodList{}
	harness.OK(t, l.Kube.Client.List(t.Context(), pods))
	for i := range c.Pods { // the runtime knows the UIDs of the API server
		for _, p := range pods.Items {
			if p.Namespace == c.Pods[i].Namespace && p.Name == c.Pods[i].Name {
				c.Pods[i].UID = string(p.UID)
			}
		}
	}
	machines := map[string]string{}
	for _, n := range l.Nodes() {
		machines[n.Name] = n.Netns
	}
	m.Raised, err = c.RaiseOn(fabric.Prefix(l.ID)+"pod-coil-", filepath.Join(l.Dir, "nodes"), machines)
	harness.OK(t, err)
	t.Cleanup(func() { harness.OK(t, m.Close()) })
	harness.OK(t, m.CompleteEgress())
	for _, p := range m.Pods {
		if p.UsesEgress() {
			m.clients = append(m.clients, p)
		}
	}
	for _, n := range m.Nodes {
		harness.OK(t, m.Proxy(n.Name, m.proxied(n.Name)))
	}
	return m
}

// recordedObjects creates the recorded objects, and the Deployments of Coil's Egresses.
func (m *egressMove) recordedObjects() {
	m.t.Helper()
	ctx, c := m.t.Context(), m.lab.Kube.Client
	for _, crd := range replay.CRDs() {
		harness.OK(m.t, client.IgnoreAlreadyExists(c.Create(ctx, crd)))
		m.t.Cleanup(func() { _ = c.Delete(context.WithoutCancel(ctx), crd) })
	}
	harness.Eventually(m.t, time.Minute, "the recorded objects", func() error {
		return replay.Apply(ctx, c, replay.V2NewestEgress, "Namespace", "AddressPool", "AddressBlock", "BlockRequest", "Egress", "Service", "Pod")
	})
	for _, name := range []string{"nat", "partner"} {
		of := m.coilsEgress(name)
		labels := map[string]string{"app.kubernetes.io/name": "coil", "app.kubernetes.io/component": "egress", "app.kubernetes.io/instance": name}
		replicas := int32(1)
		if name == natKey.Name {
			replicas = 2
		}
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: egressNamespace, Name: name, Labels: labels, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(of, of.GroupVersionKind())}}}
		d.Spec = appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{NodeSelector: map[string]string{"runs": "nowhere"}, Containers: []corev1.Container{{Name: "egress", Image: "coil"}}},
		}}
		harness.OK(m.t, c.Create(ctx, d))
		svc := &corev1.Service{}
		harness.OK(m.t, c.Get(ctx, types.NamespacedName{Namespace: egressNamespace, Name: name}, svc))
		for _, ip := range svc.Spec.ClusterIPs {
			m.services[netip.MustParseAddr(ip)] = name
		}
	}
	cfg := m.lab.Kube.Config()
	cfg.GroupVersion, cfg.NegotiatedSerializer, cfg.ContentType = &schema.GroupVersion{}, serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion(), runtime.ContentTypeJSON
	api, err := rest.UnversionedRESTClientFor(cfg)
	harness.OK(m.t, err)
	m.objects = &objects.Cluster{API: api, Operator: "system:serviceaccount:kube-system:berth-operator", Namespace: metav1.NamespaceSystem, Clock: clock.Real{}}
}

func (m *egressMove) coilsEgress(name string) *unstructured.Unstructured {
	m.t.Helper()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: replay.Group, Version: "v2", Kind: "Egress"})
	harness.OK(m.t, m.lab.Kube.Client.Get(m.t.Context(), types.NamespacedName{Namespace: egressNamespace, Name: name}, o))
	return o
}

// proxied are the gateways of Coil that serve clients of a node: one on the node, or the only one.
func (m *egressMove) proxied(node string) map[netip.Addr]netip.Addr {
	out := map[netip.Addr]netip.Addr{}
	for service, name := range m.services {
		for _, p := range m.Pods {
			if !p.IsGateway() || !strings.HasPrefix(p.Name, name+"-") || out[service].IsValid() && p.Node != node {
				continue
			}
			for _, a := range p.Addresses() {
				if a.Is4() == service.Is4() {
					out[service] = a
				}
			}
		}
	}
	return out
}

// coils are the addresses of the gateways of Coil that serve a client.
func (m *egressMove) coils(p replay.Pod) (list []netip.Addr) {
	of := m.proxied(p.Node)
	for _, l := range p.Links {
		if to := of[l.Remote()]; to.IsValid() {
			list = append(list, to)
		}
	}
	return list
}

// berths are the addresses of Berth's gateways, once all are ready.
func (m *egressMove) berths() (list []netip.Addr) {
	m.t.Helper()
	for name, n := range map[string]int{"nat": 2, "partner": 1} {
		of, err := m.lab.Kube.WaitGateways(harness.Deadline(m.t, harness.Patience), types.NamespacedName{Namespace: egressNamespace, Name: name}, n)
		harness.OK(m.t, err)
		for a := range of {
			list = append(list, a)
		}
	}
	return list
}

// converse has the pods hold connections with each other.
func (m *egressMove) converse() {
	m.t.Helper()
	var conns []*echo.Conn
	for i, p := range m.Pods {
		s, err := echo.Serve(m.PodNetns(p))
		harness.OK(m.t, err)
		m.t.Cleanup(func() { _ = s.Close() })
		from := m.Pods[(i+1)%len(m.Pods)]
		for _, a := range p.Addresses() {
			if from.IsGateway() || p.IsGateway() || !slices.ContainsFunc(from.Addresses(), func(o netip.Addr) bool { return o.Is4() == a.Is4() }) {
				continue
			}
			harness.Eventually(m.t, harness.Patience, fmt.Sprintf("%s reaches %s", from.Name, a), func() error {
				c, err := echo.Connect(m.t.Context(), m.PodNetns(from), "tcp", netip.AddrPortFrom(a, echo.Port), netip.Addr{})
				if err == nil {
					conns = append(conns, c)
				}
				return err
			})
		}
	}
	if len(conns) < 4 {
		m.t.Fatalf("%d connections, want more", len(conns))
	}
	m.talks = harness.Converse(m.t, 500*time.Millisecond, 60*time.Second, conns...) // the machine is slow
	m.talks.GoOn(m.t, len(conns))
}

// through opens a connection from a client of a node to the outside.
func (m *egressMove) through(node string) *echo.Conn {
	m.t.Helper()
	i := slices.IndexFunc(m.clients, func(p replay.Pod) bool { return p.Node == node })
	c, err := echo.Connect(m.t.Context(), m.PodNetns(m.clients[i]), "tcp", netip.AddrPortFrom(site.OutsideHost, echo.Port), netip.Addr{})
	harness.OK(m.t, err)
	m.t.Cleanup(func() { c.Close() })
	_, err = c.Ask(m.t.Context(), "x")
	harness.OK(m.t, err)
	return c
}

// begin moves the objects, as kubectl berth migrate does before the first node, and starts berth-operator.
func (m *egressMove) begin() {
	m.t.Helper()
	p, err := m.objects.Plan(m.t.Context())
	harness.OK(m.t, err)
	if text := fmt.Sprint(p.Steps); len(p.Steps) != 3 || !strings.Contains(text, "connections through Coil's gateways are reset") || len(p.Blocked()) > 0 {
		m.t.Errorf("plan = %+v; want a step that says which connections end, and nothing in the way", p)
	}
	_, err = m.objects.Begin(m.t.Context())
	harness.OK(m.t, err)
	for _, o := range m.lab.Operators() {
		harness.OK(m.t, o.Start())
	}
}

// label says which system serves a node.
func (m *egressMove) label(node, value string) {
	m.t.Helper()
	text := "null"
	if value != "" {
		text = fmt.Sprintf("%q", value)
	}
	patch := client.RawPatch(types.MergePatchType, []byte(fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, rollout.Label, text)))
	harness.OK(m.t, m.lab.Kube.Client.Patch(m.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, patch))
}

// there moves a node, with kills of berthctl and berthd.
func (m *egressMove) there(node string) {
	m.t.Helper()
	m.step(node + " moves")
	m.label(node, rollout.Moving)
	m.killed(node, "apply")
	m.tool(node, "", "apply")
	n, err := m.lab.Node(node)
	harness.OK(m.t, err)
	m.label(node, rollout.Serving)
	for range 2 {
		harness.OK(m.t, n.Start())
		<-time.After(time.Duration(m.faults.Int64N(int64(3 * time.Second)))) // until berthd is killed, at any step
		harness.OK(m.t, n.Kill())
	}
	m.step("berthd serves " + node)
	harness.OK(m.t, n.Start())
	harness.OK(m.t, n.WaitReady(harness.Deadline(m.t, harness.Patience)))
	m.verify(node)
}

func (m *egressMove) verify(node string) {
	m.t.Helper()
	harness.Eventually(m.t, harness.Patience, "verify on "+node, func() error {
		if r := m.tool(node, "", "verify"); len(r.Problems) > 0 {
			return errors.New(strings.Join(r.Problems, "; "))
		}
		return nil
	})
	m.talks.GoOn(m.t, 10)
}

// back returns a node to Coil. Berth's gateways on it end first, as eviction does.
func (m *egressMove) back(node string) {
	m.t.Helper()
	m.step(node + " returns to Coil")
	m.label(node, rollout.Moving)
	harness.Eventually(m.t, harness.Patience, "no gateway of Berth on "+node, func() error {
		pods, left := &corev1.PodList{}, 0
		if err := m.lab.Kube.Client.List(m.t.Context(), pods, client.HasLabels{v1alpha1.LabelEgress}); err != nil {
			return err
		}
		for _, p := range pods.Items {
			if p.Spec.NodeName == node {
				left++
				harness.OK(m.t, client.IgnoreNotFound(m.lab.Kube.Client.Delete(m.t.Context(), &p)))
			}
		}
		if left > 0 {
			return fmt.Errorf("%d are left", left)
		}
		return nil
	})
	n, err := m.lab.Node(node)
	harness.OK(m.t, err)
	harness.OK(m.t, n.Kill())
	m.killed(node, "rollback")
	if r := m.tool(node, "", "rollback"); len(r.Problems) > 0 {
		m.t.Errorf("problems of the rollback: %s", strings.Join(r.Problems, "; "))
	}
	m.label(node, "")
	_, err = m.objects.Returned(m.t.Context(), node)
	harness.OK(m.t, err)
	m.clientsWait(node)
}

// again checks that what was done is not done again.
func (m *egressMove) again() {
	m.t.Helper()
	changed, err := m.objects.Begin(m.t.Context())
	if err != nil || len(changed) > 0 {
		m.t.Errorf("a second begin changed %q, %v", changed, err)
	}
	for _, n := range m.lab.Nodes() {
		harness.OK(m.t, n.Kill())
		if r := m.tool(n.Name, "", "apply"); len(r.Changed) > 0 {
			m.t.Errorf("a second apply on %s changed: %s", n.Name, strings.Join(r.Changed, "; "))
		}
		harness.OK(m.t, n.Start())
		harness.OK(m.t, n.WaitReady(harness.Deadline(m.t, harness.Patience)))
	}
}

func (m *egressMove) finish() {
	m.t.Helper()
	for _, n := range m.lab.Nodes() {
		m.killed(n.Name, "apply", "--finish")
		harness.Eventually(m.t, harness.Patience, "finish on "+n.Name, func() error { return m.try(n.Name, "", new(migrate.Report), "apply", "--finish") })
		if r := m.tool(n.Name, "", "apply", "--finish"); len(r.Changed) > 0 {
			m.t.Errorf("a second finish on %s changed: %s", n.Name, strings.Join(r.Changed, "; "))
		}
	}
	for again := range 2 {
		changed, err := m.objects.Finish(m.t.Context())
		if err != nil || (len(changed) == 0) != (again == 1) {
			m.t.Errorf("finish %d of the objects changed %q, %v", again, changed, err)
		}
	}
}

// killed runs berthctl some times, and kills it at random steps that the verb has, unless it has passed them. The first kill
// happens.
func (m *egressMove) killed(node string, args ...string) {
	m.t.Helper()
	verb := strings.Join(args, " ")
	m.faults.Reset()
	for i := range 3 {
		fault := replay.CoilKills[verb].Draw(m.faults.Rand, 1+i)
		harness.Eventually(m.t, harness.Patience, verb+" on "+node+" with "+fault, func() error {
			err := m.try(node, fault, new(migrate.Report), args...)
			if err != nil && strings.Contains(err.Error(), "killed") {
				m.faults.Did(faults.Tool)
				return nil
			}
			return err
		})
	}
	m.t.Logf("%s on %s: kills: %s", verb, node, m.faults.Counts())
	if missing := m.faults.Missing(faults.Tool); len(missing) > 0 {
		m.t.Errorf("%s on %s was not killed", verb, node)
	}
}

// tool runs berthctl migrate coil on a node.
func (m *egressMove) tool(node, fault string, args ...string) (r migrate.Report) {
	m.t.Helper()
	harness.OK(m.t, m.try(node, fault, &r, args...))
	return r
}

func (m *egressMove) try(node, fault string, into *migrate.Report, args ...string) error {
	n, err := m.lab.Node(node)
	harness.OK(m.t, err)
	args = slices.Concat([]string{"migrate", migrate.Coil}, args, []string{
		"-o", "json", "--ipam=pool", "--node-name=" + node, "--state-dir=" + n.StateDir(), "--cni-conf-dir=" + n.ConfDir(), "--cni-network=" + coil.DefaultNetwork,
		"--netns-dir=" + ns.Dir, "--results-dir=" + m.File(node, "/var/lib/cni/results"), "--coil-plugin=" + m.File(node, "/opt/cni/bin/coil"),
		"--coild-socket=" + m.File(node, "/run/coild.sock"),
	})
	var out, log bytes.Buffer
	cmd := exec.CommandContext(m.t.Context(), filepath.Join(m.lab.BinDir, "berthctl"), args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = []string{"PATH=" + os.Getenv("PATH"), "BERTH_FAILPOINTS=" + fault}, &out, &log
	if err := ns.Do(n.Netns, cmd.Run); err != nil && out.Len() == 0 {
		return fmt.Errorf("berthctl %s: %w\n%s", strings.Join(args[:3], " "), err, &log)
	}
	return json.Unmarshal(out.Bytes(), into)
}
