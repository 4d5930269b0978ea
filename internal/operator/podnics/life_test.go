package podnics

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/portfake"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// A pod's NIC has a port before the pod has a node, which is bound once it has one, and
// active once it is plugged; it goes with the pod.
func TestLifeOfANIC(t *testing.T) {
	w := start(t, Options{})
	p := w.pod("web", `[{subnet: web}]`)
	o := w.awaitNIC("web", "eth0", "has a port", in(v1alpha1.PhaseCreated))
	if err := condition(v1alpha1.ConditionBound, metav1.ConditionFalse, reasonUnscheduled)(o); err != nil {
		t.Error(err)
	}
	if len(o.OwnerReferences) != 1 || o.OwnerReferences[0].UID != p.UID || o.Labels[v1alpha1.LabelPodUID] != string(p.UID) || !controllerutil.ContainsFinalizer(o, v1alpha1.FinalizerPort) {
		t.Errorf("metadata %+v", o.ObjectMeta)
	}
	w.schedule("web", "node-a")
	o = w.awaitNIC("web", "eth0", "is bound", boundAt("node-a"))
	port := w.All()[0]
	st := o.Status
	if st.PortID != port.ID || !st.Made || st.Host != "node-a" || st.MAC != port.MAC.String() || st.MTU != 1442 || !st.DefaultRoute || st.Interface != "eth0" || st.Pod == nil || st.Pod.UID != string(p.UID) {
		t.Errorf("status %+v of port %+v", st, port)
	}
	if got := fmt.Sprintf("%v %v %+v", st.Addresses, st.Routes, *st.Plug); got != "[{192.168.0.2/24 s-web 192.168.0.1}] [{10.9.0.0/16 192.168.0.254}] {Type:OVS Bridge:br-int Netns: OVN:true TrunkMAC: VLAN:0}" {
		t.Errorf("got %s", got)
	}
	if port.MAC.String() != vpcport.DerivedMAC(cluster, string(o.UID), 0).String() || port.Name != portName(string(o.UID), "default", o.Name) {
		t.Errorf("port %+v", port)
	}
	w.Plug(port.ID, "node-a")
	w.says(o, v1alpha1.NodePlugged)
	o = w.awaitNIC("web", "eth0", "is active", in(v1alpha1.PhaseActive))
	w.deletePod("web")
	w.awaitObject(o.Name, "waits for its node", in(v1alpha1.PhaseReleasing))
	w.says(o, v1alpha1.NodeUnplugged)
	w.awaitGone(o.Name)
	w.awaitPorts(0, "the port goes")
	harness.OK(t, controllers.Same("calls of Create", w.Front.Count("Create"), 1))
}

// A pod that has ended gives its ports back though its object stays.
func TestPodsThatEnd(t *testing.T) {
	w := start(t, Options{})
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		name := "job-" + map[corev1.PodPhase]string{corev1.PodSucceeded: "good", corev1.PodFailed: "bad"}[phase]
		o := w.bound(name, "", "node-a")
		w.finish(name, phase)
		w.awaitGone(o.Name)
	}
	w.awaitPorts(0, "the ports go")
}

// While the provider takes long to make a port, the daemon of the pod's node finds the
// PodNIC already, by which it can say what a pod waits for.
func TestNodeOfACallThatLasts(t *testing.T) {
	w := start(t, Options{})
	hold := make(chan struct{})
	w.Front.Inject(portfake.Fault{Op: "Create", Times: 1, Hang: hold, Err: portfake.Err(vpcport.Transient)})
	w.pod("slow", "")
	w.schedule("slow", "node-a")
	o := w.awaitNIC("slow", "eth0", "names its node", controllers.If(func(o *v1alpha1.PodNIC) bool { return o.Status.NodeName == "node-a" }))
	if o.Status.PortID != "" || o.Status.Phase != v1alpha1.PhasePending {
		t.Errorf("while the port is made: %+v", o.Status)
	}
	close(hold)
	w.awaitNIC("slow", "eth0", "is bound", boundAt("node-a"))
}

