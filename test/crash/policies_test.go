package crash

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
	"github.com/berthnet/berth/internal/policy/policytest"
	"github.com/berthnet/berth/internal/policy/resolve"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/oracle"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/test/harness"
)

// policyMode is node mode with network policies: random ones of both kinds, that users change all the time together with labels of
// pods and namespaces, while pods connect to each other. In one namespace nobody changes anything.
var policyMode = mode{
	name: lab.NodeMode, soak: "node+policies", pods: 4,
	options: lab.Options{NetworkPolicies: true, InstanceType: "t3.small", DaemonArgs: slices.Concat(nodeMode.options.DaemonArgs, []string{
		"--network-policy-wait=60s",
	}), OperatorArgs: []string{"--lease-duration=10s", "--renew-deadline=8s"}},
	daemon:   named("networkpolicy.", "daemon.policies.", "daemon.add."),
	operator: named("operator.policies."),
	kills:    named("networkpolicy.", "daemon.policies.", "operator.policies."),
	ops:      36,
	every:    4,
	troubles: []trouble{killAPIServer, haltOperator, killDaemon, killDaemon, killDaemon, killOperator, killOperator},
	empty:    backTo(1, -1),
}

// lag is how old the state of the API may be by which a connection is judged, while no program is missing.
const lag = time.Second

// attempt is how long a connection is tried: TCP and the probes by UDP try again meanwhile.
const attempt = 1300 * time.Millisecond

// policyUsers change policies and labels, connect from pod to pod, and judge what gets through by all states of the last
// second. While programs are missing, and until all nodes have caught up, they judge by all states since before. They are nil
// where there are no network policies.
type policyUsers struct {
	*round
	lab  *lab.Lab
	kube client.Client

	churn sync.RWMutex // held for reading while a user or a pod changes anything
	write sync.Mutex   // held while a user changes anything

	mu       sync.Mutex // guards below
	states   []clusterState
	pods     map[types.NamespacedName]*judgedPod
	lost     map[netip.Addr]time.Time // when a pod that had the address was deleted
	troubles []interval
	trouble  time.Time    // since when programs may be missing; zero: all work
	making   int          // troubles that somebody makes now
	skipped  int          // connections that could be either
	tested   map[bool]int // connections that were refused (false) and let through, by all states that count
	hard     int          // of these, while programs were missing
}

type interval struct{ from, to time.Time }

// clusterState is a state of the API. It may count from when its change was begun, and its predecessor counts until its change
// was acknowledged.
type clusterState struct {
	interval
	namespaces, labels map[types.NamespacedName]map[string]string // labels of namespaces, and of pods
	policies           map[types.NamespacedName]compile.Compiled  // ClusterNetworkPolicies without a namespace
}

// judgedPod is a pod whose ADD has returned.
type judgedPod struct {
	*node.Pod
	name types.NamespacedName
	up   time.Time
	down time.Time // when its deletion began; zero: it runs
}

// steady is a namespace whose policies stay as they are, so that kills, too, must change nothing for its pods.
const steady = "steady"

// steadyPolicies let pods with the label app=x be reached by those with app=y, at the port that the former call http.
func steadyPolicies() []*networkingv1.NetworkPolicy {
	of := func(name, app string) *networkingv1.NetworkPolicy {
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: steady, Name: name}}
		p.Spec.PodSelector.MatchLabels = map[string]string{"app": app}
		return p
	}
	server, client := of("server", "x"), of("client", "y")
	server.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{
		From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &client.Spec.PodSelector}},
		Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromString("http"))}},
	}}
	client.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	client.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}}}}
	return []*networkingv1.NetworkPolicy{server, client}
}

// clusterPolicyKind has the definition of ClusterNetworkPolicy, from the module whose types Berth uses.
type clusterPolicyKind struct{}

var clusterPolicyFile = sync.OnceValues(func() ([]byte, error) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/network-policy-api").Output()
	if err != nil {
		return nil, fmt.Errorf("find the module of ClusterNetworkPolicy: %w", err)
	}
	return os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "config/crd/experimental/policy.networking.k8s.io_clusternetworkpolicies.yaml"))
})

// Open implements fs.FS.
func (clusterPolicyKind) Open(name string) (fs.File, error) {
	data, err := clusterPolicyFile()
	if err != nil {
		return nil, err
	}
	return fstest.MapFS{"clusternetworkpolicies.yaml": {Data: data}}.Open(name)
}

