package kubectl

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
	"github.com/berthnet/berth/internal/policy/resolve"
	"github.com/berthnet/berth/test/harness"
)

// enforcer stands for a node that has some pods and policies in force.
type enforcer struct {
	node     string
	resolver *resolve.Resolver
	doc      introspect.NetworkPolicies // what differs from a node that is well
	ready    introspect.Condition       // NetworkPoliciesReady
}

func enforcerOf(node string, pods []*corev1.Pod, policies ...*networkingv1.NetworkPolicy) *enforcer {
	e := &enforcer{node: node, resolver: resolve.New(), doc: introspect.NetworkPolicies{Enabled: true, Connected: true, ConnectedSince: at}}
	e.ready = introspect.Condition{Type: "NetworkPoliciesReady", Status: "True", Reason: "InForce"}
	e.resolver.SetNamespace("default", nil)
	for _, pod := range pods {
		if p, ok := resolve.ReadPod(pod); ok {
			e.resolver.SetPod(p)
		}
	}
	for _, p := range policies {
		e.resolver.SetPolicy(compile.NetworkPolicy(p))
	}
	return e
}

func (e *enforcer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case introspect.NetworkPoliciesPath:
		_ = json.NewEncoder(w).Encode(e.status())
	case introspect.PolicyJudgePath:
		_ = json.NewEncoder(w).Encode(e.judge(r))
	default:
		doc := document(e.node)
		doc.Conditions = append(doc.Conditions, e.ready)
		doc.Allocated[0].Namespace = "default"
		serving(doc).ServeHTTP(w, r)
	}
}

func (e *enforcer) status() introspect.NetworkPolicies {
	doc := e.doc
	doc.Node = e.node
	count := map[policy.Ref]*introspect.NodePolicy{}
	for name := range e.resolver.Pods() {
		p, list, _ := e.resolver.Policies(name)
		if p.Node != e.node {
			continue
		}
		a := introspect.PolicyAttachment{Namespace: p.Namespace, Pod: p.Name, UID: string(p.UID), Addresses: p.Addrs, Known: true, InForce: doc.Failure == "", Since: at.Add(-time.Hour), Ingress: []introspect.AppliedPolicy{}, Egress: []introspect.AppliedPolicy{}}
		for _, of := range list {
			if count[of.Ref] == nil {
				count[of.Ref] = &introspect.NodePolicy{PolicyRef: policyRef(of.Ref), Digest: of.Digest()}
			}
			count[of.Ref].Pods++
			if a.InForce {
				count[of.Ref].InForce++
			}
			if of.Judges(policy.Ingress) {
				a.Ingress = append(a.Ingress, introspect.AppliedPolicy{PolicyRef: policyRef(of.Ref), Tier: of.Tier.String(), Priority: of.Priority, Isolates: of.Isolates[policy.Ingress]})
			}
		}
		doc.Attachments = append(doc.Attachments, a)
	}
	for _, p := range count {
		doc.Policies = append(doc.Policies, *p)
	}
	return doc
}

func (e *enforcer) judge(r *http.Request) introspect.PolicyJudgement {
	number := func(name string) uint16 {
		n, _ := strconv.Atoi(r.FormValue(name))
		return uint16(n)
	}
	j := e.resolver.Judge(policy.Flow{
		Source: netip.MustParseAddr(r.FormValue("source")), Destination: netip.MustParseAddr(r.FormValue("destination")), Protocol: uint8(number("protocol")), Port: number("port"),
	})
	out := introspect.PolicyJudgement{Node: e.node, Enabled: e.doc.Enabled, Egress: introspect.DecisionOf(policy.Egress, j.Egress), Ingress: introspect.DecisionOf(policy.Ingress, j.Ingress), Failure: e.doc.Failure}
	mine := func(d *introspect.PolicyDecision, name *types.NamespacedName) {
		if name == nil {
			return
		}
		if p, _, _ := e.resolver.Policies(*name); p.Node == e.node {
			d.Namespace, d.Pod = name.Namespace, name.Name
		}
	}
	mine(&out.Egress, j.Source)
	mine(&out.Ingress, j.Destination)
	return out
}

// dbClients lets pods with the label app=web reach those with app=db at a port.
func dbClients(port int32) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db-clients"}}
	p.Spec.PodSelector.MatchLabels = map[string]string{"app": "db"}
	p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{
		From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}},
		Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(port))}},
	}}
	return p
}

// policyPod is a pod of a node with a label.
func policyPod(app, node, ip string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: app + "-0", Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}},
	}
}