// The call for what was edited is made at once.
func TestEditIsNotWaitedFor(t *testing.T) {
	clk := clock.NewFake(time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC))
	states := newNICStates(clk, time.Minute, func(types.NamespacedName) {})
	r := &nicReconciler{o: Options{Clock: clk}, watch: &observer{o: Options{Clock: clk}, states: states}, states: states, calls: newBatcher(clk, func(call, nicplan.Reply) {})}
	o := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db", UID: "u"}, Spec: v1alpha1.PodNICSpec{VPC: "a"}}
	desired := func(group string) nicplan.Desired {
		return nicplan.Desired{Port: vpcport.NewPort{NetworkID: "n-1", Groups: []string{group}}}
	}
	var n nic
	states.with(o, true, func(known *nic) {
		fail(&known.attempts.Failed, clk.Now(), vpcport.ReferenceGone, errors.New("no group g-1"))
		known.attempts.Asked = desired("g-1")
		known.observed.Unclear, known.observed.Looked = false, true
		n = *known
	})
	states.quotas.setComplete(o.UID)
	s := &observation{o: o, opened: Opened{Provider: portfake.New(portfake.Options{})}, desired: desired("g-2"), limits: nicrequest.Limits{Most: 1}}
	if _, err := r.act(t.Context(), s, n); err != nil {
		t.Fatal(err)
	}
	if b := r.calls.byVPC["a"]; b == nil || len(b.waiting[creates]) != 1 {
		t.Errorf("no call is to be made: %+v", b)
	}
}

// A node that has as many NICs of a VPC as it may takes another once one is gone.
func TestNodeLimit(t *testing.T) {
	w := start(t, Options{})
	w.respec(func(s *v1alpha1.VPCSpec) { s.MaxNICsPerNode = new(int32(1)) })
	w.bound("first", "", "node-a")
	w.pod("second", "")
	w.schedule("second", "node-a")
	w.awaitNIC("second", "eth0", "waits", condition(v1alpha1.ConditionBound, metav1.ConditionFalse, reasonNodeLimit, "node-a has 1 NICs"))
	w.awaitEvent("second", reasonNodeLimit, "spec.maxNICsPerNode")
	w.deletePod("first")
	w.awaitNIC("second", "eth0", "is bound", boundAt("node-a"))
}

// A namespace's quota of PodNICs is kept, and the pod has an Event of it.
func TestNamespaceQuota(t *testing.T) {
	w := start(t, Options{})
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "nics"}}
	q.Spec.Hard = corev1.ResourceList{"count/podnics.berth.dev": resource.MustParse("0")}
	harness.OK(t, w.client().Create(t.Context(), q))
	q.Status.Hard, q.Status.Used = q.Spec.Hard, q.Spec.Hard // as Kubernetes' own controller does
	harness.OK(t, w.client().Status().Update(t.Context(), q))
	t.Cleanup(func() { _ = harness.KubeClient(t).Delete(t.Context(), q) })
	w.pod("web", "")
	w.awaitEvent("web", "NICRefused", "exceeded quota")
	harness.OK(t, w.client().Delete(t.Context(), q))
	w.awaitNIC("web", "eth0", "has a port", in(v1alpha1.PhaseCreated))
}

// An operator that is started finds each port again, and makes none.
func TestRestart(t *testing.T) {
	w := start(t, Options{})
	w.pod("web", `[{}, {subnet: web}]`)
	w.schedule("web", "node-a")
	before := map[string]*v1alpha1.PodNIC{}
	for _, name := range []string{"eth0", "eth1"} {
		before[name] = w.awaitNIC("web", name, "is bound", boundAt("node-a"))
	}
	w.end()
	w.Front.ResetCalls()
	w.pod("next", "")
	w.Plug(before["eth0"].Status.PortID, "node-a")
	w.run(Options{})
	w.awaitNIC("next", "eth0", "has a port", in(v1alpha1.PhaseCreated))
	w.awaitNIC("web", "eth0", "is active", in(v1alpha1.PhaseActive))
	for name, o := range before {
		if now := w.nicsOf("web")[name]; now == nil || now.Status.PortID != o.Status.PortID {
			t.Errorf("was %+v, is %+v", o.Status, now)
		}
	}
	w.awaitPorts(3, "no port is made twice")
	harness.OK(t, controllers.Same("calls of Create", w.Front.Count("Create"), 1))
}

// An API server that is away holds up what needs it, and no port is lost.
func TestAPIServerAway(t *testing.T) {
	w := start(t, Options{})
	w.pod("web", "")
	o := w.awaitNIC("web", "eth0", "has a port", in(v1alpha1.PhaseCreated))
	w.schedule("web", "node-a")
	back := harness.WithoutAPIServer(t)
	w.Remove(o.Status.PortID)
	back()
	w.awaitNIC("web", "eth0", "is bound", boundAt("node-a"))
	w.awaitPorts(1, "one port")
}