func newPolicyUsers(ctx context.Context, r *round, l *lab.Lab) (*policyUsers, error) {
	if !l.NetworkPolicies {
		return nil, nil
	}
	u := &policyUsers{
		round: r, lab: l, kube: l.Kube.Client, pods: map[types.NamespacedName]*judgedPod{}, lost: map[netip.Addr]time.Time{}, tested: map[bool]int{},
		states: []clusterState{{
			namespaces: map[types.NamespacedName]map[string]string{}, labels: map[types.NamespacedName]map[string]string{}, policies: map[types.NamespacedName]compile.Compiled{},
		}},
	}
	for _, name := range append([]string{steady}, policytest.Namespaces...) {
		if err := l.Kube.CreateNamespace(ctx, name, nil); err != nil {
			return nil, err
		}
	}
	for _, p := range steadyPolicies() {
		at := client.ObjectKeyFromObject(p)
		if err := u.change(ctx, func(s *clusterState) { s.policies[at] = compile.NetworkPolicy(p) }, func() error { return u.put(ctx, p) }); err != nil {
			return nil, err
		}
	}
	return u, nil
}

// change makes a change of the API. An attempt may be lost, and is repeated.
func (u *policyUsers) change(ctx context.Context, note func(s *clusterState), do func() error) error {
	u.write.Lock()
	defer u.write.Unlock()
	u.mu.Lock()
	s := u.states[len(u.states)-1]
	s.interval, s.namespaces, s.labels, s.policies = interval{from: time.Now()}, maps.Clone(s.namespaces), maps.Clone(s.labels), maps.Clone(s.policies)
	note(&s)
	u.states = append(u.states, s)
	if old := len(u.states) - keptStates; old > 0 {
		u.states = slices.Clone(u.states[old:])
	}
	u.mu.Unlock()
	err := poll.Retry(ctx, do, kube.Unavailable)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.states[len(u.states)-2].to = time.Now()
	return err
}

// keptStates is how many states are kept: more than there are in the longest trouble.
const keptStates = 5000

// step makes a random change.
func (u *policyUsers) step(ctx context.Context, dice *rand.Rand) {
	u.churn.RLock()
	defer u.churn.RUnlock()
	draw := int(dice.Uint32())
	at := types.NamespacedName{Namespace: one(dice, policytest.Namespaces...), Name: one(dice, policytest.Pods...)}
	var what string
	var err error
	switch k := dice.IntN(12); {
	case k < 2:
		at.Namespace = ""
		p := rapid.Custom(func(t *rapid.T) *networkpolicy.ClusterNetworkPolicy { return drawClusterPolicy(t, at.Name) }).Example(draw)
		what, err = "write a ClusterNetworkPolicy", u.change(ctx, func(s *clusterState) { s.policies[at] = compile.ClusterNetworkPolicy(p) }, func() error { return u.putCluster(ctx, p) })
	case k < 4:
		at.Namespace = ""
		what, err = "delete a ClusterNetworkPolicy", u.change(ctx, func(s *clusterState) { delete(s.policies, at) }, func() error {
			return client.IgnoreNotFound(u.kube.Delete(ctx, clusterPolicy(at.Name)))
		})
	case k < 5:
		what, err = "delete a policy", u.change(ctx, func(s *clusterState) { delete(s.policies, at) }, func() error {
			return client.IgnoreNotFound(u.kube.Delete(ctx, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: at.Namespace, Name: at.Name}}))
		})
	case k < 8:
		p := rapid.Custom(func(t *rapid.T) *networkingv1.NetworkPolicy {
			return onEchoPorts(policytest.Policy(t, at.Namespace, at.Name))
		}).Example(draw)
		what, err = "write a policy", u.change(ctx, func(s *clusterState) { s.policies[at] = compile.NetworkPolicy(p) }, func() error { return u.put(ctx, p) })
	case k < 10:
		pod := u.somePod(dice, func(p *judgedPod) bool { return p.Namespace != steady })
		if pod == nil {
			return
		}
		labels := rapid.Custom(policytest.Labels).Example(draw)
		what, err = "label a pod", u.change(ctx, func(s *clusterState) { s.labels[pod.name] = labels }, func() error {
			return u.label(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.name.Namespace, Name: pod.name.Name}}, labels)
		})
	default:
		labels := rapid.Custom(policytest.Labels).Example(draw)
		what, err = "label a namespace", u.change(ctx, func(s *clusterState) { s.namespaces[types.NamespacedName{Name: at.Namespace}] = labels }, func() error {
			return u.label(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: at.Namespace}}, labels)
		})
	}
	if u.ok(what, err); err == nil {
		u.tally.count(policyEdit, 1)
	}
}

