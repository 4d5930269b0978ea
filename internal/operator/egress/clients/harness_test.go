package clients

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/operator/objects"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

func TestMain(m *testing.M) {
	os.Exit(controllers.Main(m, harness.Kube, Watches(), func(ctx context.Context, mgr manager.Manager, log *slog.Logger) error {
		_, err := setUp(ctx, mgr, Options{Logger: log})
		return err
	}))
}

// world is an API server and an operator. Egresses are in namespace internet, pods in
// namespace shop, unless they say otherwise.
type world struct {
	t       *testing.T
	c       *Controller
	end     func()
	daemons controllers.Daemons
}

func start(t *testing.T, o Options) *world {
	t.Helper()
	harness.KubeClean(t)
	w := newWorld(t)
	w.run(o)
	return w
}

// newWorld is one without an operator.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, daemons: controllers.Daemons{}}
	w.namespace("internet", nil)
	w.namespace("shop", map[string]string{"team": "shop"})
	w.consents("shop", "")
	return w
}

func (w *world) client() client.Client { return harness.KubeClient(w.t) }

// run starts an operator, each request through some transports.
func (w *world) run(o Options, through ...transport.WrapperFunc) {
	w.t.Helper()
	o.Logger = controllers.Logger(w.t.Output())
	w.end = controllers.Start(w.t, operatorConfig(w.t), Watches(), func(ctx context.Context, mgr manager.Manager) (err error) {
		w.c, err = setUp(ctx, mgr, o)
		return err
	}, through...)
}

// operatorAccess is what operatorConfig returns, once it was asked.
var operatorAccess *rest.Config

// operatorConfig is the access of the operator, with the roles and policies that the chart
// gives it.
func operatorConfig(t *testing.T) *rest.Config {
	t.Helper()
	if operatorAccess != nil {
		return rest.CopyConfig(operatorAccess)
	}
	objects, err := deploy.Render(deploy.Release{Values: map[string]any{
		"mode": deploy.NodeMode, "clusterName": "test", "egress": map[string]any{"enabled": true},
	}})
	harness.OK(t, err)
	harness.OK(t, harness.ControlPlane.ApplyObjects(t.Context(), objects.Access()))
	harness.OK(t, harness.ControlPlane.Apply(t.Context(), fstest.MapFS{"daemon.yaml": {Data: []byte(daemonRole)}}))
	token, err := harness.ControlPlane.Token(t.Context(), types.NamespacedName{Namespace: "kube-system", Name: "berth-operator"}, nil)
	harness.OK(t, err)
	operatorAccess = harness.ControlPlane.ConfigWithToken(token)
	return rest.CopyConfig(operatorAccess)
}

// daemonRole has berthd write the status of EgressClients.
const daemonRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: test-daemon}
rules:
  - {apiGroups: [berth.dev], resources: [egressclients/status], verbs: [patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-daemon}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: test-daemon}