// A user's PodNIC outlives pods and keeps its port, its address and its MAC address: it
// is the next pod's of that name, on another node, once the node before has unplugged it.
func TestPodNICOutlivesPods(t *testing.T) {
	w := start(t, Options{UnplugGrace: time.Hour})
	w.podnic("db", v1alpha1.PodNICSpec{Addresses: []v1alpha1.NICAddress{{IP: "192.168.0.77"}}})
	first := w.awaitObject("db", "has a port before any pod", in(v1alpha1.PhaseCreated))
	if err := condition(v1alpha1.ConditionBound, metav1.ConditionFalse, reasonNoPod)(first); err != nil {
		t.Error(err)
	}
	w.pod("db-0", `[{name: eth0, nic: db}]`)
	w.schedule("db-0", "node-a")
	o := w.awaitObject("db", "is bound", boundAt("node-a"))
	if st := o.Status; st.Interface != "eth0" || !st.DefaultRoute || st.Addresses[0].CIDR != "192.168.0.77/24" {
		t.Errorf("status %+v", st)
	}
	w.Plug(o.Status.PortID, "node-a")
	w.says(o, v1alpha1.NodePlugged)
	o = w.awaitObject("db", "is active", in(v1alpha1.PhaseActive))
	// By name a second pod waits for the first.
	w.pod("db-1", `[{name: eth0, nic: db}]`)
	w.schedule("db-1", "node-b")
	w.awaitEvent("db-1", "PodNICNotFound", "pod db-0 has PodNIC db")
	w.deletePod("db-0")
	held := w.awaitObject("db", "waits for node-a", condition(v1alpha1.ConditionBound, metav1.ConditionFalse, reasonPlugged, "node-a", "db-0"))
	if held.Status.NodeName != "node-a" || held.Status.Pod.Name != "db-0" || w.All()[0].Host != "node-a" {
		t.Errorf("status %+v", held.Status)
	}
	w.says(o, v1alpha1.NodeUnplugged)
	next := w.awaitObject("db", "is bound for the next pod", boundAt("node-b"))
	if st := next.Status; st.Pod.Name != "db-1" || st.PortID != first.Status.PortID || st.MAC != first.Status.MAC || st.Addresses[0].CIDR != "192.168.0.77/24" || st.Node != nil {
		t.Errorf("status %+v", st)
	}
	w.deletePod("db-1")
	w.awaitObject("db", "is nobody's", func(o *v1alpha1.PodNIC) error {
		if o.Status.Pod != nil || o.Status.NodeName != "" || w.All()[0].Host != "" {
			return errors.New("it is somebody's")
		}
		return in(v1alpha1.PhaseCreated)(o)
	})
	deletePodNIC(t, w, "db")
	w.awaitGone("db")
	w.awaitPorts(0, "the port goes with it")
}

// A user's PodNIC stays with the pod that has it while the pod runs, whatever becomes of
// the namespace's VPC and of the pod's annotations, and is seen to.
func TestPodNICStaysWithItsPod(t *testing.T) {
	w := start(t, Options{})
	w.nameVPC("a")
	w.podnic("db", v1alpha1.PodNICSpec{})
	p := newPod("db-0", `[{name: eth0, nic: db}]`)
	delete(p.Annotations, v1alpha1.AnnotationVPC)
	harness.OK(t, w.client().Create(t.Context(), p))
	w.schedule("db-0", "node-a")
	o := w.awaitObject("db", "is bound", boundAt("node-a"))
	seenTo := func(when string) {
		w.Remove(o.Status.PortID)
		o = w.awaitObject("db", "is bound again, "+when, anotherPort(o.Status.PortID, boundAt("node-a"))).DeepCopy()
	}
	w.finish("db-0", corev1.PodRunning)
	seenTo("its pod runs")
	if w.hasEvent("db-0", "NICsRefused") {
		t.Error("a pod that has its NIC has an Event that it gets none")
	}
	w.nameVPC("")
	seenTo("its namespace has no VPC")
	w.nameVPC("a")
	w.annotate("db-0", `[{name: eth0, nic: db}, {subnett: a}]`)
	seenTo("its pod asks for nonsense besides")
	w.annotate("db-0", `[`)
	seenTo("its pod's annotation cannot be read")
	if o.Status.Interface != "eth0" || o.Status.Pod == nil || o.Status.Pod.Name != "db-0" {
		t.Errorf("status %+v", o.Status)
	}
	w.deletePod("db-0")
	w.awaitObject("db", "is nobody's", func(n *v1alpha1.PodNIC) error {
		if n.Status.Pod != nil {
			return errors.New("it is somebody's")
		}
		return in(v1alpha1.PhaseCreated)(n)
	})
}