// toEcho is the distance from a drawn port to one of pods.
const toEcho = echo.Port - 80

// namedPorts draws names for ports of a pod: that at which it answers, and its neighbour.
func namedPorts(t *rapid.T) (list []node.NamedPort) {
	for _, p := range policytest.Pod(t, policytest.Namespaces[0], policytest.Pods[0]).Spec.Containers[0].Ports {
		if p.Protocol != corev1.ProtocolSCTP {
			list = append(list, node.NamedPort{Name: p.Name, Protocol: string(p.Protocol), Port: uint16(p.ContainerPort + toEcho)})
		}
	}
	return list
}

// drawClusterPolicy draws a ClusterNetworkPolicy for ports of pods, now and then by their names, and for nodes.
func drawClusterPolicy(t *rapid.T, name string) *networkpolicy.ClusterNetworkPolicy {
	tier, actions := networkpolicy.AdminTier, []networkpolicy.ClusterNetworkPolicyRuleAction{
		networkpolicy.ClusterNetworkPolicyRuleActionAccept, networkpolicy.ClusterNetworkPolicyRuleActionDeny, networkpolicy.ClusterNetworkPolicyRuleActionPass,
	}
	if rapid.Bool().Draw(t, "baseline") {
		tier, actions = networkpolicy.BaselineTier, actions[:2]
	}
	p := policytest.ClusterPolicy(t, name, tier, actions...)
	move := func(protocols []networkpolicy.ClusterNetworkPolicyProtocol, mayName bool) {
		for i := range protocols {
			to := &protocols[i]
			switch {
			case mayName && rapid.IntRange(0, 2).Draw(t, "named") == 0:
				*to = networkpolicy.ClusterNetworkPolicyProtocol{DestinationNamedPort: rapid.SampledFrom([]string{"http", "dns"}).Draw(t, "name")}
			case to.TCP != nil:
				moveToEcho(to.TCP.DestinationPort)
			case to.UDP != nil:
				moveToEcho(to.UDP.DestinationPort)
			}
		}
	}
	for _, r := range p.Spec.Ingress {
		move(r.Protocols, true)
	}
	for i, r := range p.Spec.Egress {
		if i > 0 {
			r.To[0] = networkpolicy.ClusterNetworkPolicyEgressPeer{Nodes: policytest.Selector(t)}
		}
		move(r.Protocols, !slices.ContainsFunc(r.To, func(p networkpolicy.ClusterNetworkPolicyEgressPeer) bool { return p.Namespaces == nil && p.Pods == nil }))
	}
	return p
}

func moveToEcho(p *networkpolicy.Port) {
	if p.Range != nil {
		p.Range.Start, p.Range.End = p.Range.Start+toEcho, p.Range.End+toEcho
		return
	}
	p.Number += toEcho
}

// clusterPolicy returns an object of a ClusterNetworkPolicy without content.
func clusterPolicy(name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(oracle.ClusterNetworkPolicy)
	o.SetName(name)
	return o
}

func (u *policyUsers) putCluster(ctx context.Context, p *networkpolicy.ClusterNetworkPolicy) error {
	content, err := k8sruntime.DefaultUnstructuredConverter.ToUnstructured(p)
	if err != nil {
		return err
	}
	have := clusterPolicy(p.Name)
	err = u.kube.Get(ctx, client.ObjectKey{Name: p.Name}, have)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	have.Object["spec"] = content["spec"]
	if err != nil {
		return u.kube.Create(ctx, have)
	}
	return u.kube.Update(ctx, have)
}

// onEchoPorts moves the ports of a drawn policy to those of pods.
func onEchoPorts(p *networkingv1.NetworkPolicy) *networkingv1.NetworkPolicy {
	move := func(ports []networkingv1.NetworkPolicyPort) {
		for i := range ports {
			if n := ports[i].Port; n != nil && n.StrVal == "" {
				n.IntVal += toEcho
			}
			if n := ports[i].EndPort; n != nil {
				*n += toEcho
			}
		}
	}
	for _, r := range p.Spec.Ingress {
		move(r.Ports)
	}
	for _, r := range p.Spec.Egress {
		move(r.Ports)
	}
	return p
}

