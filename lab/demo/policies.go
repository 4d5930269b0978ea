package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/run/node"
)

// policyProofs are the proofs of a lab whose nodes enforce network policies.
var policyProofs = []proof{
	in(inNode, "a pod that a policy selects is closed from its first packet", policyFirstPacket),
	in(inNode, "a new client's first connection gets through to a server that allows it", policyNewClients),
	in(inNode, "a policy that changes ends the connections it forbids, and no other", policyEndsConnections),
	in(inNode, "berthd and the operator are killed: policies stay in force", policySurvivesKills),
	in(inNode, "other software flushes nftables: policies are restored", policyRestored),
	in(inNode, "the last policy is deleted: every pod is reached again", policyDeleted),
	in(inNode, "kernel, records, introspection and EC2 agree", agreement),
}

// ofPolicies tells whether a lab is for the policies demo.
func ofPolicies(o lab.Options) bool { return o.Mode == lab.NodeMode && o.NetworkPolicies }

// The pods and the policy of the policies demo. Pods have the label app with their name's stem.
const (
	policyNamespace = "shop"
	policyName      = "web"
	policyServer    = "web"
	policyClient    = "client"
	policyOther     = "other"
	appLabel        = "app"
)

// refusedWithin is how long a connection is tried that should not get through.
const refusedWithin = 1500 * time.Millisecond

// policyLab turns the options of a lab into those for the policies demo.
func policyLab(o lab.Options) lab.Options {
	o.NetworkPolicies, o.OperatorCount, o.RestartOperators = true, 2, true
	o.OperatorArgs = slices.Concat(quickLeases, o.OperatorArgs)
	return o
}

// allowing returns the policy of the servers: it allows clients with these values of the label app.
func allowing(apps ...string) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: policyNamespace, Name: policyName},
		Spec:       networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{appLabel: policyServer}}},
	}
	for _, app := range apps {
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{
			From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{appLabel: app}}}},
			Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(echo.Port))}},
		})
	}
	return p
}

// policyStage is the lab of the policies demo.
type policyStage struct {
	lab   *lab.Lab
	nodes []*node.Node
}

// setPolicy changes the policy of the servers.
func (s *policyStage) setPolicy(ctx context.Context, apps ...string) {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: policyNamespace, Name: policyName}}
	check(s.lab.Kube.Client.Get(ctx, client.ObjectKeyFromObject(p), p))
	p.Spec = allowing(apps...).Spec
	check(s.lab.Kube.Client.Update(ctx, p))
}

// addApp adds a pod with the label app. It has a port in a lab with those; where ports are branches, servers have one.
func (s *policyStage) addApp(ctx context.Context, n *node.Node, app, name string) *node.Pod {
	o := node.PodOptions{Namespace: policyNamespace, Labels: map[string]string{appLabel: app}}
	if s.lab.Mode == lab.PortMode || ofBranches(s.lab.Options) && app == policyServer {
		vpc := s.lab.VPCs[0]
		o.Annotations = map[string]string{v1alpha1.AnnotationVPC: vpc.Name, v1alpha1.AnnotationNICs: fmt.Sprintf("[{name: eth0, securityGroups: [%s]}]", vpc.Open)}
	}
	return must(n.AddPod(ctx, name, o))
}

// appPod returns a pod of the demo.
func (s *policyStage) appPod(name string) *node.Pod {
	for _, n := range s.nodes {
		if p, err := n.Pod(name); err == nil {
			return p
		}
	}
	fail("there is no pod %s", name)
	return nil
}

// reaches checks that a pod reaches all addresses of another.
func reaches(ctx context.Context, from, to *node.Pod) {
	for _, a := range to.Addrs {
		one, cancel := context.WithTimeout(ctx, answerWithin)
		_, err := from.Ask(one, "tcp", a, "hello")
		cancel()
		checkf(err, "pod %s does not reach %s at %s", from.Name, to.Name, a)
	}
}

// isRefused checks that a pod reaches none of another's addresses.
func isRefused(ctx context.Context, from, to *node.Pod) {
	for _, a := range to.Addrs {
		one, cancel := context.WithTimeout(ctx, refusedWithin)
		_, err := from.Ask(one, "tcp", a, "hello")
		cancel()
		if err == nil {
			fail("pod %s reaches %s at %s, which its policy forbids", from.Name, to.Name, a)
		}
	}
}

