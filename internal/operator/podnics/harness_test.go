package podnics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/portfake"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
	"github.com/berthnet/berth/test/harness/crashsource"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

func TestMain(m *testing.M) {
	os.Exit(crashsource.Main(func() int { return harness.Kube(m.Run) }, child))
}

const limit = controllers.Limit

const cluster = "test"

// networks are VPCs that are opened by tests.
type networks struct {
	mu   sync.Mutex // guards the fields below
	open map[string]Opened
	tell []func(string)
}

func (n *networks) Of(vpc string) (Opened, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	o, ok := n.open[vpc]
	if !ok {
		return Opened{}, fmt.Errorf("there is no VPC %s", vpc)
	}
	return o, nil
}

func (n *networks) Changed(tell func(string)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tell = append(n.tell, tell)
}

// set opens a VPC, or replaces it by another one of the same name.
func (n *networks) set(vpc string, o Opened) {
	n.mu.Lock()
	if n.open == nil {
		n.open = map[string]Opened{}
	}
	n.open[vpc] = o
	n.mu.Unlock()
	n.changed(vpc)
}

// shut closes a VPC, as if no operator had opened it yet.
func (n *networks) shut(vpc string) {
	n.mu.Lock()
	delete(n.open, vpc)
	n.mu.Unlock()
	n.changed(vpc)
}

func (n *networks) changed(vpc string) {
	n.mu.Lock()
	tell := slices.Clone(n.tell)
	n.mu.Unlock()
	for _, do := range tell {
		do(vpc)
	}
}

var (
	ovn = vpcport.Plug{Kind: vpcport.OVS, Bridge: "br-int", OVN: true}
	web = vpcport.Subnet{
		ID: "s-web", Name: "web", CIDR: netip.MustParsePrefix("192.168.0.0/24"), Gateway: netip.MustParseAddr("192.168.0.1"),
		Routes: []vpcport.Route{{Destination: netip.MustParsePrefix("10.9.0.0/16"), Gateway: netip.MustParseAddr("192.168.0.254")}},
	}
	small = vpcport.Subnet{ID: "s-small", Name: "small", CIDR: netip.MustParsePrefix("192.168.1.0/29"), Gateway: netip.MustParseAddr("192.168.1.1")}
	blue  = vpcport.Network{ID: "n-blue", Name: "blue", MTU: 1442, Subnets: []vpcport.Subnet{web, small}}
)

// world is a provider with the network blue, its VPC a, the Nodes node-a and node-b, and an operator.
type world struct {
	*portfake.Provider
	t       *testing.T
	nets    *networks
	c       *Controller
	end     func()
	daemons controllers.Daemons
}

func newProvider(o portfake.Options) *portfake.Provider {
	p := portfake.New(o)
	p.AddNetwork(blue)
	p.AddGroup("g-1")
	p.AddGroup("g-2")
	p.AddHost("node-a", ovn)
	p.AddHost("node-b", ovn)
	return p
}

func specA() v1alpha1.VPCSpec {
	most := int32(4)
	return v1alpha1.VPCSpec{
		Provider: v1alpha1.ProviderNeutron, Network: "blue", Endpoint: "http://127.0.0.1:9696", Project: "p", DefaultSubnets: []string{"web"}, MaxNICsPerPod: &most,
		AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"default"}},
		NamespaceLimits:   []v1alpha1.VPCNamespaceLimits{{Namespaces: v1alpha1.VPCNamespaces{Names: []string{"default"}}, SecurityGroups: []string{"g-1", "g-2", "g-3", "g-none"}}},
	}
}

func start(t *testing.T, o Options, traits ...portfake.Options) *world {
	t.Helper()
	harness.KubeClean(t)
	var po portfake.Options
	for _, po = range traits {
	}
	w := &world{Provider: newProvider(po), t: t, nets: &networks{}, daemons: controllers.Daemons{}}
	w.nets.set("a", Opened{Provider: w.Provider, Network: blue, Spec: specA()})
	harness.OK(t, w.client().Create(t.Context(), &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: specA()}))
	w.run(o)
	w.makeNode("node-a")
	w.makeNode("node-b")
	return w
}

// run starts an operator with its service account, and the roles and policies of mode port.
func (w *world) run(o Options) {
	w.t.Helper()
	o.Networks = w.nets
	if o.Logger == nil {
		o.Logger = sourcetest.Logger(w.t.Output())
	}
	c, mgr, err := assemble(w.t.Context(), operatorConfig(w.t), o)
	harness.OK(w.t, err)
	w.c, w.end = c, controllers.Run(w.t, mgr)
}

func operatorConfig(t *testing.T) *rest.Config {
	t.Helper()
	return harness.OperatorConfig(t, deploy.PortMode)
}