func (u *policyUsers) put(ctx context.Context, p *networkingv1.NetworkPolicy) error {
	have := &networkingv1.NetworkPolicy{}
	if err := u.kube.Get(ctx, client.ObjectKeyFromObject(p), have); client.IgnoreNotFound(err) != nil {
		return err
	} else if err != nil {
		return u.kube.Create(ctx, p.DeepCopy())
	}
	have.Spec = p.Spec
	return u.kube.Update(ctx, have)
}

// label replaces the labels that policies select by.
func (u *policyUsers) label(ctx context.Context, o client.Object, labels map[string]string) error {
	var of []string
	for _, key := range policytest.LabelKeys {
		value := "null"
		if v := labels[key]; v != "" {
			value = `"` + v + `"`
		}
		of = append(of, fmt.Sprintf("%q:%s", key, value))
	}
	patch := `{"metadata":{"labels":{` + strings.Join(of, ",") + `}}}`
	return client.IgnoreNotFound(u.kube.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// drawPod draws a pod.
func drawPod(dice *rand.Rand) node.PodOptions {
	return rapid.Custom(func(t *rapid.T) node.PodOptions {
		namespaces := append([]string{steady}, policytest.Namespaces...)
		return node.PodOptions{Namespace: rapid.SampledFrom(namespaces).Draw(t, "namespace"), Labels: policytest.Labels(t), Named: namedPorts(t)}
	}).Example(int(dice.Uint32()))
}

// add makes a pod.
func (u *policyUsers) add(ctx context.Context, owners *addressOwners, n *node.Node, name string, o node.PodOptions) error {
	u.churn.RLock()
	defer u.churn.RUnlock()
	at := types.NamespacedName{Namespace: o.Namespace, Name: name + "-" + n.Name}
	if err := u.change(ctx, func(s *clusterState) { s.labels[at] = o.Labels }, func() error { return nil }); err != nil {
		return err
	}
	if err := owners.add(ctx, n, name, shape{options: o}); err != nil {
		return err
	}
	return u.started(n, name)
}

// started notes that a pod runs.
func (u *policyUsers) started(n *node.Node, name string) error {
	up := time.Now()
	p, err := n.Pod(name)
	if err != nil {
		return err
	}
	at := types.NamespacedName{Namespace: p.Namespace, Name: p.ObjectName}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.pods[at] = &judgedPod{Pod: p, name: at, up: up}
	return nil
}

// restart replaces the sandbox of a pod.
func (u *policyUsers) restart(ctx context.Context, owners *addressOwners, n *node.Node, name string) error {
	u.churn.RLock()
	defer u.churn.RUnlock()
	p, err := u.ends(n, name)
	if err != nil {
		return err
	}
	err = owners.restart(ctx, n, name)
	u.gone(p)
	if err != nil {
		return err
	}
	u.tally.count(podRestart, 1)
	return u.started(n, name)
}

func (u *policyUsers) del(ctx context.Context, owners *addressOwners, n *node.Node, name string) error {
	u.churn.RLock()
	defer u.churn.RUnlock()
	p, err := u.ends(n, name)
	if err != nil {
		return err
	}
	defer u.gone(p)
	return owners.del(ctx, n, name)
}

// ends notes that a pod's addresses are taken from it, and gone that they were.
func (u *policyUsers) ends(n *node.Node, name string) (*node.Pod, error) {
	p, err := n.Pod(name)
	if err != nil {
		return nil, err
	}
	at := types.NamespacedName{Namespace: p.Namespace, Name: p.ObjectName}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.pods[at].down = time.Now()
	delete(u.pods, at)
	return p, nil
}

func (u *policyUsers) gone(p *node.Pod) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, a := range p.Addrs {
		u.lost[a] = time.Now()
	}
}

// somePod returns a random pod, or nil.
func (u *policyUsers) somePod(dice *rand.Rand, like func(p *judgedPod) bool) *judgedPod {
	u.mu.Lock()
	defer u.mu.Unlock()
	var all []*judgedPod
	for _, p := range u.pods {
		if like(p) {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *judgedPod) int { return cmp.Compare(a.name.String(), b.name.String()) })
	if len(all) == 0 {
		return nil
	}
	return all[dice.IntN(len(all))]
}

// allows judges a connection between two pods in a state.
func (s *clusterState) allows(from, to *judgedPod, f policy.Flow) bool {
	r := resolve.New()
	for name, labels := range s.namespaces {
		r.SetNamespace(name.Name, labels)
	}
	for _, p := range []*judgedPod{from, to} {
		if s.namespaces[types.NamespacedName{Name: p.name.Namespace}] == nil {
			r.SetNamespace(p.name.Namespace, nil)
		}
		judged := resolve.Pod{NamespacedName: p.name, UID: types.UID(p.UID), Node: p.Node, Labels: s.labels[p.name], Addrs: p.Addrs}
		for _, port := range p.Named {
			protocol, _ := compile.ProtocolOf(corev1.Protocol(port.Protocol))
			judged.Ports = append(judged.Ports, resolve.NamedPort{Name: port.Name, Protocol: protocol, Number: port.Port})
		}
		r.SetPod(judged)
	}
	for at, p := range s.policies {
		if at.Namespace == "" || at.Namespace == from.name.Namespace || at.Namespace == to.name.Namespace {
			r.SetPolicy(p)
		}
	}
	return r.Judge(f).Allowed()
}

// since returns from when on states may count for a packet that was sent at a moment.
func (u *policyUsers) since(sent time.Time) time.Time {
	from := sent.Add(-lag)
	for _, t := range u.troubles {
		if t.to.After(from) && t.from.Add(-lag).Before(from) {
			from = t.from.Add(-lag)
		}
	}
	if !u.trouble.IsZero() && u.trouble.Add(-lag).Before(from) {
		from = u.trouble.Add(-lag)
	}
	return from
}

// judge compares what became of a connection between two moments with all states that may count: what was is wrong if each
// of them says otherwise.
func (u *policyUsers) judge(what string, from, to *judgedPod, f policy.Flow, sent, end time.Time, passed bool) {
	time.Sleep(3 * tick) //nolint:forbidigo // until a program that died meanwhile is missed: no event says that none did
	u.mu.Lock()
	defer u.mu.Unlock()
	first := u.since(sent)
	for _, p := range []*judgedPod{from, to} {
		gone := !p.down.IsZero() && p.down.Before(end)
		another := slices.ContainsFunc(p.Addrs, func(a netip.Addr) bool { return u.lost[a].After(first) })
		unknown := !passed && first.Before(sent.Add(-lag)) && first.Before(p.up) // nobody could tell others its addresses
		if gone || another || unknown {
			u.skipped++
			return
		}
	}
	agree, count := 0, 0
	for i := range u.states {
		s := &u.states[i]
		if s.from.After(end) || !s.to.IsZero() && s.to.Before(first) {
			continue
		}
		if count++; s.allows(from, to, f) == passed {
			agree++
		}
	}
	switch agree {
	case 0:
	case count:
		if u.tested[passed]++; first.Before(sent.Add(-lag)) {
			u.hard++
		}
		return
	default:
		u.skipped++
		return
	}
	says := map[bool]string{true: "got through, which is forbidden", false: "was refused, which is allowed"}[passed]
	at := func(t time.Time) string { return t.Format("15:04:05.000") }
	go u.violate(policyBreach, fmt.Sprintf("%s of %s (%v, up %s) to %s (%v, up %s), %+v, from %s to %s %s by all %d states since %s\n%s",
		what, from.name, from.Addrs, at(from.up), to.name, to.Addrs, at(to.up), f, at(sent), at(end), says, count, at(first), u.describe(f.Source, f.Destination)))
}

// describe is what the nodes say about a connection now, for people.
func (u *policyUsers) describe(addrs ...netip.Addr) string {
	s := u.states[len(u.states)-1]
	var b strings.Builder
	for name, p := range s.policies {
		fmt.Fprintf(&b, "  policy %s: subject %v, %+v\n", name, p.Subject, p.Policy.Rules)
	}
	for name, labels := range s.namespaces {
		fmt.Fprintf(&b, "  namespace %s: %v\n", name.Name, labels)
	}
	for name, p := range u.pods {
		if slices.ContainsFunc(p.Addrs, func(a netip.Addr) bool { return slices.Contains(addrs, a) }) {
			fmt.Fprintf(&b, "  pod %s: %v\n", name, s.labels[name])
		}
	}
	return b.String()
}

// probe connects from pod to pod until stop is closed.
func (u *policyUsers) probe(ctx context.Context, dice *rand.Rand, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		case <-time.After(20 * time.Millisecond): // the pace of probes, not a wait for anything
		}
		from := u.somePod(dice, func(*judgedPod) bool { return true })
		to := u.somePod(dice, func(p *judgedPod) bool { return from != nil && p != from && sharesFamily(p, from) })
		if to != nil {
			u.connect(ctx, dice, from, to)
		}
	}
}

