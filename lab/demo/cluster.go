package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/lab/run/node"
)

// clusterProofs are the proofs of a lab with kubelets, in their order.
var clusterProofs = []proof{
	in(inClusters, "without the plugin no node is Ready, no pod is bound", withoutPlugin),
	in(inClusters, "Berth installed: nodes are Ready as soon as it serves", installed),
	in(inClusters, "30 pods Ready on 3 nodes, none before its node", thirtyPods),
	in(inClusters, "DNS and Services work from a pod; kubectl logs and exec work", dnsAndServices),
	in(inClusters, "NodePort of every node, from the host outside", nodePorts),
	in(routed, "a network policy holds from a pod's first packet", policyInCluster),
	in(inOperator, "kubectl shows NodeNetworks", showObjects),
	in(inPool, "kubectl shows pools and blocks", showObjects),
	in(inPort, "kubectl shows VPCs and PodNICs", showObjects),
	in(inPort, "pods come up with default, chosen, fixed and users' ports", clusterSamples),
	in(inPort, "kubectl apply rejects a wrong annotation", refusedAtOnce),
	in(inPort, "a NICPolicy gives pods a subnet and a group by their labels", byPolicy),
	in(inPort, "a StatefulSet keeps its NIC on another node", statefulSet),
	in(inClusters, "Berth rolled under traffic: no request is lost", rolled),
	in(inClusters, "a node drained, and back", drained),
	in(inClusters, "a node rebooted: its pods start again", rebooted),
	in(inClusters, "a node killed: its pods run elsewhere", killed),
	in(inClusters, "every pod has a unique address, and berthd reports it", agreed),
}

// Objects of the demo in the cluster.
const (
	WebName     = "web" // of the Deployment and its Service
	earlyPods   = 6     // of web, created before the plugin is installed
	webReplicas = 30
	webNodePort = 30080
	WebPort     = 8080
	ClientName  = "client"
	inDefault   = metav1.NamespaceDefault
	Agnhost     = "registry.k8s.io/e2e-test-images/agnhost:2.66.1"
)

// The node that the demo leaves alone, and those that it drains, reboots and kills.
const (
	clientNode   = "node-1"
	drainedNode  = "node-2"
	rebootedNode = "node-2"
	killedNode   = "node-3"
)

