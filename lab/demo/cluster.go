package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/lab/network/ns"
	"github.com/berthnet/berth/lab/run/poll"
)

// clusterProofs are those of a lab with kubelets, in the order in which they are shown.
var clusterProofs = []proof{
	{inClusters, "without the plugin no node is Ready, no pod is bound", withoutPlugin},
	{inClusters, "Berth installed: nodes are Ready, as soon as it serves", installed},
	{inClusters, "30 pods Ready on 3 nodes, none before its node was", thirtyPods},
	{inClusters, "names and Services from a pod; logs and exec", namesAndServices},
	{inClusters, "NodePort of every node, from the host outside", nodePorts},
	{inOperator, "kubectl shows NodeNetworks", showObjects},
	{inPool, "kubectl shows pools and blocks", showObjects},
	{inPort, "kubectl shows VPCs and PodNICs", showObjects},
	{inPort, "pods come up with default, chosen, fixed and users' ports", clusterSamples},
	{inPort, "a wrong annotation is refused by kubectl apply", refusedAtOnce},
	{inPort, "a NICPolicy gives pods a subnet and a group by their labels", byPolicy},
	{inPort, "a StatefulSet keeps its NIC on another node", statefulSet},
	{inPort, "a port deleted behind its back is made again", remade},
	{inPort, "pods go: their ports are deleted, the user's stay", givenBack},
	{inClusters, "Berth rolled under traffic: no request is lost", rolled},
	{inClusters, "a node drained, and back", drained},
	{inClusters, "a node rebooted: its pods start again", rebooted},
	{inClusters, "a node killed: its pods run elsewhere", killed},
	{inClusters, "every pod has an address of its own, and berthd knows it", agreed},
}

// What the story puts into the cluster.
const (
	webName     = "web"
	earlyPods   = 6 // of the web, made before there is a plugin
	webReplicas = 30
	webNodePort = 30080
	webPort     = 8080
	clientName  = "client"
	inDefault   = metav1.NamespaceDefault
	agnhost     = "registry.k8s.io/e2e-test-images/agnhost:2.66.1"
)

var webLabels = map[string]string{"app": webName}

// soon lets pods leave a lost node within seconds; Kubernetes' default is five minutes.
func soon() []corev1.Toleration {
	seconds := int64(2)
	var out []corev1.Toleration
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		out = append(out, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds})
	}
	return out
}

// spreadOver is evenly over the nodes, and never more than half of the pods on one, which
// the first node that is Ready would get. What may not have pods does not count.
func spreadOver() []corev1.TopologySpreadConstraint {
	three, honor := int32(3), corev1.NodeInclusionPolicyHonor
	even := corev1.TopologySpreadConstraint{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: &metav1.LabelSelector{MatchLabels: webLabels}, NodeTaintsPolicy: &honor,
	}
	most := even
	most.MaxSkew, most.WhenUnsatisfiable, most.MinDomains = webReplicas/2, corev1.DoNotSchedule, &three
	return []corev1.TopologySpreadConstraint{even, most}
}

// web are a Deployment of HTTP servers that tell their names, the Service before them,
// and a pod to ask from.
func web(mode lab.Mode) []client.Object {
	replicas, grace := int32(earlyPods), int64(10)
	unavailable := intstr.FromInt32(2)
	server := corev1.Container{
		Name: webName, Image: agnhost, ImagePullPolicy: corev1.PullNever,
		// It answers for a while after it was told to end, as servers that may
		// not lose a request do: proxies hear of its end a moment later.
		Args:           []string{"netexec", fmt.Sprintf("--http-port=%d", webPort), "--delay-shutdown=4"},
		ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(webPort)}}, PeriodSeconds: 1, TimeoutSeconds: 5, FailureThreshold: 5},
	}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: inDefault, Name: webName},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: webLabels},
			Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: &unavailable}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: webLabels},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{server}, TerminationGracePeriodSeconds: &grace, Tolerations: soon(),
					TopologySpreadConstraints: spreadOver(),
				},
			},
		},
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: inDefault, Name: webName},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Selector: webLabels,
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(webPort), NodePort: webNodePort}},
		},
	}
	one := int64(1)
	// By each family that the cluster has.
	service.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: inDefault, Name: clientName},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: clientName, Image: agnhost, ImagePullPolicy: corev1.PullNever, Args: []string{"pause"}}},
			// Where the story does not drain, reboot or kill.
			NodeSelector:                  map[string]string{corev1.LabelHostname: clientNode},
			TerminationGracePeriodSeconds: &one,
			DNSConfig:                     mode.DNSConfig(),
		},
	}
	return []client.Object{deployment, service, pod}
}