func policyFirstPacket(ctx context.Context, s *stage) string {
	check(s.lab.Kube.CreateNamespace(ctx, policyNamespace, nil))
	check(s.lab.Kube.Client.Create(ctx, allowing(policyClient)))
	client, other := s.policies.addApp(ctx, s.nodes[0], policyClient, policyClient), s.policies.addApp(ctx, s.nodes[0], policyOther, policyOther)
	took := time.Now()
	web := s.policies.addApp(ctx, s.nodes[1], policyServer, policyServer)
	added := since(took)
	isRefused(ctx, other, web) // the first packets that it receives
	reaches(ctx, client, web)
	reaches(ctx, web, other)        // nothing isolates its own connections
	if s.lab.Mode != lab.PortMode { // nodes are in no VPC
		for _, a := range web.Addrs {
			_, err := echo.Ask(ctx, s.nodes[1].Netns, "tcp", port(a), netip.Addr{}, "a probe")
			checkf(err, "pod %s is not reached by its own node at %s", web.Name, a)
		}
	}
	return fmt.Sprintf("ADD %s; by %v", added, s.lab.PodFamilies().Families())
}

// newClients is how many clients connect at once as soon as they exist.
const newClients = 8

func policyNewClients(ctx context.Context, s *stage) string {
	web := s.policies.appPod(policyServer)
	var slowest time.Duration
	for i := range newClients {
		p := s.policies.addApp(ctx, s.nodes[i%len(s.nodes)], policyClient, fmt.Sprintf("%s-%d", policyClient, i))
		began := time.Now()
		reaches(ctx, p, web)
		slowest = max(slowest, time.Since(began))
		check(s.nodes[i%len(s.nodes)].DelPod(ctx, p.Name))
	}
	return fmt.Sprintf("%d new pods; the slowest connected by both families within %s", newClients, ms(slowest))
}

func policyEndsConnections(ctx context.Context, s *stage) string {
	web, client := s.policies.appPod(policyServer), s.policies.appPod(policyClient)
	s.policies.setPolicy(ctx, policyClient, policyOther)
	other := s.policies.appPod(policyOther)
	await(ctx, "pod other is allowed", func() { reaches(ctx, other, web) })
	stays, ends := must(echo.Connect(ctx, client.Netns(), "tcp", port(web.Addr()), netip.Addr{})), must(echo.Connect(ctx, other.Netns(), "tcp", port(web.Addr()), netip.Addr{}))
	defer stays.Close()
	defer ends.Close()
	for _, c := range []*echo.Conn{stays, ends} {
		_, err := c.Ask(ctx, "before")
		check(err)
	}
	began := time.Now()
	s.policies.setPolicy(ctx, policyClient)
	await(ctx, "the connection of pod other ends", func() {
		if _, err := ends.Once("after", refusedWithin); err == nil {
			fail("it goes on")
		}
	})
	took := time.Since(began)
	_, err := stays.Ask(ctx, "after")
	checkf(err, "the connection of pod client, which the policy allows")
	isRefused(ctx, other, web)
	return fmt.Sprintf("ended %s after the change", ms(took))
}

func policySurvivesKills(ctx context.Context, s *stage) string {
	web, client, other := s.policies.appPod(policyServer), s.policies.appPod(policyClient), s.policies.appPod(policyOther)
	var errs []error
	for _, o := range s.lab.Operators() {
		errs = append(errs, o.Kill())
	}
	n := s.nodes[1]
	check(errors.Join(append(errs, n.Kill(), n.Start(), n.WaitReady(ctx))...))
	isRefused(ctx, other, web)
	reaches(ctx, client, web)
	for _, o := range s.lab.Operators() {
		check(o.Start())
	}
	began := time.Now()
	p := s.policies.addApp(ctx, n, policyServer, "web-2")
	took := time.Since(began)
	isRefused(ctx, other, p)
	reaches(ctx, client, p)
	check(n.DelPod(ctx, p.Name))
	return fmt.Sprintf("the next ADD, with both operators just started, took %s", ms(took))
}

func policyRestored(ctx context.Context, s *stage) string {
	web, client, other := s.policies.appPod(policyServer), s.policies.appPod(policyClient), s.policies.appPod(policyOther)
	n := s.nodes[1]
	check(ns.Do(n.Netns, func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		conn.FlushRuleset()
		return conn.Flush()
	}))
	began := time.Now()
	await(ctx, "the policy is in force again", func() { isRefused(ctx, other, web) })
	reaches(ctx, client, web)
	return fmt.Sprintf("restored within %s", ms(time.Since(began)))
}

// NetworkPolicies adds pods with ports under a policy.
func NetworkPolicies(ctx context.Context, l *lab.Lab) (figures string, err error) {
	err = attempt(func() { figures = policyLife(ctx, newStage(l, size{}, nil, nil)) })
	return figures, err
}