// assemble sets up an operator that leads.
func assemble(ctx context.Context, cfg *rest.Config, o Options) (*Controller, manager.Manager, error) {
	mgr, err := controllers.Manager(cfg, Watches())
	if err != nil {
		return nil, nil, err
	}
	o.Cluster = cluster
	o.Listing = cmp.Or(o.Listing, time.Second)
	o.Orphans = cmp.Or(o.Orphans, time.Second)
	o.OrphanAge = cmp.Or(o.OrphanAge, time.Second)
	o.UnplugGrace = cmp.Or(o.UnplugGrace, time.Second)
	o.Settle = cmp.Or(o.Settle, time.Second)
	if err := Index(ctx, mgr.GetFieldIndexer()); err != nil {
		return nil, nil, err
	}
	c, err := Setup(mgr, o)
	return c, mgr, err
}

func (w *world) client() client.Client { return harness.KubeClient(w.t) }

func (w *world) makeNode(name string) {
	w.t.Helper()
	controllers.Create(w.t, controllers.Named[corev1.Node](name))
	w.ready(name, corev1.ConditionTrue)
}

func (w *world) ready(node string, is corev1.ConditionStatus) {
	w.t.Helper()
	n := controllers.Named[corev1.Node](node)
	body := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":%q,"reason":"Test","lastTransitionTime":%q}]}}`, is, time.Now().UTC().Format(time.RFC3339))
	harness.OK(w.t, w.client().Status().Patch(w.t.Context(), n, client.RawPatch(types.StrategicMergePatchType, body)))
}

func inDefault(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: "default", Name: name}
}

func podOf(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

// pod creates a pod in namespace default with NICs in VPC a. If nics is "", the pod has no annotation with NICs.
func (w *world) pod(name, nics string) *corev1.Pod {
	w.t.Helper()
	return controllers.Create(w.t, newPod(name, nics))
}

func newPod(name, nics string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{v1alpha1.AnnotationVPC: "a"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if nics != "" {
		p.Annotations[v1alpha1.AnnotationNICs] = nics
	}
	return p
}

func (w *world) schedule(pod, node string) {
	w.t.Helper()
	controllers.Bind(w.t, inDefault(pod), node)
}

// deletePod deletes a pod as a kubelet does, or by force.
func (w *world) deletePod(name string) {
	w.t.Helper()
	controllers.DeletePod(w.t, inDefault(name))
}

// annotate sets the NICs that a pod names. Admission policies may see the annotations of its namespace a little later.
func (w *world) annotate(pod, nics string) {
	w.t.Helper()
	body := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationNICs, nics)
	harness.Eventually(w.t, limit, "the API server admits the annotation", func() error {
		return w.client().Patch(w.t.Context(), podOf(pod), client.RawPatch(types.MergePatchType, body), client.FieldOwner("a-person"))
	})
}

// nameVPC sets the VPC that namespace default names until the test is over; "" removes it.
func (w *world) nameVPC(vpc string) {
	w.t.Helper()
	value := "null"
	if vpc != "" {
		value = fmt.Sprintf("%q", vpc)
		w.t.Cleanup(func() { w.nameVPC("") })
	}
	ns := controllers.Named[corev1.Namespace]("default")
	body := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, v1alpha1.AnnotationVPC, value)
	harness.OK(w.t, w.client().Patch(context.WithoutCancel(w.t.Context()), ns, client.RawPatch(types.MergePatchType, body))) // also runs at the end of the test
}

func (w *world) finish(pod string, phase corev1.PodPhase) {
	w.t.Helper()
	controllers.MergeStatus(w.t, w.client(), podOf(pod), `{"status":{"phase":%q}}`, phase)
}

// podnic creates a PodNIC as a user does.
func (w *world) podnic(name string, spec v1alpha1.PodNICSpec) *v1alpha1.PodNIC {
	w.t.Helper()
	spec.VPC = cmp.Or(spec.VPC, "a")
	return controllers.Create(w.t, &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: spec})
}

// nicsOf returns the PodNICs of a pod by their interface names.
func (w *world) nicsOf(pod string) map[string]*v1alpha1.PodNIC {
	list := &v1alpha1.PodNICList{}
	harness.OK(w.t, w.client().List(w.t.Context(), list, client.InNamespace("default")))
	out := map[string]*v1alpha1.PodNIC{}
	for i := range list.Items {
		o := &list.Items[i]
		if ref := o.Spec.Pod; ref != nil && ref.Name == pod || o.Status.Pod != nil && o.Status.Pod.Name == pod {
			out[cmp.Or(o.Spec.Interface, o.Status.Interface)] = o
		}
	}
	return out
}

