package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	_ "github.com/berthnet/berth/internal/operator/egress" // these register their failpoints
	_ "github.com/berthnet/berth/internal/operator/egress/clients"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/oracle"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/test/harness"
)

// egressMode is pool mode with Egresses. It needs a kernel with Foo-over-UDP, and so the virtual
// machine (hack/soak.sh), whose control plane is another process's and is not killed.
var egressMode = mode{
	name: lab.PoolMode, soak: "egress", pods: 4,
	options: lab.Options{
		Egress:       true,
		Pools:        append(lab.DefaultPools(), lab.Pool(gatewayPool, 0, v1alpha1.PoolSubnet{IPv4: "198.51.101.0/26", IPv6: "2001:db8:51::/122"})),
		OperatorArgs: []string{"--block-claim-grace=20s"},
		DaemonArgs:   []string{"--egress-wait=20s"},
	},
	daemon:   slices.Concat(named("pool.", "daemon.egress."), ofDaemon),
	operator: named("operator.pool.", "operator.gateways.", "operator.egressclient."),
	ops:      12,
	every:    1, // changes of Egresses are operations, too
	troubles: []trouble{haltOperator, killDaemon, killDaemon, killOperator, killOperator, killGateway, killGateway, killGateway, deleteGateway, deleteGateway, restartRollout},
	empty:    noEgress,
}

const gatewayPool = "gateways"

// The namespaces of Egresses and of clients. Gateways have addresses of their own pool.
var (
	gatewayNamespaces = []string{"gate-1", "gate-2"}
	clientNamespaces  = []string{"shop", "bank", "gate-1"}
)

// slots are the names that Egresses may have.
var slots = []types.NamespacedName{
	{Namespace: "gate-1", Name: "a"}, {Namespace: "gate-1", Name: "b"}, {Namespace: "gate-2", Name: "a"}, {Namespace: "gate-2", Name: "c"},
}

// Destinations of Egresses, some of which overlap; most have the host outside. 198.51.100.0/22
// contains the gateways themselves.
var destinationSets = [][]string{
	{"203.0.113.0/24"},
	{"203.0.113.10/32", "2001:db8:ffff::/48"},
	{"0.0.0.0/0", "::/0"},
	{"0.0.0.0/0"},
	{"2001:db8:ffff::10/128"},
	{"198.51.100.0/22", "2001:db8:51::/64"},
	{"192.0.2.0/24", "::/0"},
	{"10.99.0.0/16", "203.0.113.0/28"},
}

// egressUsers write Egresses, annotations and labels as users do. They are nil where there is no
// egress.
type egressUsers struct {
	*round
	kube client.Client
	lab  *lab.Lab
	mu   sync.Mutex // held while somebody writes: one reads what there is, and then changes it
}

// newEgressUsers creates the namespaces in a lab with egress.
func newEgressUsers(ctx context.Context, r *round, l *lab.Lab) (*egressUsers, error) {
	if !l.Egress {
		return nil, nil
	}
	u := &egressUsers{round: r, kube: l.Kube.Client, lab: l}
	for _, name := range append([]string{"shop", "bank"}, gatewayNamespaces...) {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := u.kube.Create(ctx, n); client.IgnoreAlreadyExists(err) != nil {
			return nil, fmt.Errorf("create namespace %s: %w", name, err)
		}
		annotations := map[string]any{v1alpha1.AnnotationEgressSelectableFrom: "*"}
		if slices.Contains(gatewayNamespaces, name) {
			annotations[v1alpha1.AnnotationPool] = gatewayPool
		}
		patch := map[string]any{"metadata": map[string]any{
			"labels": map[string]any{"team": nil, v1alpha1.LabelEgressMaySelect: nil}, "annotations": annotations,
		}}
		if err := u.patch(ctx, n, patch); err != nil {
			return nil, err
		}
	}
	return u, nil
}

func (u *egressUsers) patch(ctx context.Context, o client.Object, patch map[string]any) error {
	data, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	if err := client.IgnoreNotFound(u.kube.Patch(ctx, o, client.RawPatch(types.MergePatchType, data))); err != nil {
		return fmt.Errorf("change %T %s: %w", o, client.ObjectKeyFromObject(o), err)
	}
	return nil
}