func sharesFamily(a, b *judgedPod) bool { return len(a.Addrs) > 0 && len(b.Addrs) == len(a.Addrs) }

func (u *policyUsers) connect(ctx context.Context, dice *rand.Rand, from, to *judgedPod) {
	i := dice.IntN(len(to.Addrs))
	f := policy.Flow{Source: from.Addrs[i], Destination: to.Addrs[i], Protocol: unix.IPPROTO_TCP, Port: echo.Port}
	network, stays := "tcp", dice.IntN(4) == 0
	if dice.IntN(2) == 0 {
		network, f.Protocol, stays = "udp", unix.IPPROTO_UDP, false
	}
	one, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	sent := time.Now()
	c, err := echo.Connect(one, from.Inside(), network, netip.AddrPortFrom(f.Destination, f.Port), f.Source)
	if err == nil {
		defer func() { _ = c.Close() }()
		if network == "udp" {
			_, err = c.Ask(one, "probe")
		}
	}
	if ctx.Err() != nil {
		return
	}
	u.judge("a connection", from, to, f, sent, time.Now(), err == nil)
	for began := time.Now(); err == nil && stays && time.Since(began) < 3*time.Second; {
		asked := time.Now()
		if _, err = c.Once("again", attempt); ctx.Err() != nil {
			return
		}
		if err == nil {
			u.judge("a packet of an open connection", from, to, f, asked, time.Now(), true)
		} else { // it may have ended at any time
			u.judge("a packet of an open connection", from, to, f, sent, time.Now(), false)
		}
	}
}