// policyLife is what the policies demo has, with pods whose packets may pass no chain of their node. It leaves no pods.
func policyLife(ctx context.Context, s *stage) string {
	var list []string
	for _, p := range []func(context.Context, *stage) string{policyFirstPacket, policyEndsConnections, policySurvivesKills, policyDeleted} {
		list = append(list, p(ctx, s))
	}
	for _, name := range []string{policyServer, policyClient, policyOther} {
		s.ports.remove(ctx, s.policies.appPod(name))
	}
	return strings.Join(list, "; ")
}

func policyDeleted(ctx context.Context, s *stage) string {
	web, other := s.policies.appPod(policyServer), s.policies.appPod(policyOther)
	began := time.Now()
	check(s.lab.Kube.Client.Delete(ctx, allowing()))
	await(ctx, "pod other reaches the server", func() { reaches(ctx, other, web) })
	return fmt.Sprintf("after %s", ms(time.Since(began)))
}

// policyPods are a server and two callers in a cluster of kubelets. All that a caller does is to call, so its first call is the
// first packet of its pod. It prints the HTTP status of each call, or 000.
const policyPods = `
{{range .Pods}}
---
apiVersion: v1
kind: Pod
metadata: {name: {{.Name}}, namespace: {{$.Namespace}}, labels: {app: {{.Name}}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: {{.Name}}
      image: {{$.Image}}
      imagePullPolicy: Never
      {{- if .Calls}}
      command: [sh, -c, "while :; do for url in {{.Calls}}; do curl -s -o /dev/null -m {{.Patience}} -w '%{http_code}\\n' $url; done; sleep 0.1; done"]
      {{- else}}
      args: [netexec, --http-port={{$.Port}}]
      readinessProbe: {httpGet: {path: /healthz, port: {{$.Port}}}, periodSeconds: 1}
      {{- end}}
{{end}}`

// policyApp is a pod of policyPods. It calls URLs in turn, each for some seconds at most, or it is the server.
type policyApp struct {
	Name, Calls string
	Patience    int
}

// policyInCluster has pods of kubelets call from their first moment: one calls a server that accepts it, the other one may not call
// anybody.
func policyInCluster(ctx context.Context, st *stage) string {
	s, kube := st.cluster, st.lab.Kube
	run := func(pods ...policyApp) {
		must(s.apply(ctx, policyPods, map[string]any{"Namespace": policyNamespace, "Image": Agnhost, "Port": echo.Port, "Pods": pods}))
	}
	check(kube.CreateNamespace(ctx, policyNamespace, nil))
	defer func() {
		s.kubectl(context.WithoutCancel(ctx), "delete", "namespace", policyNamespace, "--timeout=60s")
	}()
	mute := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: policyNamespace, Name: policyOther},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{appLabel: policyOther}}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		},
	}
	check(errors.Join(kube.Client.Create(ctx, allowing(policyClient)), kube.Client.Create(ctx, mute)))
	run(policyApp{Name: policyServer})
	s.kubectl(ctx, "wait", "--namespace="+policyNamespace, "--for=condition=Ready", "pod/"+policyServer, "--timeout=60s") // its node's probe gets through
	web := &corev1.Pod{}
	check(kube.Client.Get(ctx, client.ObjectKey{Namespace: policyNamespace, Name: policyServer}, web))
	// A first packet may come too early where another node has to accept it, and is sent again after a second.
	run(policyApp{policyClient, urls(*web, echo.Port), 2}, policyApp{policyOther, urls(s.pods(ctx)[0], WebPort), 1})
	each := len(web.Status.PodIPs)
	calls := func(name string) []string {
		all := strings.Fields(s.kubectl(ctx, "logs", "--namespace="+policyNamespace, name))
		if len(all) < 3*each {
			fail("pod %s has called %d times", name, len(all))
		}
		return all
	}
	only := func(name, status string, calls []string) {
		if slices.ContainsFunc(calls, func(got string) bool { return got != status }) {
			fail("calls of pod %s: %v, want %s", name, calls, status)
		}
	}
	const answered, refused = "200", "000"
	var first []string
	for name, status := range map[string]string{policyClient: answered, policyOther: refused} {
		await(ctx, "calls of pod "+name, func() { first = calls(name) })
		only(name, status, first)
	}
	began := time.Now()
	check(kube.Client.Delete(ctx, mute))
	st.policies.setPolicy(ctx)
	for name, status := range map[string]string{policyClient: refused, policyOther: answered} {
		await(ctx, "calls of pod "+name+" after the change", func() {
			all := calls(name)
			only(name, status, all[len(all)-each:])
		})
	}
	return fmt.Sprintf("right from the first call, by %v; after changes within %s", st.lab.PodFamilies().Families(), since(began))
}

// urls are those of a pod's addresses.
func urls(p corev1.Pod, port int) string {
	var list []string
	for _, ip := range p.Status.PodIPs {
		list = append(list, hostnameAt(ip.IP, port))
	}
	return strings.Join(list, " ")
}