// step makes a random change.
func (u *egressUsers) step(ctx context.Context, dice *rand.Rand, n *node.Node) {
	u.mu.Lock()
	defer u.mu.Unlock()
	what, err := u.change(ctx, dice, n)
	u.ok(what, err)
	u.operations.Add(1)
	if err == nil {
		u.tally.count(egressEdit, 1)
	}
}

func (u *egressUsers) change(ctx context.Context, dice *rand.Rand, n *node.Node) (string, error) {
	switch k := dice.IntN(10); {
	case k < 6:
		return "write an Egress", u.writeEgress(ctx, dice)
	case k < 9:
		return "change a pod", u.writePod(ctx, dice, n)
	default:
		name := clientNamespaces[dice.IntN(len(clientNamespaces))]
		o := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		return "change a namespace", u.patch(ctx, o, map[string]any{"metadata": map[string]any{
			"labels":      map[string]any{"team": one(dice, "red", "blue", ""), v1alpha1.LabelEgressMaySelect: one(dice, "true", "")},
			"annotations": map[string]any{v1alpha1.AnnotationEgressSelectableFrom: one(dice, "", "gate-1", "gate-2", "gate-1, gate-2", "*")},
		}})
	}
}

func one(dice *rand.Rand, words ...string) string { return words[dice.IntN(len(words))] }

// writeEgress makes, changes or deletes an Egress.
func (u *egressUsers) writeEgress(ctx context.Context, dice *rand.Rand) error {
	at := slots[dice.IntN(len(slots))]
	end := dice.IntN(5) == 0
	e := &v1alpha1.Egress{}
	err := u.kube.Get(ctx, at, e)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return err
	case err != nil:
		e = &v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: at.Namespace, Name: at.Name}}
		replicas := int32(1)
		e.Spec = v1alpha1.EgressSpec{Destinations: destinationSets[dice.IntN(len(destinationSets))], Replicas: &replicas}
		for range 3 {
			edit(dice, &e.Spec)
		}
		return u.kube.Create(ctx, e)
	case end:
		return client.IgnoreNotFound(u.kube.Delete(ctx, e))
	}
	before := e.DeepCopy()
	edit(dice, &e.Spec)
	return client.IgnoreNotFound(u.kube.Patch(ctx, e, client.MergeFrom(before)))
}

func edit(dice *rand.Rand, s *v1alpha1.EgressSpec) {
	switch dice.IntN(9) {
	case 0:
		s.Destinations = destinationSets[dice.IntN(len(destinationSets))]
	case 1:
		replicas := []int32{0, 1, 1, 2, 2}[dice.IntN(5)]
		s.Replicas = &replicas
	case 2:
		s.Clients = selector(dice)
	case 3:
		s.AllowedNamespaces = nil
		if dice.IntN(4) > 0 {
			s.AllowedNamespaces = &v1alpha1.VPCNamespaces{Names: []string{one(dice, "*", "shop", "bank")}}
		}
	case 4:
		s.TunnelTo = v1alpha1.EgressTunnelTo(one(dice, "Gateways", "Gateways", "Service"))
	case 5:
		s.FouSourcePortAuto = dice.IntN(2) == 0
	case 6:
		s.OriginatingOnly = dice.IntN(2) == 0
	case 7:
		s.SessionAffinity = corev1.ServiceAffinity(one(dice, "ClientIP", "None"))
	case 8:
		s.PodDisruptionBudget = nil
		if dice.IntN(2) == 0 {
			s.PodDisruptionBudget = &v1alpha1.EgressPodDisruptionBudget{MaxUnavailable: new(intstr.FromInt32(1))}
		}
	}
}

func selector(dice *rand.Rand) *v1alpha1.EgressClientSelector {
	matches := func(k, v string) *v1alpha1.LabelSelector {
		return &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{k: v1alpha1.LabelValue(v)}}
	}
	switch dice.IntN(4) {
	case 0:
		return nil
	case 1:
		return &v1alpha1.EgressClientSelector{NamespaceSelector: matches("team", one(dice, "red", "blue"))}
	case 2:
		return &v1alpha1.EgressClientSelector{NamespaceSelector: &v1alpha1.LabelSelector{MatchExpressions: []v1alpha1.LabelRequirement{
			{Key: corev1.LabelMetadataName, Operator: "In", Values: []v1alpha1.LabelValue{metav1.NamespaceSystem, "shop", "bank", "gate-1"}},
		}}, PodSelector: matches("tier", one(dice, "web", "db"))}
	default:
		return &v1alpha1.EgressClientSelector{PodSelector: matches("tier", "web")}
	}
}