subjects: [{kind: ServiceAccount, name: berthd, namespace: kube-system}]
`

// operator is a client with the operator's access.
func (w *world) operator() client.Client {
	w.t.Helper()
	return harness.KubeClientFor(w.t, operatorConfig(w.t))
}

// controller is a client with the name of Kubernetes' own controllers, and all rights.
func (w *world) controller() client.Client {
	w.t.Helper()
	cfg, err := harness.ControlPlane.ConfigFor("system:kube-controller-manager", "system:masters")
	harness.OK(w.t, err)
	return harness.KubeClientFor(w.t, cfg)
}

func setUp(ctx context.Context, mgr manager.Manager, o Options) (*Controller, error) {
	if err := Index(ctx, mgr.GetFieldIndexer()); err != nil {
		return nil, err
	}
	return Setup(mgr, o)
}

// namespace makes one, or gives one that is there these labels.
func (w *world) namespace(name string, labels map[string]string) {
	w.t.Helper()
	ns := controllers.Named[corev1.Namespace](name)
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "default"}}
	for _, o := range []client.Object{ns, sa} {
		harness.OK(w.t, client.IgnoreAlreadyExists(w.client().Create(w.t.Context(), o)))
	}
	harness.OK(w.t, w.client().Get(w.t.Context(), client.ObjectKeyFromObject(ns), ns))
	ns.Labels = maps.Clone(labels)
	harness.OK(w.t, w.client().Update(w.t.Context(), ns))
}

// consents has a namespace let Egresses of others select its pods.
func (w *world) consents(name, to string) {
	w.t.Helper()
	ns := controllers.Named[corev1.Namespace](name)
	controllers.Merge(w.t, ns, `{"metadata":{"annotations":{"berth.dev/egress-selectable-from":%q}}}`, to)
}

// egress makes one in namespace internet.
func (w *world) egress(name string, spec v1alpha1.EgressSpec) *v1alpha1.Egress {
	w.t.Helper()
	if len(spec.Destinations) == 0 {
		spec.Destinations = []string{"0.0.0.0/0", "::/0"}
	}
	o := controllers.Create(w.t, &v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: "internet", Name: name}, Spec: spec})
	w.gateways(o, 1)
	return o
}

// open are namespaces whose pods may name an Egress: all.
func open() *v1alpha1.VPCNamespaces { return &v1alpha1.VPCNamespaces{Names: []string{"*"}} }

// gateways has an Egress have so many gateways that are ready.
func (w *world) gateways(o *v1alpha1.Egress, n int) {
	w.t.Helper()
	controllers.MergeStatus(w.t, w.operator(), o, `{"status":{"replicas":%d,"readyGateways":%d}}`, n, n)
}

// newPod is one of namespace shop that names Egresses of namespace internet; empty: none.
func newPod(name, egresses string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if egresses != "" {
		p.Annotations = map[string]string{v1alpha1.AnnotationEgressPrefix + "internet": egresses}
	}
	return p
}

// pod makes one on node-a.
func (w *world) pod(name, egresses string) *corev1.Pod {
	w.t.Helper()
	return w.make(newPod(name, egresses), "node-a")
}

// make makes a pod on a node.
func (w *world) make(p *corev1.Pod, node string) *corev1.Pod {
	w.t.Helper()
	as := w.client()
	if _, gateway := p.Labels[v1alpha1.LabelEgress]; gateway {
		as = w.controller()
	}
	harness.OK(w.t, as.Create(w.t.Context(), p))
	controllers.Bind(w.t, client.ObjectKeyFromObject(p), node)
	return p
}

// edit changes a pod by a merge patch.
func (w *world) edit(p *corev1.Pod, patch string) {
	w.t.Helper()
	controllers.Merge(w.t, p, "%s", patch)
}

// deletePod ends a pod as a kubelet does, or by force.
func (w *world) deletePod(p *corev1.Pod) {
	w.t.Helper()
	controllers.DeletePod(w.t, client.ObjectKeyFromObject(p))
}

// status has a pod be in a phase, with addresses.
func (w *world) status(p *corev1.Pod, phase corev1.PodPhase, addresses ...string) {
	w.t.Helper()
	o := p.DeepCopy()
	harness.OK(w.t, w.client().Get(w.t.Context(), client.ObjectKeyFromObject(p), o))
	o.Status.Phase, o.Status.PodIP, o.Status.PodIPs = phase, "", nil
	for _, a := range addresses {
		o.Status.PodIPs = append(o.Status.PodIPs, corev1.PodIP{IP: a})
	}
	if len(addresses) > 0 {
		o.Status.PodIP = addresses[0]
	}
	harness.OK(w.t, w.client().Status().Update(w.t.Context(), o))
}

// setUp has a pod's node say that it has set up all that the EgressClient asks for.
func (w *world) setUp(p *corev1.Pod, addresses ...string) {
	w.t.Helper()
	o := w.await(p, "is there", controllers.If(func(o *v1alpha1.EgressClient) bool { return o.Spec.PodUID == string(p.UID) }))
	w.says(o, v1alpha1.EgressClientNode{State: v1alpha1.EgressClientSetUp, ContainerID: "c", Addresses: addresses, Egresses: o.Spec.Egresses})
}

// says writes what the daemon of a client's node says.
func (w *world) says(o *v1alpha1.EgressClient, says v1alpha1.EgressClientNode) {
	w.t.Helper()
	after := o.DeepCopy()
	after.Status.Node = &says
	harness.OK(w.t, w.daemons.Of(w.t, o.Spec.NodeName).Status().Patch(w.t.Context(), after, client.MergeFrom(o)))
}

// object is the EgressClient of a pod; nil: there is none.
func (w *world) object(p *corev1.Pod) *v1alpha1.EgressClient {
	o, err := objects.Get[v1alpha1.EgressClient](w.t.Context(), w.client(), client.ObjectKeyFromObject(p))
	harness.OK(w.t, err)
	return o
}

// await waits until a pod's EgressClient is as it should be.
func (w *world) await(p *corev1.Pod, what string, is func(*v1alpha1.EgressClient) error) *v1alpha1.EgressClient {
	w.t.Helper()
	return controllers.Await(w.t, client.ObjectKeyFromObject(p), what, is)
}

func (w *world) awaitNone(p *corev1.Pod) {
	w.t.Helper()
	controllers.AwaitGone(w.t, &v1alpha1.EgressClient{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}})
}

// uses wants an EgressClient to have these Egresses of namespace internet and no others, and refusals
// as name and reason.
func uses(names []string, refusals ...string) func(*v1alpha1.EgressClient) error {
	return func(o *v1alpha1.EgressClient) error {
		var has, refused []string
		for _, r := range o.Spec.Egresses {
			has = append(has, r.Name)
		}
		for _, r := range o.Spec.Refused {
			refused = append(refused, r.Name+" "+r.Reason)
		}
		if !slices.Equal(has, names) || !slices.Equal(refused, refusals) {
			return fmt.Errorf("uses %q, refused %q; want %q, %q", has, refused, names, refusals)
		}
		return nil
	}
}

// ready wants the condition Ready to have a reason, and words in its message.
func ready(reason string, words ...string) func(*v1alpha1.EgressClient) error {
	status := metav1.ConditionFalse
	if reason == reasonSetUp {
		status = metav1.ConditionTrue
	}
	return controllers.Has[*v1alpha1.EgressClient](conditionReady, status, reason, words...)
}

func (w *world) slices(egress string) []v1alpha1.EgressClientSlice {
	list := &v1alpha1.EgressClientSliceList{}
	harness.OK(w.t, w.client().List(w.t.Context(), list, client.InNamespace("internet"), client.MatchingLabels{v1alpha1.LabelEgress: egress}))
	return list.Items
}

// served are the clients of an Egress that gateways serve, as pod and addresses.
func (w *world) served(egress string) (out []string) {
	for _, s := range w.slices(egress) {
		for _, c := range s.Clients {
			out = append(out, strings.TrimPrefix(c.Pod, "shop/")+" "+strings.Join(c.Addresses, ","))
		}
	}
	slices.Sort(out)
	return out
}

// awaitServed waits until an Egress serves exactly these.
func (w *world) awaitServed(egress string, want ...string) {
	w.t.Helper()
	slices.Sort(want)
	controllers.AwaitValue(w.t, "clients of "+egress, func() []string { return w.served(egress) }, want)
}

// awaitCounts waits until the status of an Egress says so many clients.
func (w *world) awaitCounts(egress string, clients, refused int32, reason string, words ...string) {
	w.t.Helper()
	controllers.Await(w.t, client.ObjectKey{Namespace: "internet", Name: egress}, "counts its clients", func(o *v1alpha1.Egress) error {
		c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionClientsReady)
		if o.Status.Clients != clients || o.Status.RefusedClients != refused || c == nil || c.Reason != reason || !harness.Says(c.Message, words...) {
			return fmt.Errorf("want %d clients, %d refused, %s with %q", clients, refused, reason, words)
		}
		return nil
	})
}