// A user's port is bound and given back as it was, and never deleted.
func TestGivenPort(t *testing.T) {
	w := start(t, Options{})
	given := w.AddPort(vpcport.Port{NetworkID: "n-blue", Name: "mine", Tags: []string{vpcport.NamespaceTag(cluster, "default")}, Addresses: []vpcport.FixedIP{{SubnetID: "s-web", IP: web.Gateway.Next()}}})
	o := w.bound("web", `[{portID: `+given.ID+`}]`, "node-a")
	if o.Status.PortID != given.ID || o.Status.Made {
		t.Errorf("status %+v", o.Status)
	}
	w.pod("other", `[{portID: `+given.ID+`}]`)
	w.awaitNIC("other", "eth0", "waits", condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, "Conflict", "default/"+o.Name))
	w.awaitEvent("other", "Conflict", "is in use by PodNIC")
	w.deletePod("web")
	w.awaitNIC("other", "eth0", "has it next", in(v1alpha1.PhaseCreated))
	w.deletePod("other")
	other := w.nicsOf("other")["eth0"]
	if other != nil {
		w.awaitGone(other.Name)
	}
	left := w.All()
	if len(left) != 1 || left[0].ID != given.ID || left[0].Device != "" || left[0].Owner != "" || left[0].Host != "" || w.Front.Count("Delete") > 0 {
		t.Errorf("left are %+v", left)
	}
}

// NICs are added to a pod and removed from it while it runs; one that it has is not
// changed, and the first is not removed: an Event says so.
func TestHotChanges(t *testing.T) {
	w := start(t, Options{})
	first := w.bound("web", `[{subnet: web}]`, "node-a")
	w.annotate("web", `[{subnet: web}, {subnet: small}]`)
	second := w.awaitNIC("web", "eth1", "is bound", boundAt("node-a"))
	if second.Status.DefaultRoute || second.Status.Addresses[0].Subnet != "s-small" {
		t.Errorf("status %+v", second.Status)
	}
	w.annotate("web", `[{subnet: small}, {subnet: small}, {name: eth2}]`)
	w.awaitNIC("web", "eth2", "is bound", boundAt("node-a"))
	w.awaitEvent("web", "NICsRefused", "[0]: eth0 cannot be changed")
	w.annotate("web", `[{name: eth2}]`)
	w.awaitEvent("web", "NICsRefused", "names no NIC eth0")
	w.annotate("web", `[{subnet: web}, {name: eth2}]`)
	w.awaitGone(second.Name)
	w.annotate("web", `[{subnet: web}]`)
	w.awaitPorts(1, "the others go")
	if o := w.nicsOf("web")["eth0"]; o == nil || o.UID != first.UID || o.Status.PortID != first.Status.PortID {
		t.Errorf("was %+v, is %+v", first, o)
	}
}