// annotations are a pod's, with Egresses that may exist, and at times one that never does.
func annotations(dice *rand.Rand) map[string]any {
	out := map[string]any{}
	for _, namespace := range gatewayNamespaces {
		k := v1alpha1.AnnotationEgressPrefix + namespace
		out[k] = nil
		if dice.IntN(3) > 0 {
			continue
		}
		var names []string
		for _, s := range slots {
			if s.Namespace == namespace && dice.IntN(2) == 0 {
				names = append(names, s.Name)
			}
		}
		if dice.IntN(12) == 0 {
			names = append(names, "nowhere")
		}
		if len(names) > 0 {
			out[k] = strings.Join(names, ",")
		}
	}
	return out
}

// writePod changes annotations or labels of a pod that runs.
func (u *egressUsers) writePod(ctx context.Context, dice *rand.Rand, n *node.Node) error {
	pods := slices.DeleteFunc(n.Pods(), func(p *node.Pod) bool { return p.Object != nil })
	patch := map[string]any{"annotations": annotations(dice)}
	if dice.IntN(2) == 0 {
		patch = map[string]any{"labels": map[string]any{"tier": one(dice, "web", "db", "")}}
	}
	i := dice.IntN(64)
	if len(pods) == 0 {
		return nil
	}
	p := pods[i%len(pods)]
	return u.patch(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.ObjectName}}, map[string]any{"metadata": patch})
}

// draw draws the options of the next pod: a namespace, and in half of the cases annotations that name
// Egresses.
func (u *egressUsers) draw(dice *rand.Rand) node.PodOptions {
	o := node.PodOptions{Namespace: clientNamespaces[dice.IntN(len(clientNamespaces))]}
	named := annotations(dice)
	if dice.IntN(2) == 0 {
		return o
	}
	for k, v := range named {
		if text, ok := v.(string); ok {
			if o.Annotations == nil {
				o.Annotations = map[string]string{}
			}
			o.Annotations[k] = text
		}
	}
	return o
}

// giveUp is how long the ADD of a pod that names an Egress is repeated: it may never be allowed.
const giveUp = 90 * time.Second

// addClient makes a pod, unless it names an Egress and fails for too long.
func (u *egressUsers) addClient(ctx context.Context, owners *addressOwners, n *node.Node, name string, o node.PodOptions) (there bool, err error) {
	one, cancel := ctx, context.CancelFunc(func() {})
	if len(o.Annotations) > 0 {
		one, cancel = context.WithTimeout(ctx, giveUp)
	}
	defer cancel()
	err = owners.add(one, n, name, shape{options: o})
	if err != nil && len(o.Annotations) > 0 && ctx.Err() == nil && one.Err() != nil {
		u.tally.count(givenUp, 1)
		return false, nil
	}
	return err == nil, err
}

// quiet waits until all pods reach the outside as they should.
func (u *egressUsers) quiet(ctx context.Context) {
	u.ok("traffic", u.timed("traffic", "", func() error { return oracle.EgressTraffic(ctx, u.lab) }))
}

func (u *egressUsers) removeAll(ctx context.Context) error {
	var errs []error
	for _, namespace := range gatewayNamespaces {
		errs = append(errs, u.kube.DeleteAllOf(ctx, &v1alpha1.Egress{}, client.InNamespace(namespace)))
	}
	return errors.Join(errs...)
}

// someGateway returns a random gateway, or nil.
func (m *troublemaker) someGateway() *lab.Gateway {
	var all []*lab.Gateway
	for _, at := range slots {
		all = append(all, m.lab.Gateways(at)...)
	}
	i := m.dice.IntN(64)
	if len(all) == 0 {
		return nil
	}
	return all[i%len(all)]
}

var killGateway = trouble{kills: gatewayKill, make: func(_ context.Context, m *troublemaker) {
	g := m.someGateway()
	if g == nil {
		return
	}
	if err := g.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		m.ok(string(gatewayKill), err)
		return
	}
	m.tally.count(gatewayKill, 1)
}}