// Which node the story leaves alone, and which it drains, reboots and kills.
const (
	clientNode   = "node-1"
	drainedNode  = "node-2"
	rebootedNode = "node-2"
	killedNode   = "node-3"
)

// withoutPlugin makes the pods before there is a network plugin, and looks at nodes
// and pods once the scheduler has refused them.
func withoutPlugin(ctx context.Context, s *stage) (string, error) {
	c := s.lab.Kube.Client
	for _, o := range web(s.lab.Mode) {
		if err := c.Create(ctx, o); err != nil {
			return "", fmt.Errorf("create %T %s: %w", o, o.GetName(), err)
		}
	}
	var says string
	err := poll.Until(ctx, func() error {
		pods, err := s.webPods(ctx)
		if err != nil {
			return err
		}
		refused := 0
		for _, p := range pods {
			if p.Spec.NodeName != "" {
				return fmt.Errorf("pod %s is bound to %s", p.Name, p.Spec.NodeName)
			}
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
					refused++
				}
			}
		}
		if refused < earlyPods {
			return fmt.Errorf("the scheduler has refused %d of %d pods", refused, earlyPods)
		}
		for _, n := range s.nodes {
			node := &corev1.Node{}
			if err := c.Get(ctx, client.ObjectKey{Name: n.Name}, node); err != nil {
				return err
			}
			i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
			if i < 0 || node.Status.Conditions[i].Status != corev1.ConditionFalse {
				return fmt.Errorf("%s: want condition Ready to be False: %+v", n.Name, node.Status.Conditions)
			}
			says = node.Status.Conditions[i].Message
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if _, after, ok := strings.Cut(says, "Network plugin returns error: "); ok {
		says, _, _ = strings.Cut(after, ",")
	}
	return fmt.Sprintf("%d nodes: %s; %d pods wait", len(s.nodes), says, earlyPods), nil
}

// webPods are the pods of the Deployment, without those that are ending.
func (s *stage) webPods(ctx context.Context) ([]corev1.Pod, error) {
	list := &corev1.PodList{}
	if err := s.lab.Kube.Client.List(ctx, list, client.InNamespace(inDefault), client.MatchingLabels(webLabels)); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }), nil
}

// installed installs Berth and measures from there, and from when berthd's container
// ran, to the nodes' condition.
func installed(ctx context.Context, s *stage) (string, error) {
	began := time.Now()
	if err := s.lab.InstallBerth(ctx, nil); err != nil {
		return "", err
	}
	took := time.Since(began)
	if err := s.lab.WaitNodesReady(ctx); err != nil {
		return "", err
	}
	ready := time.Since(began)
	var longest time.Duration
	for _, n := range s.nodes {
		at, err := s.readySince(ctx, n.Name)
		if err != nil {
			return "", err
		}
		ran, err := s.daemonSince(ctx, n.Name)
		if err != nil {
			return "", err
		}
		longest = max(longest, at.Sub(ran))
	}
	const promised = 10 * time.Second // times in objects are whole seconds
	if longest > promised {
		return "", fmt.Errorf("a node was Ready only %v after berthd ran: want %v at most", longest, promised)
	}
	how := "the chart applied"
	if s.lab.Kubelets.Helm != "" {
		how = "helm install"
	}
	return fmt.Sprintf("%s in %.1f s; all Ready after %.1f s, at most %.0f s after berthd began", how, took.Seconds(), ready.Seconds(), longest.Seconds()), nil
}

// readySince is since when a Node is Ready.
func (s *stage) readySince(ctx context.Context, name string) (time.Time, error) {
	node := &corev1.Node{}
	if err := s.lab.Kube.Client.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return time.Time{}, err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time, nil
		}
	}
	return time.Time{}, fmt.Errorf("node %s is not Ready", name)
}