// What a node says of a NIC is its condition Plugged, and of one that a running pod does not
// get an Event.
func TestPlugged(t *testing.T) {
	w := start(t, Options{})
	w.bound("web", `[{}]`, "node-a")
	w.node(w.nicsOf("web")["eth0"], v1alpha1.PodNICNode{State: v1alpha1.NodeFailed, Reason: "NoBridge", Message: "no such bridge"})
	w.awaitNIC("web", "eth0", "is not plugged", condition(v1alpha1.ConditionPlugged, metav1.ConditionFalse, "NoBridge", "no such bridge"))
	w.node(w.nicsOf("web")["eth0"], v1alpha1.PodNICNode{State: v1alpha1.NodePlugged, HostInterface: "tap1"})
	w.awaitNIC("web", "eth0", "is plugged", condition(v1alpha1.ConditionPlugged, metav1.ConditionTrue, "Plugged", "by node node-a as tap1"))
	if w.hasEvent("web", "NoBridge") {
		t.Error("a pod that starts has an Event of what its ADD says")
	}
	w.finish("web", corev1.PodRunning)
	w.annotate("web", `[{}, {name: eth1}]`)
	w.awaitNIC("web", "eth1", "is bound", boundAt("node-a"))
	w.node(w.nicsOf("web")["eth1"], v1alpha1.PodNICNode{State: v1alpha1.NodeFailed, Reason: "InterfaceExists", Message: "remove it"})
	w.awaitEvent("web", "InterfaceExists", "NIC eth1: remove it")
	w.node(w.nicsOf("web")["eth0"], v1alpha1.PodNICNode{State: v1alpha1.NodePlugged, HostInterface: "tap1", Reason: "AddressChanged", Message: "other addresses"})
	w.awaitNIC("web", "eth0", "is not as its port is", condition(v1alpha1.ConditionPlugged, metav1.ConditionFalse, "AddressChanged", "other addresses"))
}

// A running pod whose first interface got a port in place of a lost one, with another address,
// shows that: Kubernetes knows it by the address of before.
func TestPortMadeAgainWithAnotherAddress(t *testing.T) {
	w := start(t, Options{})
	was := w.bound("web", `[{}, {name: eth1}]`, "node-a")
	w.awaitNIC("web", "eth1", "is bound", boundAt("node-a"))
	plugged := func(name string) {
		w.node(w.nicsOf("web")[name], v1alpha1.PodNICNode{State: v1alpha1.NodePlugged, HostInterface: "tap1"})
	}
	plugged("eth0")
	plugged("eth1")
	ip, _, _ := strings.Cut(was.Status.Addresses[0].CIDR, "/")
	controllers.MergeStatus(t, w.client(), podOf("web"), `{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%q}]}}`, ip, ip)
	for _, name := range []string{"eth0", "eth1"} {
		w.awaitNIC("web", name, "is plugged", condition(v1alpha1.ConditionPlugged, metav1.ConditionTrue, "Plugged"))
	}

	w.Remove(was.Status.PortID)
	w.AddPort(vpcport.Port{NetworkID: blue.ID, Addresses: []vpcport.FixedIP{{SubnetID: web.ID, IP: netip.MustParseAddr(ip)}}})
	now := w.awaitNIC("web", "eth0", "has another port", anotherPort(was.Status.PortID, boundAt("node-a")))
	plugged("eth0")
	w.awaitNIC("web", "eth0", "has another address than the pod", condition(v1alpha1.ConditionPlugged, metav1.ConditionFalse, reasonMoved, now.Status.Addresses[0].CIDR, ip, "recreate the pod"))
	w.awaitEvent("web", reasonMoved, "NIC eth0: port "+now.Status.PortID)
}

// The default route of a pod that runs stays where it is.
func TestDefaultRouteOfARunningPod(t *testing.T) {
	w := start(t, Options{})
	w.pod("web", `[{}, {name: eth1, subnet: small, defaultRoute: true}]`)
	w.schedule("web", "node-a")
	w.awaitNIC("web", "eth1", "is bound", boundAt("node-a"))
	w.awaitNIC("web", "eth0", "is bound", boundAt("node-a"))
	w.finish("web", corev1.PodRunning)
	w.annotate("web", `[{}]`)
	w.awaitEvent("web", "NICsRefused", "lacks eth1, which has the pod's default route")
	w.annotate("web", `[{}, {name: eth1, subnet: small, defaultRoute: true}, {name: eth2}]`)
	w.awaitNIC("web", "eth2", "is bound", boundAt("node-a"))
	for name, o := range w.nicsOf("web") {
		if o.Status.DefaultRoute != (name == "eth1") || o.DeletionTimestamp != nil {
			t.Errorf("%s: %+v", name, o)
		}
	}
	w.bound("db", `[{}]`, "node-a")
	w.finish("db", corev1.PodRunning)
	w.annotate("db", `[{}, {name: eth1, defaultRoute: true}]`)
	w.awaitEvent("db", "NICsRefused", "is true of eth1, which is added")
	if nics := w.nicsOf("db"); len(nics) != 1 || !nics["eth0"].Status.DefaultRoute {
		t.Errorf("it has %+v", nics)
	}
}

