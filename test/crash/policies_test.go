package crash

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/policy/compile"
	"github.com/berthnet/berth/internal/policy/policytest"
	"github.com/berthnet/berth/lab"
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
	stalls   []interval   // when this process stood still
	trouble  time.Time    // since when programs may be missing; zero: all work
	making   int          // troubles that somebody makes now
	skipped  int          // connections that could be either
	tested   map[bool]int // connections that were refused (false) and let through, by all states that count
	hard     int          // of these, while programs were missing
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
	u.pods[at] = &judgedPod{Pod: p, name: at, labels: u.states[len(u.states)-1].labels[at], up: up}
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

// edits is the number of users' changes between two steps.
func (u *policyUsers) edits() int {
	if u == nil {
		return 0
	}
	return 2
}

const (
	// restOdds is after how many steps a worker rests, on average, and restFor how long all programs have worked by the end of that.
	restOdds = 4
	restFor  = 2 * lag
)

// rest sometimes waits until no program has been missing for a while. As no trouble comes without operations, all workers rest at
// the same moment in the end, and connections are judged by few states. However fast operations are, each part of a round has such a moment.
func (u *policyUsers) rest(ctx context.Context, dice *rand.Rand) {
	if u == nil || dice.IntN(restOdds) > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, caughtUp)
	defer cancel()
	began := time.Now()
	_ = poll.Until(ctx, poll.True(func() bool {
		if u.over() {
			return true
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		ended := began
		if n := len(u.troubles); n > 0 && u.troubles[n-1].to.After(began) {
			ended = u.troubles[n-1].to
		}
		return u.trouble.IsZero() && time.Since(ended) > restFor
	})) // without such a moment in a minute, users go on
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
	if least := int(u.operations.Load()) / 8; refused < least || passed < least || hard < least {
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
	all.Go(func() { noticeStalls(u, stop) })
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