// withPolicies makes a cluster of two nodes that enforce policies, with a pod each and a policy, and returns the pods.
func withPolicies(t *testing.T) []*corev1.Pod {
	t.Helper()
	harness.KubeClean(t)
	create(t, new(node("node-a", corev1.ConditionTrue)), new(node("node-b", corev1.ConditionTrue)), new(operatorPod("berth-operator-0", true)))
	c := harness.KubeClient(t)
	for _, name := range []string{"node-a", "node-b"} {
		d := berthd(name, "eni", true)
		d.Spec.Containers[0].Env = append(d.Spec.Containers[0].Env, corev1.EnvVar{Name: "BERTH_NETWORK_POLICIES", Value: "true"})
		create(t, &d)
		var n corev1.Node
		harness.OK(t, c.Get(t.Context(), client.ObjectKey{Name: name}, &n))
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2." + strconv.Itoa(int(name[5]))}}
		harness.OK(t, c.Status().Update(t.Context(), &n))
	}
	pods := []*corev1.Pod{policyPod("web", "node-a", "10.0.0.5"), policyPod("db", "node-b", "10.0.1.7"), policyPod("job", "node-a", "10.0.0.6")}
	create(t, pods[0], pods[1], pods[2])
	for _, pod := range pods {
		harness.OK(t, c.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
	}
	p := dbClients(5432)
	harness.OK(t, client.IgnoreAlreadyExists(c.Create(t.Context(), p)))
	t.Cleanup(func() { _ = c.Delete(t.Context(), p) })
	return pods
}

// With the rights of docs/guides/kubectl-berth.md people see which policies there are and where they are not in force.
func TestPolicies(t *testing.T) {
	cfg := person(t)
	pods := withPolicies(t)
	run := func(a, b http.Handler, args ...string) (string, int) {
		t.Helper()
		out, code, err := try(t, Options{Config: cfg, Dial: pipes(map[string]http.Handler{"node-a": a, "node-b": b}), Now: func() time.Time { return at }}, args...)
		if code == ExitTrouble {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
		return out, code
	}
	wants := func(out string, code, wantCode int, texts ...string) {
		t.Helper()
		for _, want := range texts {
			if code != wantCode || !strings.Contains(out, want) || strings.Contains(out, "could not be read") {
				t.Errorf("%d, want %d and %q in\n%s", code, wantCode, want, out)
			}
		}
	}
	a, b := enforcerOf("node-a", pods, dbClients(5432)), enforcerOf("node-b", pods, dbClients(5432))
	out, code := run(a, b, "policies")
	wants(out, code, 0, "NetworkPolicy   default     db-clients   1      1       1          none")
	its, others := introspect.PolicyRef{Kind: "NetworkPolicy", Namespace: "default", Name: "db-clients"}, introspect.PolicyRef{Kind: "NetworkPolicy", Namespace: "default", Name: "other"}
	b.doc.Denied = []introspect.DeniedPackets{
		{Direction: "Ingress", Packets: 99}, {Direction: "Ingress", Policies: []introspect.PolicyRef{others}, Packets: 98}, {Direction: "Ingress", Policies: []introspect.PolicyRef{its}, Packets: 7},
	}
	out, code = run(a, b, "policy", "db-0")
	if strings.Contains(out, "99") || strings.Contains(out, "98") {
		t.Errorf("packets of other policies:\n%s", out)
	}
	wants(out, code, 0, "Ingress     NetworkPolicy default/db-clients   7")
	wants(out, code, 0, "Policies of pod default/db-0 on node-b: in force", "Ingress     NetworkPolicy   0          NetworkPolicy default/db-clients   yes", "10.0.1.7    yes        1h0m")
	out, code = run(a, b, "policy", "web-0")
	wants(out, code, 0, "No policy selects the pod")
	for _, args := range [][]string{{"policies"}, {"policy", "db-0"}, {"trace", "web-0", "db-0"}} {
		for _, form := range []string{"wide", "json", "yaml"} {
			out, code := run(a, b, append(slices.Clone(args), "-o", form)...)
			if code != 0 || form == "json" && !json.Valid([]byte(out)) || strings.Contains(out, "null") {
				t.Errorf("%v -o %s: %d\n%s", args, form, code, out)
			}
		}
	}

	old := enforcerOf("node-b", pods, dbClients(80))
	out, code = run(a, old, "policies")
	wants(out, code, ExitUnwell, "1      1       0          1 problem", "! NetworkPolicy default/db-clients: not in force on node-b: berthd has not received the latest version of the policy yet")
	old.doc.Connected, old.doc.ConnectError, old.doc.ConnectedSince = false, "connection refused", at.Add(-5*time.Minute)
	out, code = run(a, old, "policies")
	wants(out, code, ExitUnwell, "not in force on node-b: berthd is not connected to berth-operator, and has not received the latest version of the policy", "! node-b: berthd has not been connected to berth-operator for 5m;", "connection refused")
	out, code = run(a, old, "policy", "db-0")
	wants(out, code, ExitUnwell, "! berthd of node node-b is not connected to berth-operator: connection refused")
	failing := enforcerOf("node-b", pods, dbClients(5432))
	failing.doc.Failure = "ENOMEM"
	out, code = run(a, failing, "policies")
	wants(out, code, ExitUnwell, "not in force on node-b: the kernel could not be changed: ENOMEM")
	out, code = run(a, failing, "policy", "db-0")
	wants(out, code, ExitUnwell, "! the policies are not in force on node node-b: ENOMEM")
	out, code = run(a, enforcerOf("node-b", nil), "policy", "db-0")
	wants(out, code, ExitUnwell, "berthd does not know it")
	out, code = run(a, enforcerOf("node-b", pods), "policy", "db-0")
	wants(out, code, ExitUnwell, "node node-b has other policies for the pod than the API server")
	out, code = run(a, nil, "policies")
	wants(out, code, ExitUnwell, "not in force on node-b: berthd could not be queried: connection refused")
	off := enforcerOf("node-b", pods, dbClients(5432))
	off.doc.Enabled = false
	out, code = run(a, off, "policies")
	wants(out, code, ExitUnwell, "not in force on node-b: berthd does not enforce network policies")
	gone := dbClients(80)
	gone.Name = "gone"
	out, code = run(a, enforcerOf("node-b", pods, dbClients(5432), gone), "policies")
	wants(out, code, ExitUnwell, "! NetworkPolicy default/gone: it was deleted and is still in force on node-b")

	// So does the status, and the diagnosis of a pod.
	out, code = run(a, b, "status")
	wants(out, code, 0, "Berth in node mode: healthy")
	failing.ready = introspect.Condition{Type: "NetworkPoliciesReady", Status: "False", Reason: "NotInForce", Message: "ENOMEM"}
	out, code = run(a, failing, "status")
	wants(out, code, ExitUnwell, "! node-b: NetworkPoliciesReady is False (NotInForce): ENOMEM")
	out, code = run(a, b, "pod", "web-0")
	wants(out, code, 0, "Pod default/web-0 on node-a: Works")
	a.doc.Failure = "ENOMEM"
	out, code = run(a, b, "pod", "web-0")
	wants(out, code, ExitUnwell, "NoPolicies", "The pod's network policies are not in force on node node-a: ENOMEM")
	a.doc.Failure = ""

	// What makes no sense in an object is shown.
	c := harness.KubeClient(t)
	odd := dbClients(0)
	odd.Name, odd.Spec.Ingress[0].Ports[0].Port = "odd", new(intstr.FromString("nobodys"))
	harness.OK(t, client.IgnoreAlreadyExists(c.Create(t.Context(), odd)))
	out, code = run(a, b, "status")
	wants(out, code, ExitUnwell, `! NetworkPolicy default/odd: no container of the pods concerned has a port named "nobodys"`)
	out, code = run(a, enforcerOf("node-b", pods, dbClients(5432), odd), "policies")
	harness.OK(t, c.Delete(t.Context(), odd))
	wants(out, code, ExitUnwell, `! NetworkPolicy default/odd: no container of the pods concerned has a port named "nobodys"`)

	// Nodes without the setting are not asked.
	harness.OK(t, c.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "berthd-node-a"}}, client.GracePeriodSeconds(0)))
	harness.OK(t, c.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "berthd-node-b"}}, client.GracePeriodSeconds(0)))
	create(t, new(berthd("node-a", "eni", true)), new(berthd("node-b", "eni", true)))
	out, code = run(nil, nil, "policies")
	wants(out, code, ExitUnwell, notEnforced, "not in force on node-b: berthd does not enforce network policies")
	out, code = run(nil, nil, "policy", "db-0")
	wants(out, code, ExitUnwell, "berthd of node node-b does not enforce network policies: set networkPolicies.enabled")
	out, code = run(nil, nil, "trace", "web-0", "db-0")
	wants(out, code, ExitUnwell, "berthd of node node-b does not enforce network policies: set networkPolicies.enabled")
}