// A PodNIC that a user made leaves a running pod that does not name it any more: its status
// says so until the node says that nothing of it is left, and then it is another pod's.
func TestPodNICThatIsGivenUp(t *testing.T) {
	w := start(t, Options{})
	w.podnic("vip", v1alpha1.PodNICSpec{})
	for _, name := range []string{"one", "two"} {
		w.bound(name, `[{}]`, "node-a")
		w.finish(name, corev1.PodRunning)
	}
	w.annotate("one", `[{}, {name: vip, nic: vip}]`)
	o := w.awaitObject("vip", "is bound", boundAt("node-a"))
	w.node(o, v1alpha1.PodNICNode{State: v1alpha1.NodePlugged, HostInterface: "tap1"})
	w.awaitObject("vip", "is plugged", condition(v1alpha1.ConditionPlugged, metav1.ConditionTrue, "Plugged"))
	w.annotate("two", `[{}, {name: vip, nic: vip}]`)
	w.awaitEvent("two", "PodNICNotFound", "pod one has PodNIC vip")
	w.annotate("one", `[{}]`)
	o = w.awaitObject("vip", "is given up", in(v1alpha1.PhaseReleasing))
	if o.Status.Pod == nil || o.Status.Pod.Name != "one" || o.Status.NodeName != "node-a" || o.Status.Interface != "vip" {
		t.Errorf("its node does not find it: %+v", o.Status)
	}
	w.node(o, v1alpha1.PodNICNode{State: v1alpha1.NodeUnplugged})
	o = w.awaitObject("vip", "is the other's", boundAt("node-a"))
	if o.Status.Pod.Name != "two" || o.Status.Node != nil {
		t.Errorf("%+v", o.Status)
	}
}

// A NIC that a person gives other groups has them at the provider.
func TestGroupsOfAPodNIC(t *testing.T) {
	w := start(t, Options{})
	w.pod("web", `[{subnet: web, securityGroup: g-1}]`)
	o := w.awaitNIC("web", "eth0", "has a port", in(v1alpha1.PhaseCreated))
	controllers.Merge(t, o, `{"spec":{"securityGroups":["g-2"]}}`)
	controllers.AwaitValue(t, "the port's groups", func() []string { return w.All()[0].Groups }, []string{"g-2"})
	controllers.Merge(t, o, `{"spec":{"securityGroups":["g-3"]}}`)
	w.awaitNIC("web", "eth0", "says why not", condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, "NotFound", "g-3"))
}

// What a pod may not ask for is said by an Event, and makes nothing.
func TestRefusedPods(t *testing.T) {
	w := start(t, Options{})
	w.nets.set("b", Opened{Provider: w.Provider, Network: blue, Spec: v1alpha1.VPCSpec{}})
	for name, tt := range map[string]struct {
		edit   func(*corev1.Pod)
		reason string
		word   string
	}{
		"unknown-key": {func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationNICs] = `[{subnett: a}]` }, "NICsRefused", "[0].subnett: unknown"},
		"too-many":    {func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationNICs] = `[{}, {}, {}, {}, {}]` }, "NICsRefused", "expected 4 at most"},
		"no-first":    {func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationNICs] = `[{name: net1}]` }, "NICsRefused", "names no NIC eth0"},
		"no-vpc":      {func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationVPC] = "none" }, "VPCNotReady", "there is no VPC none"},
		"not-allowed": {func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationVPC] = "b" }, "NICsRefused", "VPC b is not for namespace default"},
		"host":        {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, "NICsRefused", "spec.hostNetwork"},
		"absent":      {func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationNICs] = `[{name: eth0, nic: absent}]` }, "PodNICNotFound", "there is no PodNIC absent"},
	} {
		p := newPod(name, "")
		tt.edit(p)
		if err := w.client().Create(t.Context(), p); err != nil {
			t.Logf("%s: the API server itself refuses it: %v", name, err)
			continue
		}
		w.awaitEvent(name, tt.reason, tt.word)
		if got := w.nicsOf(name); len(got) > 0 {
			t.Errorf("%s: PodNICs %v", name, got)
		}
	}
	harness.OK(t, controllers.Same("ports", len(w.All()), 0))
	// It goes on once there is what it waits for.
	w.podnic("absent", v1alpha1.PodNICSpec{})
	w.awaitNIC("absent", "eth0", "has a port", in(v1alpha1.PhaseCreated))
}