// daemonSince is since when berthd's container runs on a node.
func (s *stage) daemonSince(ctx context.Context, node string) (time.Time, error) {
	pods := &corev1.PodList{}
	if err := s.lab.Kube.Client.List(ctx, pods, client.InNamespace(addons.Namespace), client.MatchingLabels{"app.kubernetes.io/name": "berthd"}); err != nil {
		return time.Time{}, err
	}
	for _, p := range pods.Items {
		if p.Spec.NodeName != node || len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Running == nil {
			continue
		}
		return p.Status.ContainerStatuses[0].State.Running.StartedAt.Time, nil
	}
	return time.Time{}, fmt.Errorf("berthd does not run on %s", node)
}

// thirtyPods waits for the pods that were made before, makes it thirty, and looks at
// where they came up and when.
func thirtyPods(ctx context.Context, s *stage) (string, error) {
	if err := s.lab.WaitDeployment(ctx, inDefault, webName); err != nil {
		return "", err
	}
	began := time.Now()
	if err := s.scaleWeb(ctx, webReplicas); err != nil {
		return "", err
	}
	took := time.Since(began)
	pods, err := s.webPods(ctx)
	if err != nil {
		return "", err
	}
	perNode := map[string]int{}
	for _, p := range pods {
		perNode[p.Spec.NodeName]++
		ready, err := s.readySince(ctx, p.Spec.NodeName)
		if err != nil {
			return "", err
		}
		bound := conditionTime(p, corev1.PodScheduled)
		if bound.Before(ready) {
			return "", fmt.Errorf("pod %s was bound to %s at %v, which was Ready at %v only", p.Name, p.Spec.NodeName, bound, ready)
		}
	}
	if len(perNode) != len(s.nodes) {
		return "", fmt.Errorf("the pods run on %v: want some on each of %d nodes", perNode, len(s.nodes))
	}
	if failed, err := s.sandboxFailures(ctx); err != nil || len(failed) > 0 {
		return "", errors.Join(err, fmt.Errorf("the kubelet could not make sandboxes: %v", failed))
	}
	var spread []string
	for _, name := range slices.Sorted(maps.Keys(perNode)) {
		spread = append(spread, fmt.Sprint(perNode[name]))
	}
	return fmt.Sprintf("%s pods; %d more were Ready after %.1f s; no sandbox failed", strings.Join(spread, "+"), webReplicas-earlyPods, took.Seconds()), nil
}

// scaleWeb returns once the Deployment has so many pods, all Ready.
func (s *stage) scaleWeb(ctx context.Context, replicas int) error {
	if _, err := s.lab.Kubectl(ctx, "scale", "deployment/"+webName, fmt.Sprintf("--replicas=%d", replicas)); err != nil {
		return err
	}
	return s.lab.WaitDeployment(ctx, inDefault, webName)
}