// tick is how soon a program that died is missed.
const tick = 50 * time.Millisecond

// calm is how long all programs must run before nodes are expected to catch up, and caughtUp how long that may take.
const (
	calm     = 1500 * time.Millisecond
	caughtUp = time.Minute
)

// watch notes since when programs are missing, or the machine stalls, and until when nodes have caught up.
func (u *policyUsers) watch(ctx context.Context, stop <-chan struct{}) {
	starts := func() (n int, all bool) {
		all = true
		for _, p := range u.mode.programs(u.lab) {
			n += p.Starts()
			all = all && p.Running()
		}
		return n, all
	}
	last, quiet := time.Now(), time.Now()
	before, _ := starts()
	for {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		case <-time.After(tick): // the pace of the watch, not a wait for anything
		}
		now, runs := starts()
		u.mu.Lock()
		if time.Since(last) > 10*tick || now != before || !runs || u.making > 0 {
			quiet = time.Now()
			if u.trouble.IsZero() {
				u.trouble = last
			}
		}
		due := !u.trouble.IsZero() && time.Since(quiet) > calm
		u.mu.Unlock()
		last, before = time.Now(), now
		if !due {
			continue
		}
		err := u.catchUp(ctx)
		now, runs = starts()
		u.mu.Lock()
		switch undisturbed := now == before && runs && u.making == 0; {
		case err == nil && undisturbed:
			u.troubles, u.trouble = append(u.troubles, interval{u.trouble, time.Now()}), time.Time{}
		case undisturbed && time.Since(quiet) > caughtUp && ctx.Err() == nil:
			quiet = time.Now()
			go u.violate(disagreement, fmt.Sprintf("nodes have not caught up %v after the last trouble: %v", caughtUp, err))
		}
		u.mu.Unlock()
		last = time.Now()
	}
}

// catchUp keeps everybody from changing anything, and waits a little until nodes enforce what the API has.
func (u *policyUsers) catchUp(ctx context.Context) error {
	u.churn.Lock()
	defer u.churn.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return poll.Until(ctx, func() error { return errors.Join(oracle.NetworkPolicies(ctx, u.lab, false)...) })
}