// A namespace's VPC is that of pods which begin after it was named, and not of those that
// run without.
func TestVPCOfTheNamespace(t *testing.T) {
	w := start(t, Options{})
	w.plain("old", "node-a")
	w.finish("old", corev1.PodRunning)
	w.nameVPC("a")
	w.plain("new", "node-a")
	o := w.awaitNIC("new", "eth0", "is bound", boundAt("node-a"))
	w.nameVPC("")
	w.pod("own", "")
	w.awaitNIC("own", "eth0", "has a port", in(v1alpha1.PhaseCreated))
	harness.OK(t, controllers.Same("NICs of the old pod", len(w.nicsOf("old")), 0))
	if again := w.nicsOf("new")["eth0"]; again == nil || again.UID != o.UID {
		t.Errorf("was %+v, is %+v", o, again)
	}
}

// Pods that run keep their NICs, and the names of these, when an operator is told that the first
// interface is a port from now on, or is none any more.
func TestFirstInterfaceIsTurned(t *testing.T) {
	isPort, isNone := Options{First: nicrequest.First{Name: "eth0", IsPort: true}}, Options{First: nicrequest.First{Name: "eth0"}}
	for name, tt := range map[string]struct {
		before, after Options
		have          []string
		next          string // the name of one more, and of that of a pod that comes
		first         string
	}{
		"ToPorts":   {isNone, isPort, []string{"eth1", "eth2"}, "eth3", "eth0"},
		"FromPorts": {isPort, isNone, []string{"eth0", "eth1"}, "eth2", "eth1"},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, tt.before)
			w.podnic("own", v1alpha1.PodNICSpec{})
			w.pod("web", `[{subnet: web}, {nic: own}]`)
			w.schedule("web", "node-a")
			first := w.awaitNIC("web", tt.have[0], "is bound", boundAt("node-a"))
			own := w.awaitNIC("web", tt.have[1], "is bound", boundAt("node-a"))
			w.finish("web", corev1.PodRunning)
			w.end()
			w.run(tt.after)
			w.annotate("web", `[{subnet: web}, {nic: own}, {subnet: small}]`)
			w.awaitNIC("web", tt.next, "is bound", boundAt("node-a"))
			w.pod("new", `[{subnet: web}]`)
			w.awaitNIC("new", tt.first, "has a port", in(v1alpha1.PhaseCreated))
			harness.OK(t, controllers.Same("NICs of the pod", len(w.nicsOf("web")), 3))
			for i, before := range []*v1alpha1.PodNIC{first, own} {
				now := w.nicsOf("web")[tt.have[i]]
				if now == nil || now.UID != before.UID || now.DeletionTimestamp != nil || now.Status.DefaultRoute != before.Status.DefaultRoute || now.Status.PortID != before.Status.PortID {
					t.Errorf("%s was %+v, is %+v", tt.have[i], before, now)
				}
			}
		})
	}
}

// A pod that takes the name of one that is gone has NICs of its own.
func TestPodIsReplaced(t *testing.T) {
	w := start(t, Options{})
	w.pod("web", "")
	before := w.awaitNIC("web", "eth0", "has a port", in(v1alpha1.PhaseCreated))
	w.deletePod("web")
	w.pod("web", "")
	if o := w.awaitNIC("web", "eth0", "is of its own", another(before, in(v1alpha1.PhaseCreated))); o.Name == before.Name {
		t.Errorf("both are called %s", o.Name)
	}
	w.awaitGone(before.Name)
	w.awaitPorts(1, "one port")
}

// A host's name is that of the Node's label where the VPC says so; a Node without it is
// waited for.
func TestHostLabel(t *testing.T) {
	w := start(t, Options{})
	w.respec(func(s *v1alpha1.VPCSpec) { s.HostLabel = "node-restriction.kubernetes.io/host" })
	w.AddHost("rack-7", ovn)
	w.pod("web", "")
	w.schedule("web", "node-a")
	w.awaitNIC("web", "eth0", "waits", condition(v1alpha1.ConditionBound, metav1.ConditionFalse, reasonNoHost, "node-restriction.kubernetes.io/host"))
	n := controllers.Named[corev1.Node]("node-a")
	controllers.Merge(t, n, `{"metadata":{"labels":{"node-restriction.kubernetes.io/host":"rack-7"}}}`)
	o := w.awaitNIC("web", "eth0", "is bound", boundAt("node-a"))
	if o.Status.Host != "rack-7" || w.All()[0].Host != "rack-7" {
		t.Errorf("status %+v", o.Status)
	}
}