// web is a Deployment of HTTP servers that return their names, its Service, and a client pod. The servers keep serving
// for a while after SIGTERM to lose no request, because proxies learn of the termination later. They are spread evenly
// over the nodes, with at most half of them on one: otherwise the first Ready node would get all. With Leave, they are
// evicted from a lost node within seconds; Kubernetes' default is five minutes.
const web = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: {{.Replicas}}
  selector: {matchLabels: {app: web}}
  strategy: {rollingUpdate: {maxUnavailable: 2}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 10
      {{- if .Leave}}
      tolerations:
        - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 2}
        - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 2}
      {{- end}}
      topologySpreadConstraints:
        - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: web}}, nodeTaintsPolicy: Honor}
        - {maxSkew: {{.Most}}, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, minDomains: 3, labelSelector: {matchLabels: {app: web}}, nodeTaintsPolicy: Honor}
      containers:
        - name: web
          image: {{.Image}}
          imagePullPolicy: Never
          args: [netexec, --http-port={{.Port}}, --delay-shutdown=4]
          readinessProbe: {httpGet: {path: /healthz, port: {{.Port}}}, periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 5}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: NodePort
  ipFamilyPolicy: PreferDualStack
  selector: {app: web}
  ports: [{port: 80, targetPort: {{.Port}}, nodePort: {{.NodePort}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: default}
spec:
  nodeSelector: {kubernetes.io/hostname: {{.ClientNode}}}
  terminationGracePeriodSeconds: 1
  dnsConfig: {{.DNS}}
  containers: [{name: client, image: {{.Image}}, imagePullPolicy: Never, command: [sh, -c, {{.Calls}}]}]
`

// callScript prints a line per call of the Service and family: the HTTP status or 000, curl's exit status, the seconds
// until the name was resolved or 0, and the error. It runs as the container's main process, so that it survives
// restarts of kubelet, runtime and API server.
const callScript = `while :; do for family in %s; do curl $family -s -o /dev/null -m 5 -w '%%{http_code} %%{exitcode} %%{time_namelookup} %%{errormsg}\n' http://` + WebName + `/hostname >>` + callFile + `; sleep 0.05; done; done`

const callFile = "/tmp/calls"

// Cluster is a lab with kubelets, used through its Kubernetes API.
type Cluster struct {
	lab   *lab.Lab
	nodes []*node.Node
	quote func(text string) // prints output of a program; may be nil
}

// ClusterOf returns the cluster of a lab with kubelets.
func ClusterOf(l *lab.Lab) *Cluster { return &Cluster{lab: l, nodes: l.Nodes()} }

// DeployWeb deploys the servers and their client, and returns once all of them are Ready.
func DeployWeb(ctx context.Context, l *lab.Lab, replicas int) (*Cluster, error) {
	s := ClusterOf(l)
	return s, attempt(func() {
		s.deployWeb(ctx, replicas, replicas, false)
		check(l.Kube.WaitDeployment(ctx, inDefault, WebName))
		s.kubectl(ctx, "wait", "--for=condition=Ready", "pod/"+ClientName, "--timeout=120s")
	})
}

// deployWeb creates the servers, with a maximum per node, and their client.
func (s *Cluster) deployWeb(ctx context.Context, replicas, most int, leave bool) {
	var families []string
	for _, f := range s.lab.PodFamilies().Families() {
		families = append(families, curlFamily[f])
	}
	must(s.apply(ctx, web, map[string]any{
		"Replicas": replicas, "Most": most, "Leave": leave, "Image": Agnhost, "Port": WebPort, "NodePort": webNodePort, "ClientNode": clientNode,
		"DNS":   string(must(json.Marshal(s.lab.Mode.DNSConfig()))),
		"Calls": string(must(json.Marshal(fmt.Sprintf(callScript, strings.Join(families, " "))))),
	}))
}

// kubectl runs kubectl and returns its output.
func (s *Cluster) kubectl(ctx context.Context, args ...string) string {
	return must(s.lab.Kube.Kubectl(ctx, args...))
}

// apply applies a manifest, which is a template.
func (s *Cluster) apply(ctx context.Context, manifest string, with any) (out string, err error) {
	f := must(os.CreateTemp("", "manifest-*.yaml"))
	defer os.Remove(f.Name())
	t := must(template.New("manifest").Parse(manifest))
	checkf(errors.Join(t.Execute(f, with), f.Close()), "write %s", filepath.Base(f.Name()))
	return s.lab.Kube.Kubectl(ctx, "apply", "--filename="+f.Name())
}

// sh runs a shell script in the client and returns its output.
func (s *Cluster) sh(ctx context.Context, script string) string {
	return s.kubectl(ctx, "exec", ClientName, "--", "sh", "-c", script)
}

// shut fails if the client gets a reply from an address.
func (s *Cluster) shut(ctx context.Context, address string) {
	if attempt(func() { s.sh(ctx, "curl -s -m 2 "+hostname(address)) }) == nil {
		fail("%s responds although its group does not allow it", address)
	}
}

// hostname returns the URL at which a server returns its name.
func hostname(address string) string { return hostnameAt(address, WebPort) }

func hostnameAt(address string, port int) string {
	return "http://" + net.JoinHostPort(address, strconv.Itoa(port)) + "/hostname"
}

// pods returns the Deployment's pods that are not terminating.
func (s *Cluster) pods(ctx context.Context) []corev1.Pod {
	list := &corev1.PodList{}
	checkf(s.lab.Kube.Client.List(ctx, list, client.InNamespace(inDefault), client.MatchingLabels{"app": WebName}), "list pods")
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

// podsOn returns the names of the Deployment's pods on a node.
func (s *Cluster) podsOn(ctx context.Context, node string) (names []string) {
	for _, p := range s.pods(ctx) {
		if p.Spec.NodeName == node {
			names = append(names, p.Name)
		}
	}
	return names
}

// scale scales the Deployment, and waits until its pods are Ready.
func (s *Cluster) scale(ctx context.Context, replicas int) {
	s.kubectl(ctx, "scale", "deployment/"+WebName, fmt.Sprintf("--replicas=%d", replicas))
	check(s.lab.Kube.WaitDeployment(ctx, inDefault, WebName))
}

// ready returns the condition Ready of a Node.
func (s *Cluster) ready(ctx context.Context, name string) corev1.NodeCondition {
	n := &corev1.Node{}
	check(s.lab.Kube.Client.Get(ctx, client.ObjectKey{Name: name}, n))
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if i < 0 {
		fail("node %s has no condition Ready", name)
	}
	return n.Status.Conditions[i]
}

// readySince returns when a Node became Ready.
func (s *Cluster) readySince(ctx context.Context, name string) time.Time {
	c := s.ready(ctx, name)
	if c.Status != corev1.ConditionTrue {
		fail("node %s is not Ready", name)
	}
	return c.LastTransitionTime.Time
}

// withoutPlugin creates pods while there is no network plugin, and checks nodes and pods once the pods are
// unschedulable.
func withoutPlugin(ctx context.Context, st *stage) string {
	s := st.cluster
	s.deployWeb(ctx, earlyPods, webReplicas/2, true)
	var message string
	await(ctx, "pods without nodes", func() {
		rejected := 0
		for _, p := range s.pods(ctx) {
			if p.Spec.NodeName != "" {
				fail("pod %s is bound to %s", p.Name, p.Spec.NodeName)
			}
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
					rejected++
				}
			}
		}
		if rejected < earlyPods {
			fail("the scheduler has rejected %d of %d pods", rejected, earlyPods)
		}
		for _, n := range s.nodes {
			c := s.ready(ctx, n.Name)
			if message = c.Message; c.Status != corev1.ConditionFalse {
				fail("%s: condition Ready = %+v, want False", n.Name, c)
			}
		}
	})
	if _, after, ok := strings.Cut(message, "Network plugin returns error: "); ok {
		message, _, _ = strings.Cut(after, ",")
	}
	return fmt.Sprintf("%d nodes: %s; %d pods wait", len(s.nodes), message, earlyPods)
}

// installed installs Berth, and measures how long nodes take to be Ready after the installation and after berthd's
// start.
func installed(ctx context.Context, st *stage) string {
	s := st.cluster
	began := time.Now()
	check(s.lab.Chart.Install(ctx, nil))
	took := since(began)
	check(s.lab.Kube.WaitNodesReady(ctx, s.lab.Nodes()...))
	ready, longest, ran := since(began), time.Duration(0), s.daemonsRan(ctx)
	for _, n := range s.nodes {
		if ran[n.Name].IsZero() {
			fail("berthd does not run on %s", n.Name)
		}
		longest = max(longest, s.readySince(ctx, n.Name).Sub(ran[n.Name]))
	}
	const promised = 10 * time.Second // timestamps of objects have whole seconds
	if longest > promised {
		fail("a node became Ready %v after berthd's start, want at most %v", longest, promised)
	}
	how := "the chart applied"
	if s.lab.Kubelets.Helm != "" {
		how = "helm install"
	}
	return fmt.Sprintf("%s in %s; all Ready after %s, at most %.0f s after berthd's start", how, took, ready, longest.Seconds())
}

// daemonsRan returns when berthd's containers started, by node.
func (s *Cluster) daemonsRan(ctx context.Context) map[string]time.Time {
	pods, ran := &corev1.PodList{}, map[string]time.Time{}
	check(s.lab.Kube.Client.List(ctx, pods, client.InNamespace(addons.Namespace), client.MatchingLabels{"app.kubernetes.io/name": "berthd"}))
	for _, p := range pods.Items {
		if c := p.Status.ContainerStatuses; len(c) > 0 && c[0].State.Running != nil {
			ran[p.Spec.NodeName] = c[0].State.Running.StartedAt.Time
		}
	}
	return ran
}

// thirtyPods scales the Deployment to thirty pods, and checks where and when they became Ready.
func thirtyPods(ctx context.Context, st *stage) string {
	s := st.cluster
	check(s.lab.Kube.WaitDeployment(ctx, inDefault, WebName))
	began := time.Now()
	s.scale(ctx, webReplicas)
	took := since(began)
	perNode := map[string]int{}
	for _, p := range s.pods(ctx) {
		perNode[p.Spec.NodeName]++
		ready, bound := s.readySince(ctx, p.Spec.NodeName), conditionTime(p, corev1.PodScheduled)
		if bound.Before(ready) {
			fail("pod %s was bound to %s at %v, before the node became Ready at %v", p.Name, p.Spec.NodeName, bound, ready)
		}
	}
	if len(perNode) != len(s.nodes) {
		fail("the pods run on %v: want some on each of %d nodes", perNode, len(s.nodes))
	}
	events := &corev1.EventList{}
	checkf(s.lab.Kube.Client.List(ctx, events, client.InNamespace(inDefault)), "list events")
	for _, e := range events.Items {
		if e.Reason == "FailedCreatePodSandBox" {
			fail("the kubelet could not create a sandbox: %s", e.Message)
		}
	}
	var spread []string
	for _, name := range slices.Sorted(maps.Keys(perNode)) {
		spread = append(spread, fmt.Sprint(perNode[name]))
	}
	return fmt.Sprintf("%s pods; %d more were Ready after %s; no sandbox failed", strings.Join(spread, "+"), webReplicas-earlyPods, took)
}

func conditionTime(p corev1.Pod, kind corev1.PodConditionType) time.Time {
	for _, c := range p.Status.Conditions {
		if c.Type == kind && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// dnsAndServices calls Services by name from a pod, and uses kubectl logs and exec.
func dnsAndServices(ctx context.Context, st *stage) string {
	s := st.cluster
	check(s.lab.Kube.WaitDeployment(ctx, addons.Namespace, addons.DNS))
	s.kubectl(ctx, "wait", "--for=condition=Ready", "pod/"+ClientName, "--timeout=60s")
	const calls = 60
	all, families := map[string]bool{}, s.lab.PodFamilies().Families()
	for _, family := range families {
		// The name of each responding pod, one per line.
		out := s.sh(ctx, fmt.Sprintf("for i in $(seq %d); do curl %s -sf -m 5 http://%s/hostname || exit 1; echo; done", calls, curlFamily[family], WebName))
		answered := map[string]bool{}
		for _, name := range strings.Fields(out) {
			answered[name], all[name] = true, true
		}
		if len(answered) < webReplicas/2 {
			fail("%d calls over %s were served by only %d pods", calls, family, len(answered))
		}
	}
	s.sh(ctx, "curl -sfk -m 5 https://kubernetes.default.svc.cluster.local/livez")
	if logs := s.kubectl(ctx, "logs", "--namespace="+addons.Namespace, "--selector=app.kubernetes.io/name=berthd", "--tail=1"); strings.TrimSpace(logs) == "" {
		fail("berthd's log is empty")
	}
	return fmt.Sprintf("%d calls of http://%s per family of %v served by %d pods; kubernetes.default resolved", calls, WebName, families, len(all))
}

// curlFamily is curl's option for a family.
var curlFamily = [ipfamily.Number]string{"-4", "-6"}

// nodePorts calls the NodePort of every node from the host outside.
func nodePorts(ctx context.Context, st *stage) string {
	s := st.cluster
	const each = 5
	answered, calls := map[string]bool{}, 0
	for _, n := range s.nodes {
		for range each {
			for _, name := range s.askNode(ctx, n) {
				answered[name] = true
				calls++
			}
		}
	}
	return fmt.Sprintf("%d of %d calls over %v served, by %d pods", calls, calls, s.lab.PodFamilies().Families(), len(answered))
}

// askNode calls the Service from outside through a node, in each family, and returns the names of the responding pods.
func (s *Cluster) askNode(ctx context.Context, n *node.Node) (names []string) {
	for _, url := range s.nodePortURLs(n) {
		name, err := ns.Get(ctx, s.lab.OutsidePath(), url)
		checkf(err, "call %s from outside", n.Name)
		names = append(names, name)
	}
	return names
}

// nodePortURLs returns the Service's URLs on a node, for each family of the pods.
func (s *Cluster) nodePortURLs(n *node.Node) (urls []string) {
	for _, a := range s.lab.NodeAddrs(n) {
		urls = append(urls, "http://"+netip.AddrPortFrom(a, webNodePort).String()+"/hostname")
	}
	return urls
}

// showObjects prints Berth's objects with kubectl.
func showObjects(ctx context.Context, st *stage) string {
	s := st.cluster
	kinds := map[lab.Mode]string{lab.OperatorMode: "nodenetworks", lab.PoolMode: "addresspools,addressblocks", lab.PortMode: "vpcs,podnics"}[s.lab.Mode]
	table := s.kubectl(ctx, "get", kinds)
	if s.quote != nil {
		s.quote(beginning(table, shownLines))
	}
	for _, n := range s.nodes {
		if !strings.Contains(table, n.Name) {
			fail("kubectl get %s does not name %s:\n%s", kinds, n.Name, table)
		}
	}
	return "kubectl get " + kinds
}

// shownLines is the number of lines printed per table.
const shownLines = 12

// beginning returns the first lines of a text, and the number of further ones.
func beginning(text string, lines int) string {
	all := strings.SplitAfter(strings.TrimRight(text, "\n"), "\n")
	if len(all) <= lines {
		return text
	}
	return strings.Join(all[:lines], "") + fmt.Sprintf("... and %d more lines\n", len(all)-lines)
}