// edits is the number of users' changes between two steps.
func (u *policyUsers) edits() int {
	if u == nil {
		return 0
	}
	return 2
}

// calmly has users change policies and labels for a while without any trouble, so that a second is what counts.
func (u *policyUsers) calmly(ctx context.Context, owners *addressOwners) {
	dice, calmed := rand.New(rand.NewPCG(u.seed, math.MaxUint64/2)), time.Now()
	at := types.NamespacedName{Namespace: policytest.Namespaces[0], Name: "closed"} // so that enough is refused
	closed := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: at.Namespace, Name: at.Name}}
	u.ok("write a policy", u.change(ctx, func(s *clusterState) { s.policies[at] = compile.NetworkPolicy(closed) }, func() error { return u.put(ctx, closed) }))
	for i, n := range u.lab.Nodes() {
		for len(n.Pods()) < 2 && ctx.Err() == nil {
			o := node.PodOptions{Namespace: policytest.Namespaces[i%2], Labels: map[string]string{"app": "x"}}
			u.ok("add a pod", u.add(ctx, owners, n, fmt.Sprintf("calm-%d", len(n.Pods())), o))
		}
	}
	for n := 0; n < calmEdits && time.Since(calmed) < caughtUp && ctx.Err() == nil; {
		time.Sleep(calmPace) //nolint:forbidigo // the pace of users, not a wait for anything
		u.mu.Lock()
		trouble := !u.trouble.IsZero()
		u.mu.Unlock()
		if !trouble {
			u.step(ctx, dice)
			n++
		}
	}
}

// calmEdits is the number of changes without any trouble, and calmPace the time between two.
const (
	calmEdits = 20
	calmPace  = 200 * time.Millisecond
)

// make counts a trouble that somebody makes, and returns a function that ends it.
func (u *policyUsers) make() (end func()) {
	if u == nil {
		return func() {}
	}
	count := func(n int) {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.making += n
		if u.trouble.IsZero() {
			u.trouble = time.Now()
		}
	}
	count(1)
	return func() { count(-1) }
}

// removeAll deletes all policies, one after the other, at the end of a round.
func (u *policyUsers) removeAll(ctx context.Context) error {
	var errs []error
	for _, namespace := range append([]string{steady}, policytest.Namespaces...) {
		errs = append(errs, u.kube.DeleteAllOf(ctx, &networkingv1.NetworkPolicy{}, client.InNamespace(namespace)))
	}
	return errors.Join(append(errs, u.kube.DeleteAllOf(ctx, clusterPolicy("")))...)
}

// report is what was tested. Too few connections that had to be let through or refused are a violation.
func (u *policyUsers) report() {
	u.mu.Lock()
	refused, passed, hard, either := u.tested[false], u.tested[true], u.hard, u.skipped
	u.mu.Unlock()
	u.tally.count(policyRefusal, refused)
	u.tally.count(policyPass, passed)
	u.tally.count(policyTrouble, hard)
	u.tally.count(policyEither, either)
	fmt.Printf("%v: %d connections rightly refused, %d rightly let through, of both %d while programs were missing; %d could be either\n", u.place, refused, passed, hard, either)
	if least := u.ops / 4; refused < least || passed < least || hard < least {
		u.violate(other, fmt.Sprintf("too few verdicts: %d connections rightly refused, %d let through, of both %d while programs were missing; want %d of each", refused, passed, hard, least))
	}
}

// begin probes and watches until calm is called, after the troubles.
func (u *policyUsers) begin(ctx context.Context) (calm func(owners *addressOwners)) {
	if u == nil {
		return func(*addressOwners) {}
	}
	stop, all := make(chan struct{}), sync.WaitGroup{}
	all.Go(func() { u.watch(ctx, stop) })
	for i := range 6 {
		all.Go(func() { u.probe(ctx, rand.New(rand.NewPCG(u.seed, math.MaxUint64-uint64(i+1))), stop) })
	}
	return func(owners *addressOwners) {
		u.calmly(ctx, owners)
		close(stop)
		all.Wait()
		u.report()
	}
}

func TestJudgeOfPolicies(t *testing.T) { synctest.Test(t, testJudgeOfPolicies) }