// awaitNIC waits until check returns nil for a pod's NIC, and returns the NIC.
func (w *world) awaitNIC(pod, name, what string, check func(*v1alpha1.PodNIC) error) (got *v1alpha1.PodNIC) {
	w.t.Helper()
	harness.Eventually(w.t, limit, pod+"'s "+name+" "+what, func() error {
		o := w.nicsOf(pod)[name]
		if o == nil {
			return errors.New("no such NIC")
		}
		got = o
		if err := check(o); err != nil {
			return fmt.Errorf("%w; status = %+v", err, o.Status)
		}
		return nil
	})
	return got
}

// awaitObject works like awaitNIC for a PodNIC given by its own name.
func (w *world) awaitObject(name, what string, is func(*v1alpha1.PodNIC) error) *v1alpha1.PodNIC {
	w.t.Helper()
	return controllers.Await(w.t, inDefault(name), what, is)
}

// bound creates a pod on a node, and waits until its first NIC is bound.
func (w *world) bound(pod, nics, node string) *v1alpha1.PodNIC {
	w.t.Helper()
	w.pod(pod, nics)
	w.schedule(pod, node)
	return w.awaitNIC(pod, "eth0", "is bound", boundAt(node))
}

// plain creates a pod without NICs on a node.
func (w *world) plain(name, node string) {
	w.t.Helper()
	p := newPod(name, "")
	p.Annotations = nil
	controllers.Create(w.t, p)
	w.schedule(name, node)
}

// anotherPort checks that a NIC's port is not this one, and then calls is.
func anotherPort(than string, then func(*v1alpha1.PodNIC) error) func(*v1alpha1.PodNIC) error {
	return func(o *v1alpha1.PodNIC) error {
		if o.Status.PortID == than {
			return errors.New("still has the previous port")
		}
		return then(o)
	}
}

// another checks that a PodNIC has been recreated, and then calls is.
func another(than *v1alpha1.PodNIC, then func(*v1alpha1.PodNIC) error) func(*v1alpha1.PodNIC) error {
	return func(o *v1alpha1.PodNIC) error {
		if o.UID == than.UID {
			return errors.New("still the previous PodNIC")
		}
		return then(o)
	}
}

func in(phase v1alpha1.PodNICPhase) func(*v1alpha1.PodNIC) error {
	return func(o *v1alpha1.PodNIC) error {
		if o.Status.Phase != phase {
			return fmt.Errorf("phase = %s, want %s", o.Status.Phase, phase)
		}
		return nil
	}
}

// boundAt checks that a NIC is bound to a node, whose daemon can plug it.
func boundAt(node string) func(*v1alpha1.PodNIC) error {
	return func(o *v1alpha1.PodNIC) error {
		st := o.Status
		if st.Phase != v1alpha1.PhaseBound && st.Phase != v1alpha1.PhaseActive || st.NodeName != node || st.Plug == nil || st.PortID == "" {
			return fmt.Errorf("not bound to %s", node)
		}
		return nil
	}
}

// condition checks a condition of a NIC.
var condition = controllers.Has[*v1alpha1.PodNIC]

func (w *world) awaitEvent(pod, reason, word string) {
	w.t.Helper()
	controllers.AwaitEvent(w.t, podOf(pod), reason+": ", word)
}

func (w *world) hasEvent(pod, reason string) bool {
	return slices.ContainsFunc(controllers.Events(w.t, podOf(pod)), func(e string) bool { return strings.HasPrefix(e, reason+": ") })
}

// says writes the state of a NIC as the daemon of its node.
func (w *world) says(o *v1alpha1.PodNIC, state v1alpha1.NodeNICState) {
	w.t.Helper()
	w.node(o, v1alpha1.PodNICNode{State: state})
}

// node writes a whole report about a NIC's port as the daemon of its node.
func (w *world) node(o *v1alpha1.PodNIC, says v1alpha1.PodNICNode) {
	w.t.Helper()
	optional := func(s string) string {
		if s == "" {
			return "null"
		}
		return strconv.Quote(s)
	}
	controllers.MergeStatus(w.t, w.daemons.Of(w.t, o.Status.NodeName), o, `{"status":{"node":{"state":%q,"portID":%q,"hostInterface":%s,"reason":%s,"message":%s}}}`,
		says.State, o.Status.PortID, optional(says.HostInterface), optional(says.Reason), optional(says.Message))
}

func (w *world) awaitPorts(n int, what string) {
	w.t.Helper()
	harness.Eventually(w.t, limit, what, func() error {
		if all := w.All(); len(all) != n {
			return fmt.Errorf("got %d ports, want %d: %+v", len(all), n, all)
		}
		return nil
	})
}

func (w *world) awaitGone(name string) {
	w.t.Helper()
	controllers.AwaitGone(w.t, &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}})
}

// nth returns the n-th address after another one.
func nth(ip netip.Addr, n int) netip.Addr {
	for range n {
		ip = ip.Next()
	}
	return ip
}