// deleteGateway deletes a gateway's pod, sometimes without a grace period.
var deleteGateway = trouble{make: func(ctx context.Context, m *troublemaker) {
	g := m.someGateway()
	now := m.dice.IntN(3) == 0
	if g == nil {
		return
	}
	var o []client.DeleteOption
	if now {
		o = append(o, client.GracePeriodSeconds(0))
	}
	err := m.lab.Kube.Client.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: g.Egress.Namespace, Name: g.Name}}, o...)
	m.ok(string(gatewayDeletion), client.IgnoreNotFound(err))
	m.tally.count(gatewayDeletion, 1)
}}

// restartRollout restarts an Egress's Deployment, like kubectl rollout restart.
var restartRollout = trouble{make: func(ctx context.Context, m *troublemaker) {
	at := slots[m.dice.IntN(len(slots))]
	patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":%q}}}}}`, fmt.Sprint(m.dice.Uint32()))
	o := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: at.Namespace, Name: at.Name}}
	err := m.lab.Kube.Client.Patch(ctx, o, client.RawPatch(types.StrategicMergePatchType, []byte(patch)))
	m.ok("restart a rollout", client.IgnoreNotFound(err))
	if err == nil {
		m.tally.count(rolloutRestart, 1)
	}
}}

// noEgress waits until no object of Egresses and no block of the gateways' pool is left.
func noEgress(ctx context.Context, l *lab.Lab) error {
	if err := blocks(1)(ctx, l); err != nil {
		return err
	}
	return poll.Until(ctx, func() error {
		var errs []error
		for _, list := range []client.ObjectList{
			&v1alpha1.EgressClientList{}, &v1alpha1.EgressClientSliceList{}, &appsv1.DeploymentList{}, &policyv1.PodDisruptionBudgetList{},
		} {
			errs = append(errs, l.Kube.Client.List(ctx, list))
			errs = append(errs, harness.Equal(fmt.Sprintf("%T", list), meta.LenList(list), 0))
		}
		pods := &corev1.PodList{}
		errs = append(errs, l.Kube.Client.List(ctx, pods))
		for _, p := range pods.Items {
			if p.Namespace != metav1.NamespaceSystem { // the daemons' own
				errs = append(errs, fmt.Errorf("pod %s is there", client.ObjectKeyFromObject(&p)))
			}
		}
		return errors.Join(errs...)
	})
}

// forget removes what a lab leaves in a control plane that outlives it.
func forget(l *lab.Lab) error {
	if l == nil || os.Getenv(kube.RemoteDir) == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	control, err := kube.Remote(os.Getenv(kube.RemoteDir))
	if err != nil {
		return err
	}
	c, err := client.New(control.Config(), client.Options{Scheme: l.Kube.Client.Scheme()})
	if err != nil {
		return err
	}
	return poll.Until(ctx, func() error { return forgetAll(ctx, c) })
}

func forgetAll(ctx context.Context, c client.Client) error {
	var errs []error
	for _, list := range []client.ObjectList{
		&v1alpha1.EgressList{}, &v1alpha1.EgressClientSliceList{}, &v1alpha1.EgressClientList{}, &appsv1.DeploymentList{}, &appsv1.ReplicaSetList{}, &corev1.PodList{},
		&corev1.NodeList{}, &v1alpha1.BlockRequestList{}, &v1alpha1.AddressBlockList{}, &v1alpha1.AddressPoolList{}, &v1alpha1.NodeNetworkList{}, &v1alpha1.PodNICList{}, &v1alpha1.VPCList{}, &coordinationv1.LeaseList{},
	} {
		if err := c.List(ctx, list); err != nil {
			return err
		}
		_ = meta.EachListItem(list, func(item runtime.Object) error {
			o := item.(client.Object)
			if _, lease := o.(*coordinationv1.Lease); lease && !strings.Contains(o.GetName(), "berth") {
				return nil
			}
			errs = append(errs, fmt.Errorf("%T %s is there", o, client.ObjectKeyFromObject(o)))
			errs = append(errs, client.IgnoreNotFound(c.Delete(ctx, o, client.GracePeriodSeconds(0))))
			if len(o.GetFinalizers()) > 0 {
				none := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
				errs = append(errs, client.IgnoreNotFound(c.Patch(ctx, o, none)))
			}
			return nil
		})
	}
	return errors.Join(errs...)
}