func testJudgeOfPolicies(t *testing.T) {
	at := time.Now()
	second := func(n float64) time.Time { return at.Add(time.Duration(n * float64(time.Second))) }
	pod := func(name, addr string) *judgedPod {
		return &judgedPod{Pod: &node.Pod{Addrs: []netip.Addr{netip.MustParseAddr(addr)}}, name: types.NamespacedName{Namespace: "red", Name: name}, up: at}
	}
	a, b := pod("a", "10.0.0.1"), pod("b", "10.0.0.2")
	f := policy.Flow{Source: a.Addrs[0], Destination: b.Addrs[0], Protocol: unix.IPPROTO_TCP, Port: 80}
	closes := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "closes"}}
	open := clusterState{interval: interval{to: second(10.1)}}
	closed := clusterState{interval: interval{from: second(10)}, policies: map[types.NamespacedName]compile.Compiled{{Namespace: "red", Name: "closes"}: compile.NetworkPolicy(closes)}}
	for what, tt := range map[string]struct {
		sent    float64
		passed  bool
		trouble interval
		reused  float64
		want    int
	}{
		"let through before":                            {sent: 9, passed: true},
		"refused before":                                {sent: 8, want: 1},
		"let through at once":                           {sent: 10.5, passed: true},
		"refused at once":                               {sent: 10.5},
		"let through late":                              {sent: 11.2, passed: true, want: 1},
		"refused late":                                  {sent: 11.2},
		"let through late, a program is missing":        {sent: 30, passed: true, trouble: interval{from: second(10.5)}},
		"let through late, a program was missing":       {sent: 30, passed: true, trouble: interval{second(10.5), second(29.5)}},
		"let through late, a program was back long ago": {sent: 30, passed: true, trouble: interval{second(10.5), second(28)}, want: 1},
		"let through, but another pod had the address":  {sent: 30, passed: true, reused: 29.5},
	} {
		r := &round{soak: t.Context(), tally: newTally("test")}
		u := &policyUsers{round: r, states: []clusterState{open, closed}, lost: map[netip.Addr]time.Time{b.Addrs[0]: second(tt.reused)}, tested: map[bool]int{}}
		if u.trouble = tt.trouble.from; !tt.trouble.to.IsZero() {
			u.trouble, u.troubles = time.Time{}, []interval{tt.trouble}
		}
		u.judge(what, a, b, f, second(tt.sent), second(tt.sent+0.01), tt.passed)
		synctest.Wait() // for the violation
		if got := len(r.violations()); got != tt.want {
			t.Errorf("%s: %d violations, want %d", what, got, tt.want)
		}
	}
}

// TestPolicyInvariantsFindFaults changes a node's table behind a killed daemon, and the API and the stored file with it, all
// of which oracle.NetworkPolicies must report.
func TestPolicyInvariantsFindFaults(t *testing.T) {
	t.Parallel()
	harness.Rotate(t, 2, 7)
	l := harness.Raise(t, policyMode.lab(1, 1))
	n := l.Nodes()[0]
	closed := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "closed"}}
	harness.OK(t, l.Kube.Client.Create(t.Context(), closed.DeepCopy()))
	_, err := n.AddPod(t.Context(), "p", node.PodOptions{})
	harness.OK(t, err)
	harness.Settle(t, l)
	for _, p := range policyMode.programs(l) {
		harness.OK(t, p.Kill())
	}
	closed.Name = "late"
	harness.OK(t, l.Kube.Client.Create(t.Context(), closed))
	harness.OK(t, ns.Do(n.Netns, func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		table := &nftables.Table{Family: nftables.TableFamilyINet, Name: policytable.Name}
		c.FlushChain(&nftables.Chain{Table: table, Name: "refuse-ingress"})
		err = c.AddSet(&nftables.Set{Table: table, Name: "foreign", KeyType: nftables.TypeIPAddr}, nil)
		return errors.Join(err, c.Flush())
	}))
	errs := errors.Join(oracle.NetworkPolicies(t.Context(), l, true)...)
	for _, want := range []string{
		"introspection: ", "the stored file lacks NetworkPolicy default/late", "the kernel lacks chain refuse-ingress", "the kernel has set foreign, and should not",
	} {
		if errs == nil || !strings.Contains(errs.Error(), want) {
			t.Errorf("%q is not in: %v", want, errs)
		}
	}
}
