//go:build e2e

package cluster

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/ctl/kubectl"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/rollout"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/lab/demo"
	"github.com/berthnet/berth/lab/run/faults"
	"github.com/berthnet/berth/lab/run/host"
	"github.com/berthnet/berth/lab/run/vpccni"
	"github.com/berthnet/berth/test/harness"
)

// talk is a Deployment whose pods hold two TCP connections each, to the internet and to a Service, and ask for a reply
// over each all the time. A container whose connection breaks, or whose liveness probe fails once, is restarted, which
// the test sees. edge has a host port on each node.
const talk = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: talk, namespace: default}
spec:
  replicas: 4
  selector: {matchLabels: {app: talk}}
  template:
    metadata: {labels: {app: talk}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: talk}}}]
      containers:
        - &client
          name: internet
          image: IMAGE
          imagePullPolicy: Never
          command: [bash, -c, SCRIPT, sh, 203.0.113.10, "8080"]
        - {<<: *client, name: service, command: [bash, -c, SCRIPT, sh, web, "80"]}
        - name: probed
          image: IMAGE
          imagePullPolicy: Never
          args: [netexec, --http-port=8090]
          startupProbe: {httpGet: {path: /healthz, port: 8090}, periodSeconds: 1, failureThreshold: 60}
          livenessProbe: {httpGet: {path: /healthz, port: 8090}, periodSeconds: 1, timeoutSeconds: 20, failureThreshold: 1}
          readinessProbe: {tcpSocket: {port: 8090}, periodSeconds: 1, timeoutSeconds: 20, failureThreshold: 1}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: edge, namespace: default}
