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

// world is an API server and an operator. By default, Egresses are in namespace internet and pods in
// namespace shop.
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

// newWorld returns a world without an operator.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, daemons: controllers.Daemons{}}
	w.namespace("internet", nil)
	w.namespace("shop", map[string]string{"team": "shop"})
	w.consents("shop", "")
	return w
}

func (w *world) client() client.Client { return harness.KubeClient(w.t) }

// run starts an operator whose API requests pass through these transports.
func (w *world) run(o Options, through ...transport.WrapperFunc) {
	w.t.Helper()
	o.Logger = controllers.Logger(w.t.Output())
	w.end = controllers.Start(w.t, operatorConfig(w.t), Watches(), func(ctx context.Context, mgr manager.Manager) (err error) {
		w.c, err = setUp(ctx, mgr, o)
		return err
	}, through...)
}

// operatorAccess caches the result of operatorConfig.
var operatorAccess *rest.Config

// operatorConfig returns the operator's access to the API server, with the roles and policies of the
// chart.
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

// daemonRole lets berthd write the status of EgressClients.
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

// operator returns a client with the operator's access.
func (w *world) operator() client.Client {
	w.t.Helper()
	return harness.KubeClientFor(w.t, operatorConfig(w.t))
}

// controller returns a client with the identity of kube-controller-manager and all rights.
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

// namespace creates a namespace, or sets the labels of an existing one.
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

// consents lets Egresses of other namespaces select the pods of a namespace.
func (w *world) consents(name, to string) {
	w.t.Helper()
	ns := controllers.Named[corev1.Namespace](name)
	controllers.Merge(w.t, ns, `{"metadata":{"annotations":{"berth.dev/egress-selectable-from":%q}}}`, to)
}

// egress creates an Egress in namespace internet.
func (w *world) egress(name string, spec v1alpha1.EgressSpec) *v1alpha1.Egress {
	w.t.Helper()
	if len(spec.Destinations) == 0 {
		spec.Destinations = []string{"0.0.0.0/0", "::/0"}
	}
	o := controllers.Create(w.t, &v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: "internet", Name: name}, Spec: spec})
	w.gateways(o, 1)
	return o
}

// open allows pods of all namespaces to name an Egress.
func open() *v1alpha1.VPCNamespaces { return &v1alpha1.VPCNamespaces{Names: []string{"*"}} }

// gateways sets the number of ready gateways in an Egress's status.
func (w *world) gateways(o *v1alpha1.Egress, n int) {
	w.t.Helper()
	controllers.MergeStatus(w.t, w.operator(), o, `{"status":{"replicas":%d,"readyGateways":%d}}`, n, n)
}

// newPod returns a pod in namespace shop that names these Egresses of namespace internet, if any.
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

// pod creates a pod on node-a.
func (w *world) pod(name, egresses string) *corev1.Pod {
	w.t.Helper()
	return w.make(newPod(name, egresses), "node-a")
}

// make creates a pod on a node.
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

// deletePod deletes a pod as a kubelet does, or by force.
func (w *world) deletePod(p *corev1.Pod) {
	w.t.Helper()
	controllers.DeletePod(w.t, client.ObjectKeyFromObject(p))
}

// status sets a pod's phase and addresses.
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

// setUp reports, as a pod's node, that everything the EgressClient asks for is set up.
func (w *world) setUp(p *corev1.Pod, addresses ...string) {
	w.t.Helper()
	o := w.await(p, "exists", controllers.If(func(o *v1alpha1.EgressClient) bool { return o.Spec.PodUID == string(p.UID) }))
	w.says(o, v1alpha1.EgressClientNode{State: v1alpha1.EgressClientSetUp, ContainerID: "c", Addresses: addresses, Egresses: o.Spec.Egresses})
}

// says writes a report as the daemon of a client's node.
func (w *world) says(o *v1alpha1.EgressClient, says v1alpha1.EgressClientNode) {
	w.t.Helper()
	after := o.DeepCopy()
	after.Status.Node = &says
	harness.OK(w.t, w.daemons.Of(w.t, o.Spec.NodeName).Status().Patch(w.t.Context(), after, client.MergeFrom(o)))
}

// object returns the EgressClient of a pod, or nil.
func (w *world) object(p *corev1.Pod) *v1alpha1.EgressClient {
	o, err := objects.Get[v1alpha1.EgressClient](w.t.Context(), w.client(), client.ObjectKeyFromObject(p))
	harness.OK(w.t, err)
	return o
}

// await waits until check returns nil for a pod's EgressClient.
func (w *world) await(p *corev1.Pod, what string, check func(*v1alpha1.EgressClient) error) *v1alpha1.EgressClient {
	w.t.Helper()
	return controllers.Await(w.t, client.ObjectKeyFromObject(p), what, check)
}

func (w *world) awaitNone(p *corev1.Pod) {
	w.t.Helper()
	controllers.AwaitGone(w.t, &v1alpha1.EgressClient{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}})
}

// uses checks that an EgressClient uses exactly these Egresses of namespace internet, and has these
// refusals, given as name and reason.
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

// ready checks the reason of the condition Ready, and words in its message.
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

// served returns the clients that an Egress's gateways serve, as pod and addresses.
func (w *world) served(egress string) (out []string) {
	for _, s := range w.slices(egress) {
		for _, c := range s.Clients {
			out = append(out, strings.TrimPrefix(c.Pod, "shop/")+" "+strings.Join(c.Addresses, ","))
		}
	}
	slices.Sort(out)
	return out
}

// awaitServed waits until an Egress serves exactly these clients.
func (w *world) awaitServed(egress string, want ...string) {
	w.t.Helper()
	slices.Sort(want)
	controllers.AwaitValue(w.t, "clients of "+egress, func() []string { return w.served(egress) }, want)
}

// awaitCounts waits until the status of an Egress has these client counts, and its condition ClientsReady has this
// reason and a message with these words.
func (w *world) awaitCounts(egress string, clients, refused int32, reason string, words ...string) {
	w.t.Helper()
	controllers.Await(w.t, client.ObjectKey{Namespace: "internet", Name: egress}, "has the client counts", func(o *v1alpha1.Egress) error {
		c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionClientsReady)
		if o.Status.Clients != clients || o.Status.RefusedClients != refused || c == nil || c.Reason != reason || !harness.Says(c.Message, words...) {
			return fmt.Errorf("want %d clients, %d refused, and reason %s with %q", clients, refused, reason, words)
		}
		return nil
	})
}