// A VPC that is not open yet is waited for; PodNICs of one that never is can be deleted.
func TestVPCThatIsNotOpen(t *testing.T) {
	w := start(t, Options{})
	w.podnic("db", v1alpha1.PodNICSpec{VPC: "later"})
	w.podnic("typo", v1alpha1.PodNICSpec{VPC: "never"})
	w.awaitObject("db", "waits", condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, reasonVPC, "there is no VPC later"))
	w.awaitObject("typo", "waits", condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, reasonVPC))
	deletePodNIC(t, w, "typo")
	w.awaitGone("typo")
	w.nets.set("later", Opened{Provider: w.Provider, Network: blue, Spec: specA()})
	w.awaitObject("db", "has a port", in(v1alpha1.PhaseCreated))
}

// What was bound stays so in the status while its VPC is not open, as after an operator's
// start: a node can plug it. Its pod has no Event of a VPC that it does not wait for.
func TestVPCThatIsShut(t *testing.T) {
	w := start(t, Options{})
	before := w.bound("web", "", "node-a").Status
	w.podnic("own", v1alpha1.PodNICSpec{})
	w.pod("db", `[{name: eth0, nic: own}]`)
	w.schedule("db", "node-a")
	own := w.awaitObject("own", "is bound", boundAt("node-a")).Status
	check := func(when, late string) {
		w.podnic(late, v1alpha1.PodNICSpec{})
		w.awaitObject(late, "waits", condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, reasonVPC))
		w.pod(late, "")
		w.awaitEvent(late, reasonVPC, "there is no VPC a")
		if diff := cmp.Diff(before, w.nicsOf("web")["eth0"].Status); diff != "" {
			t.Errorf("%s: %s", when, diff)
		}
		if diff := cmp.Diff(own, w.nicsOf("db")["eth0"].Status); diff != "" {
			t.Errorf("%s: %s", when, diff)
		}
	}
	w.nets.shut("a")
	check("shut", "late-1")
	w.end()
	w.run(Options{})
	check("started anew", "late-2")
	for _, pod := range []string{"web", "db"} {
		if w.hasEvent(pod, reasonVPC) {
			t.Errorf("pod %s has an Event of its VPC", pod)
		}
	}
}

// What a provider says that no node can use is not passed on.
func TestLyingProvider(t *testing.T) {
	w := start(t, Options{})
	w.AddHost("node-a", vpcport.Plug{Kind: vpcport.OVS, Bridge: "a-bridge-with-a-name-too-long"})
	w.pod("web", "")
	w.schedule("web", "node-a")
	o := w.awaitNIC("web", "eth0", "is refused", condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, "UnexpectedAnswer", "which no node can have"))
	if o.Status.Plug != nil || o.Status.Phase == v1alpha1.PhaseBound {
		t.Errorf("status %+v", o.Status)
	}
}

func TestCoolUntil(t *testing.T) {
	const grace, cooling = time.Minute, 30 * time.Second
	deleted := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	says := func(state v1alpha1.NodeNICState, port string, after time.Duration) *v1alpha1.PodNICNode {
		return &v1alpha1.PodNICNode{State: state, PortID: port, Since: metav1.NewTime(deleted.Add(after))}
	}
	for name, tt := range map[string]struct {
		says *v1alpha1.PodNICNode
		want time.Duration
	}{
		"nobody says anything":              {nil, cooling},
		"unplugged before":                  {says(v1alpha1.NodeUnplugged, "p", -time.Hour), cooling},
		"unplugged later":                   {says(v1alpha1.NodeUnplugged, "p", 5*time.Second), 5*time.Second + cooling},
		"another port":                      {says(v1alpha1.NodeUnplugged, "q", 5*time.Second), cooling},
		"still plugged, as it was":          {says(v1alpha1.NodePlugged, "p", 5*time.Second), cooling},
		"a node that says it over and over": {says(v1alpha1.NodeUnplugged, "p", time.Hour), grace + cooling},
	} {
		if got := coolUntil(deleted, tt.says, "p", grace, cooling).Sub(deleted); got != tt.want {
			t.Errorf("%s: after %v, want %v", name, got, tt.want)
		}
	}
}