spec:
  selector: {matchLabels: {app: edge}}
  template:
    metadata: {labels: {app: edge}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: edge
          image: IMAGE
          imagePullPolicy: Never
          args: [netexec, --http-port=8080]
          ports: [{containerPort: 8080, hostPort: 9090}]
`

// talkScript asks by HTTP, over one connection, for as long as all replies come.
const talkScript = `exec 3<>/dev/tcp/$1/$2
for ((i = 0; ; i++)); do
  printf 'GET /hostname HTTP/1.1\r\nHost: %s\r\n\r\n' "$1" >&3
  length=
  while IFS= read -r -t 60 -u 3 line; do
    line=${line%$'\r'}
    [ "$line" ] || break
    case ${line,,} in content-length:*) length=${line#*: } ;; esac
  done
  if ! [ "$length" ] || ! IFS= read -r -t 60 -u 3 -N "$length" body; then echo "request $i: no reply"; exit 1; fi
  sleep 0.5
done`

// mover moves a cluster with kubectl berth migrate.
type mover struct {
	*world
	faults *faults.Faults // of the present step; a daemon's kind is the name of its DaemonSet
}

// TestMigration moves a whole cluster from the published Amazon VPC CNI, with its DaemonSet, images and plugin, to Berth,
// installed from its chart, by kubectl berth migrate with the node tool's pods. All pods hold connections and answer
// probes; none is restarted, and no reply is lost, while the tool, both daemons and the API server are killed on the way to
// Berth, on the way back from the middle, and on the way to Berth again.
func TestMigration(t *testing.T) {
	pluginPath(t)
	spec := lab.DefaultSpec(2, "m5.large")
	spec.Roles[0].Policy, spec.Roles[0].Actions = "", []string{"*"} // permissions are not tested here
	m := &mover{world: raiseEmpty(t, lab.Options{
		Mode: lab.NodeMode, Spec: &spec, NoDaemons: true, Kubelets: &lab.Kubelets{Proxy: host.NFTables, AllLocal: true, NodeGrace: kubernetesGrace, Images: []string{os.Getenv(amazonVariable)}},
	})}
	var err error
	m.faults, err = faults.New()
	harness.OK(t, err)
	t.Log(m.faults)
	m.installFormer(t)
	m.web, err = demo.DeployWeb(harness.Deadline(t, soon), m.Lab, 4)
	harness.OK(t, err)
	m.deployTalk(t)
	before, ready := m.pods(t), m.readySince(t)

	plan := migrationJSON[kubectl.MigrationPlan](t, m, kubectl.ExitUnwell, "plan")
	if len(plan.Obstacles) != 1 || !strings.Contains(plan.Obstacles[0].What, "install Berth") {
		t.Errorf("obstacles of the plan without Berth = %+v, want that Berth must be installed", plan.Obstacles)
	}
	plan.Values["migration"] = map[string]any{"from": migrate.AmazonVPCCNI}
	harness.OK(t, m.Chart.Install(t.Context(), plan.Values))
	m.planned(t, before)
	m.record(t)
	m.underCalls(t, func() {
		for _, step := range []struct {
			name string
			do   func(*testing.T)
		}{
			{"one node moves", func(t *testing.T) {
				m.move(t, "apply", "--nodes="+calmNode)
				m.served(t, formerName, brokenNode, daemonName, calmNode)
			}},
			{"it moves back", func(t *testing.T) {
				m.move(t, "rollback", "--nodes="+calmNode)
				m.served(t, formerName, calmNode, formerName, brokenNode)
			}},
			{"one node and a part of the other move, with kills", m.half},
			{"all nodes move back, with kills", func(t *testing.T) {
				m.troubled(t, "rollback")
				m.served(t, formerName, calmNode, formerName, brokenNode)
			}},
			{"all nodes move, with kills", func(t *testing.T) {
				m.troubled(t, "apply")
				m.served(t, daemonName, calmNode, daemonName, brokenNode)
			}},
			{"a second apply changes nothing", m.again},
			{"verify finds no problem", m.verified},
			{"nothing is left after finish", m.finish},
		} {
			m.faults.Reset()
			if !t.Run(step.name, func(t *testing.T) {
				step.do(t)
				m.unchanged(t, before)
				now := m.readySince(t)
				if calm := m.faults.Count(faults.APIServer) == 0; calm && !maps.Equal(now, ready) { // controllers miss heartbeats in an outage
					t.Errorf("Nodes are Ready: %v, want %v: pods of a Node that is not Ready leave their Services", now, ready)
				}
				ready = now
			}) {
				return
			}
		}
	})
	if t.Failed() {
		return
	}
	m.kubectl(t, "delete", "daemonset", "edge", "--wait")
	plan.Values["migration"] = map[string]any{"from": ""}
	harness.OK(t, m.Chart.Install(t.Context(), plan.Values))
	m.kubectl(t, "label", "nodes", "--all", rollout.Label+"-")
	m.kubectl(t, "rollout", "restart", "deployment/web", "deployment/talk")
	m.comesAndGoes(t)
	m.nothingLeft(t)
	for _, n := range m.Nodes() { // the plugins of both systems have made the rules of edge's host port
		h, err := m.Machine(n.Name)
		harness.OK(t, err)
		if rules := sh(t, h, "iptables-save | grep 9090 || true"); rules != "" {
			t.Errorf("rules of a host port are left on node %s:\n%s", n.Name, rules)
		}
	}
}

func (m *mover) deployTalk(t *testing.T) {
	t.Helper()
	script := fmt.Sprintf("%q", talkScript)
	file := filepath.Join(t.TempDir(), "talk.yaml")
	harness.OK(t, os.WriteFile(file, []byte(strings.NewReplacer("IMAGE", agnhost, "SCRIPT", script).Replace(talk)), 0o600))
	m.kubectl(t, "apply", "--filename="+file)
	ctx := harness.Deadline(t, soon)
	harness.OK(t, m.Kube.WaitDeployment(ctx, inDefault, "talk"))
	m.kubectl(t, "rollout", "status", "daemonset/edge", "--timeout=120s")
}

// readySince returns when each Node became Ready.
func (m *mover) readySince(t *testing.T) map[string]string {
	t.Helper()
	nodes := &corev1.NodeList{}
	harness.OK(t, m.Kube.Client.List(t.Context(), nodes))
	out := map[string]string{}
	for _, n := range nodes.Items {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				out[n.Name] = string(c.Status) + " since " + c.LastTransitionTime.String()
			}
		}
	}
	return out
}

// lasting is what a migration in place may not change of a pod.
type lasting struct {
	node, address, sandbox string
	containers             string // with their restarts
}

// pods returns the pods that have addresses of the pod network, by their UIDs.
func (m *mover) pods(t *testing.T) map[string]lasting {
	t.Helper()
	pods := &corev1.PodList{}
	harness.OK(t, m.Kube.Client.List(t.Context(), pods))
	out := map[string]lasting{}
	for _, p := range pods.Items {
		if p.Spec.HostNetwork {
			continue
		}
		h, err := m.Machine(p.Spec.NodeName)
		harness.OK(t, err)
		boxes, err := sandboxes(t.Context(), h, p.Name+"$")
		harness.OK(t, err)
		var containers []string
		for _, c := range p.Status.ContainerStatuses {
			containers = append(containers, fmt.Sprintf("%s:%s:%d", c.Name, c.ContainerID, c.RestartCount))
		}
		slices.Sort(containers)
		out[p.Namespace+"/"+p.Name+"/"+string(p.UID)] = lasting{p.Spec.NodeName, p.Status.PodIP, strings.Join(boxes, " "), strings.Join(containers, " ")}
	}
	return out
}

// unchanged checks that no pod was restarted or replaced, and that all are Ready and reached.
func (m *mover) unchanged(t *testing.T, before map[string]lasting) {
	t.Helper()
	now := m.pods(t)
	for name, want := range before {
		if got := now[name]; got != want {
			t.Errorf("pod %s = %+v\nwant %+v", name, got, want)
			part := strings.Split(name, "/")
			m.evidence(t, part[0], part[1])
		}
	}
	if len(now) != len(before) {
		t.Errorf("pods = %v\nwant those of before", slices.Collect(maps.Keys(now)))
	}
	for i, n := range m.Nodes() { // each host port from the other node
		url := "http://" + net.JoinHostPort(m.NodeAddrs(n)[0].String(), "9090") + "/hostname"
		if _, err := ns.Get(harness.Deadline(t, soon), m.Nodes()[1-i].Netns, url); err != nil {
			t.Errorf("the host port of node %s: %v", n.Name, err)
		}
	}
}

// planned checks that the plan adopts all pods.
func (m *mover) planned(t *testing.T, pods map[string]lasting) {
	t.Helper()
	plan := migrationJSON[kubectl.MigrationPlan](t, m, 0, "plan")
	want := map[string]int{}
	for _, p := range pods {
		want[p.node]++
	}
	for _, n := range plan.Nodes {
		if n.Adopt == nil || *n.Adopt != want[n.Name] || *n.Replace != 0 || len(n.Obstacle) > 0 {
			t.Errorf("plan of node %s = %+v, want %d pods in place", n.Name, n, want[n.Name])
		}
	}
	if len(plan.Nodes) != len(m.Nodes()) {
		t.Errorf("the plan has %d nodes, want %d", len(plan.Nodes), len(m.Nodes()))
	}
}

// served checks that daemons run on nodes: pairs of the name of a DaemonSet and a node.
func (m *mover) served(t *testing.T, pairs ...string) {
	t.Helper()
	var want []string
	for i := 0; i < len(pairs); i += 2 {
		want = append(want, pairs[i+1]+": "+pairs[i])
	}
	slices.Sort(want)
	harness.Eventually(t, soon, "the daemons run", func() error { // a rollback restores the DaemonSet, which replaces its pods
		var got []string
		for _, name := range []string{formerName, daemonName} {
			for node := range m.daemonPods(t, name) {
				got = append(got, node+": "+name)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("daemons = %v, want %v", got, want)
		}
		return nil
	})
}

// migrationJSON runs a verb of kubectl berth migrate and decodes its JSON.
func migrationJSON[T any](t *testing.T, m *mover, code int, args ...string) T {
	t.Helper()
	return berthJSON[T](t, m.world, code, append([]string{"migrate", migrate.AmazonVPCCNI}, args...)...)
}

// move runs kubectl berth migrate to its end.
func (m *mover) move(t *testing.T, args ...string) {
	t.Helper()
	if err := m.call(t, nil, args...); err != nil {
		t.Error(err)
	}
}

// again checks that a second apply does nothing.
func (m *mover) again(t *testing.T) {
	report := migrationJSON[kubectl.Migration](t, m, 0, "apply")
	if len(report.Log) > 0 {
		t.Errorf("a second apply did: %s", strings.Join(report.Log, "; "))
	}
}

// verified checks that verify reaches every pod, once berthd is ready again after the last kill.
func (m *mover) verified(t *testing.T) {
	harness.Eventually(t, soon, "berthd is ready", func() error {
		var daemons corev1.PodList
		if err := m.Kube.Client.List(t.Context(), &daemons, client.InNamespace(addons.Namespace), client.MatchingLabels{"app.kubernetes.io/name": "berthd"}); err != nil {
			return err
		}
		for _, p := range daemons.Items {
			if err := m.isReady(t.Context(), p.Namespace, p.Name); err != nil {
				return err
			}
		}
		return nil
	})
	v := migrationJSON[kubectl.Verification](t, m, 0, "verify")
	if len(v.Problems) > 0 || v.Nodes != len(m.Nodes()) || v.Pods != len(m.pods(t)) {
		t.Errorf("verification = %+v", v)
	}
}

func (m *mover) finish(t *testing.T) {
	m.move(t, "apply", "--finish")
	if err := m.Kube.Client.Get(t.Context(), client.ObjectKey{Namespace: addons.Namespace, Name: formerName}, &appsv1.DaemonSet{}); !apierrors.IsNotFound(err) {
		t.Errorf("DaemonSet %s after finish: %v, want that it is gone", formerName, err)
	}
	m.nothingLeft(t)
}

// nothingLeft checks that nothing of the Amazon VPC CNI is left on the nodes but for the checkpoint that keeps ipamd from
// starting, nor of the migration in the cluster.
func (m *mover) nothingLeft(t *testing.T) {
	t.Helper()
	for _, n := range m.Nodes() {
		left, err := vpccni.Left(n.Netns)
		harness.OK(t, err)
		h, err := m.Machine(n.Name)
		harness.OK(t, err)
		files, err := h.Run(t.Context(), "sh", "-c", `ls -d /run/aws-node/* /etc/cni/net.d/*aws* /opt/cni/bin/aws-cni* /opt/cni/bin/egress-cni 2>/dev/null | grep -v ^/run/aws-node/ipam.json$; grep -L moved-to-berth /run/aws-node/ipam.json; iptables-save | grep AWS; true`)
		harness.OK(t, err)
		if left = append(left, slices.Collect(strings.Lines(files))...); len(left) > 0 {
			t.Errorf("left on node %s: %s", n.Name, strings.Join(left, "; "))
		}
	}
	for _, get := range [][]string{{"configmap", "berth-migration"}, {"pods", "--selector=app.kubernetes.io/name=berth-migrate"}} {
		out, err := m.Kube.Kubectl(context.WithoutCancel(t.Context()), append([]string{"get", "--namespace=" + addons.Namespace, "--ignore-not-found", "--output=name"}, get...)...)
		if err != nil || strings.TrimSpace(out) != "" {
			t.Errorf("left of the migration: %s, %v", out, err)
		}
	}
}