// A trace says which rule decides, and whether both nodes say the same.
func TestTrace(t *testing.T) {
	cfg := person(t)
	pods := withPolicies(t)
	a, b := enforcerOf("node-a", pods, dbClients(5432)), enforcerOf("node-b", pods, dbClients(5432))
	run := func(args ...string) (Trace, string, int) {
		t.Helper()
		o := Options{Config: cfg, Dial: pipes(map[string]http.Handler{"node-a": a, "node-b": b}), Now: func() time.Time { return at }}
		out, code, err := try(t, o, append([]string{"trace"}, args...)...)
		if code == ExitTrouble {
			t.Errorf("%v: %v", args, err)
		}
		var tr Trace
		text, _, _ := try(t, o, append([]string{"trace", "-o", "json"}, args...)...)
		harness.OK(t, json.Unmarshal([]byte(text), &tr))
		return tr, out, code
	}
	for _, tt := range []struct {
		args    string
		allowed bool
		wants   []string
	}{
		{"web-0 db-0 --port 5432", true, []string{"default/web-0 on node-a to default/db-0 on node-b, TCP port 5432: allowed", "NetworkPolicy default/db-clients, spec.ingress[0]", "no policy decides"}},
		{"default/web-0 default/db-0 --port 80", false, []string{"TCP port 80: denied", "no rule of NetworkPolicy default/db-clients accepts it"}},
		{"web-0 db-0 --port 5432 --protocol udp", false, []string{"UDP port 5432: denied"}},
		{"web-0 db-0 --protocol icmp", false, []string{"ICMP: denied"}},
		{"job-0 db-0 --port 5432", false, []string{"no rule of NetworkPolicy default/db-clients accepts it"}},
		{"db-0 web-0", true, []string{"no policy decides"}},
		{"10.0.0.5 10.0.1.7 --port 5432", true, []string{"default/web-0 on node-a to default/db-0 on node-b"}},
		{"203.0.113.9 db-0 --port 5432", false, []string{"203.0.113.9 to default/db-0 on node-b", "not a pod with policies"}},
		{"192.0.2.97 db-0 --port 5432", false, []string{"192.0.2.97 of node node-a to"}},
		{"192.0.2.98 db-0 --port 5432", true, []string{"a node always reaches its own pods"}},
		{"web-0 203.0.113.9 --port 443", true, nil},
	} {
		tr, out, code := run(strings.Fields(tt.args)...)
		if tr.Allowed != tt.allowed || code != 0 || !tr.Agree || len(tr.Flows) != 1 {
			t.Errorf("%s: %d, %+v", tt.args, code, tr)
		}
		for _, want := range tt.wants {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", tt.args, want, out)
			}
		}
	}

	b = enforcerOf("node-b", pods)
	if tr, out, code := run("job-0", "db-0", "--port", "5432"); code != ExitUnwell || tr.Agree || tr.Allowed ||
		!strings.Contains(out, "by the API server's objects it is denied (no rule of NetworkPolicy default/db-clients accepts it), on node node-b it is allowed (no policy decides)") {
		t.Errorf("a node without the policy: %d\n%s", code, out)
	}
	if _, out, code := run("web-0", "db-0", "--port", "5432"); code != ExitUnwell || !strings.Contains(out, "node node-b decides by another rule: no policy decides") {
		t.Errorf("a node with another rule: %d\n%s", code, out)
	}
	b = enforcerOf("node-b", pods, dbClients(5432))
	b.doc.Failure = "ENOMEM"
	if _, out, code := run("web-0", "db-0", "--port", "5432"); code != ExitUnwell || !strings.Contains(out, "the kernel of node node-b may judge otherwise: ENOMEM") {
		t.Errorf("a node whose kernel lags: %d\n%s", code, out)
	}
	b = enforcerOf("node-b", nil)
	if _, out, code := run("web-0", "db-0"); code != ExitUnwell || !strings.Contains(out, "berthd does not know it") {
		t.Errorf("a node that does not know the pod: %d\n%s", code, out)
	}
	for args, want := range map[string]string{
		"trace web-0": "accepts 2 arg", "trace web-0 none": "there is no pod default/none", "trace web-0 a/b/c": "expected NAMESPACE/POD", "trace web-0 db-0 --protocol x": "--protocol is",
		"trace web-0 db-0 --protocol icmp --port 1": "icmp has no ports", "trace web-0 db-0 --port 70000": "--port", "trace web-0 fd00::1": "no address of the same family",
	} {
		if _, code, err := try(t, Options{Config: cfg}, strings.Fields(args)...); code != ExitTrouble || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %d, %v, want %s", args, code, err, want)
		}
	}
	for line, want := range map[string]string{"trace w": "web-0", "trace web-0 default/d": "default/db-0", "policy d": "db-0", "trace web-0 db-0 --protocol s": "sctp"} {
		out, _, _ := try(t, Options{Config: cfg}, append([]string{"__completeNoDesc"}, strings.Split(line, " ")...)...)
		if got := strings.Join(strings.Fields(strings.Split(out, "\n:")[0]), " "); !strings.Contains(got, want) {
			t.Errorf("completion of %q: %q, want %q", line, got, want)
		}
	}
}