func conditionTime(p corev1.Pod, kind corev1.PodConditionType) time.Time {
	for _, c := range p.Status.Conditions {
		if c.Type == kind && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// sandboxFailures are what kubelets said of sandboxes that could not be made.
func (s *stage) sandboxFailures(ctx context.Context) ([]string, error) {
	events := &corev1.EventList{}
	if err := s.lab.Kube.Client.List(ctx, events, client.InNamespace(inDefault)); err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	var said []string
	for _, e := range events.Items {
		if e.Reason == "FailedCreatePodSandBox" {
			said = append(said, e.Message)
		}
	}
	return said, nil
}

// namesAndServices asks by names from a pod, in which the cluster's name service and every
// pod's Service answer, and sees logs and commands pass through the API server.
func namesAndServices(ctx context.Context, s *stage) (string, error) {
	if err := s.lab.WaitDeployment(ctx, addons.Namespace, addons.DNS); err != nil {
		return "", err
	}
	if _, err := s.lab.Kubectl(ctx, "wait", "--for=condition=Ready", "pod/"+clientName, "--timeout=60s"); err != nil {
		return "", err
	}
	const calls = 60
	all := map[string]bool{}
	for i, family := range s.lab.PodFamilies().Families() {
		// The name of each answerer, one a line.
		out, err := s.exec(ctx, fmt.Sprintf("for i in $(seq %d); do curl %s -sf -m 5 http://%s/hostname || exit 1; echo; done", calls, s.curlFamilies()[i], webName))
		if err != nil {
			return "", fmt.Errorf("ask http://%s from a pod by %s: %w", webName, family, err)
		}
		answerers := map[string]bool{}
		for _, name := range strings.Fields(out) {
			answerers[name], all[name] = true, true
		}
		if len(answerers) < webReplicas/2 {
			return "", fmt.Errorf("%d calls by %s were answered by %d pods only", calls, family, len(answerers))
		}
	}
	if _, err := s.exec(ctx, "curl -sfk -m 5 https://kubernetes.default.svc.cluster.local/livez"); err != nil {
		return "", fmt.Errorf("ask the API server by its name from a pod: %w", err)
	}
	logs, err := s.lab.Kubectl(ctx, "logs", "--namespace="+addons.Namespace, "--selector=app.kubernetes.io/name=berthd", "--tail=1")
	if err != nil || strings.TrimSpace(logs) == "" {
		return "", fmt.Errorf("read berthd's log: %w", cmpErr(err, "it is empty"))
	}
	return fmt.Sprintf("%d calls of http://%s by each of %v answered by %d pods; kubernetes.default resolved", calls, webName, s.lab.PodFamilies().Families(), len(all)), nil
}

// curlFamilies are the arguments of curl for each family that pods have.
func (s *stage) curlFamilies() (args []string) {
	for _, f := range s.lab.PodFamilies().Families() {
		args = append(args, [ipfamily.Number]string{"-4", "-6"}[f])
	}
	return args
}

func cmpErr(err error, otherwise string) error {
	if err != nil {
		return err
	}
	return errors.New(otherwise)
}

// exec runs a shell's script in the client.
func (s *stage) exec(ctx context.Context, script string) (string, error) {
	return s.lab.Kubectl(ctx, "exec", clientName, "--", "sh", "-c", script)
}

// nodePorts asks every node from the host outside.
func nodePorts(ctx context.Context, s *stage) (string, error) {
	const each = 5
	answerers, calls := map[string]bool{}, 0
	for _, n := range s.nodes {
		for _, url := range s.nodePortURLs(n.Name) {
			for range each {
				name, err := ns.Get(ctx, s.lab.OutsidePath(), url)
				if err != nil {
					return "", fmt.Errorf("ask %s from outside: %w", n.Name, err)
				}
				answerers[name] = true
				calls++
			}
		}
	}
	return fmt.Sprintf("%d of %d calls by %v answered, by %d pods", calls, calls, s.lab.PodFamilies().Families(), len(answerers)), nil
}

// nodePortURLs are the Service as the host outside sees it, by each family that pods have.
func (s *stage) nodePortURLs(name string) (urls []string) {
	n, err := s.lab.Node(name)
	if err != nil {
		return []string{err.Error()} // no URL; who asks fails and shows it
	}
	for _, a := range s.lab.NodeAddrs(n) {
		urls = append(urls, "http://"+netip.AddrPortFrom(a, webNodePort).String()+"/hostname")
	}
	return urls
}

// showObjects shows Berth's objects as kubectl does.
func showObjects(ctx context.Context, s *stage) (string, error) {
	kinds := "nodenetworks"
	switch s.lab.Mode {
	case lab.PoolMode:
		kinds = "addresspools,addressblocks"
	case lab.PortMode:
		kinds = "vpcs,podnics"
	default:
	}
	table, err := s.lab.Kubectl(ctx, "get", kinds)
	if err != nil {
		return "", err
	}
	if s.quote != nil {
		s.quote(beginning(table, shownLines))
	}
	for _, n := range s.nodes {
		if !strings.Contains(table, n.Name) {
			return "", fmt.Errorf("kubectl get %s does not name %s:\n%s", kinds, n.Name, table)
		}
	}
	return fmt.Sprintf("kubectl get %s", kinds), nil
}

// shownLines are enough of a table to know what it looks like.
const shownLines = 12

// beginning is the first lines of a text, and how many more there are.
func beginning(text string, lines int) string {
	all := strings.SplitAfter(strings.TrimRight(text, "\n"), "\n")
	if len(all) <= lines {
		return text
	}
	return strings.Join(all[:lines], "") + fmt.Sprintf("... and %d more lines\n", len(all)-lines)
}
