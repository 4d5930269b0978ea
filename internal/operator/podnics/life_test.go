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

// A pod's NIC has a port before the pod has a node. The port is bound once there is a node, is active once it is plugged, and is
// deleted with the pod.
func TestLifeOfANIC(t *testing.T) {
	w := start(t, Options{})
	p := w.pod("web", `[{subnet: web}]`)
	o := w.awaitNIC("web", "eth0", "has a port", in(v1alpha1.PhaseCreated))
	if err := condition(v1alpha1.ConditionBound, metav1.ConditionFalse, reasonUnscheduled)(o); err != nil {
		t.Error(err)
	}
	if len(o.OwnerReferences) != 1 || o.OwnerReferences[0].UID != p.UID || o.Labels[v1alpha1.LabelPodUID] != string(p.UID) || !controllerutil.ContainsFinalizer(o, v1alpha1.FinalizerPort) {
		t.Errorf("metadata = %+v, want owner, label and finalizer", o.ObjectMeta)
	}
	w.schedule("web", "node-a")
	o = w.awaitNIC("web", "eth0", "is bound", boundAt("node-a"))
	port := w.All()[0]
	st := o.Status
	if st.PortID != port.ID || !st.Made || st.Host != "node-a" || st.MAC != port.MAC.String() || st.MTU != 1442 || !st.DefaultRoute || st.Interface != "eth0" || st.Pod == nil || st.Pod.UID != string(p.UID) {
		t.Errorf("status = %+v does not match port %+v", st, port)
	}
	if got := fmt.Sprintf("%v %v %+v", st.Addresses, st.Routes, *st.Plug); got != "[{192.168.0.2/24 s-web 192.168.0.1}] [{10.9.0.0/16 192.168.0.254}] {Type:OVS Bridge:br-int Netns: OVN:true TrunkMAC: VLAN:0}" {
		t.Errorf("addresses, routes and plug = %s", got)
	}
	if port.MAC.String() != vpcport.DerivedMAC(cluster, string(o.UID), 0).String() || port.Name != vpcport.PortName(string(o.UID), "default", o.Name) {
		t.Errorf("port = %+v, want MAC address and name derived from the PodNIC", port)
	}
	w.Plug(port.ID, "node-a")
	w.says(o, v1alpha1.NodePlugged)
	o = w.awaitNIC("web", "eth0", "is active", in(v1alpha1.PhaseActive))
	w.deletePod("web")
	w.awaitObject(o.Name, "waits for its node", in(v1alpha1.PhaseReleasing))
	w.says(o, v1alpha1.NodeUnplugged)
	w.awaitGone(o.Name)
	w.awaitPorts(0, "port deleted")
	harness.OK(t, controllers.Same("calls of Create", w.Front.Count("Create"), 1))
}

// The ports of a pod that has ended are released although the pod object remains.
func TestEndedPods(t *testing.T) {
	w := start(t, Options{})
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		name := "job-" + map[corev1.PodPhase]string{corev1.PodSucceeded: "good", corev1.PodFailed: "bad"}[phase]
		o := w.bound(name, "", "node-a")
		w.finish(name, phase)
		w.awaitGone(o.Name)
	}
	w.awaitPorts(0, "ports deleted")
}

// While the provider takes long to create a port, the daemon of the pod's node already finds the PodNIC, and can say what the
// pod is waiting for.
func TestPodNICIsVisibleDuringCreation(t *testing.T) {
	w := start(t, Options{})
	hold := make(chan struct{})
	w.Front.Inject(portfake.Fault{Op: "Create", Times: 1, Hang: hold, Err: portfake.Err(vpcport.Transient)})
	w.pod("slow", "")
	w.schedule("slow", "node-a")
	o := w.awaitNIC("slow", "eth0", "names its node", controllers.If(func(o *v1alpha1.PodNIC) bool { return o.Status.NodeName == "node-a" }))
	if o.Status.PortID != "" || o.Status.Phase != v1alpha1.PhasePending {
		t.Errorf("status during the call = %+v, want no port and phase Pending", o.Status)
	}
	close(hold)
	w.awaitNIC("slow", "eth0", "is bound", boundAt("node-a"))
}

// A call caused by an edit is not delayed.
func TestEditsAreNotDelayed(t *testing.T) {
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
		t.Errorf("waiting calls = %+v, want one creation", b)
	}
}

// A node with the maximum number of NICs of a VPC gets another one once one is deleted.
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

// A namespace's quota of PodNICs is respected, and the pod gets an Event.
func TestNamespaceQuota(t *testing.T) {
	w := start(t, Options{})
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "nics"}}
	q.Spec.Hard = corev1.ResourceList{"count/podnics.berth.dev": resource.MustParse("0")}
	harness.OK(t, w.client().Create(t.Context(), q))
	q.Status.Hard, q.Status.Used = q.Spec.Hard, q.Spec.Hard // as the quota controller does
	harness.OK(t, w.client().Status().Update(t.Context(), q))
	t.Cleanup(func() { _ = harness.KubeClient(t).Delete(t.Context(), q) })
	w.pod("web", "")
	w.awaitEvent("web", "NICRefused", "exceeded quota")
	harness.OK(t, w.client().Delete(t.Context(), q))
	w.awaitNIC("web", "eth0", "has a port", in(v1alpha1.PhaseCreated))
}

// A restarted operator finds all ports and creates none.
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
			t.Errorf("NIC changed from %+v to %+v, want the same port", o.Status, now)
		}
	}
	w.awaitPorts(3, "no additional port")
	harness.OK(t, controllers.Same("calls of Create", w.Front.Count("Create"), 1))
}

// An API server outage only delays work that depends on it, and no port is lost.
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

// A user's PodNIC outlives pods and keeps its port, address and MAC address. It is handed to the next pod that names it, on
// another node, once the previous node has unplugged it.
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
		t.Errorf("status = %+v, want eth0 with the fixed address", st)
	}
	w.Plug(o.Status.PortID, "node-a")
	w.says(o, v1alpha1.NodePlugged)
	o = w.awaitObject("db", "is active", in(v1alpha1.PhaseActive))
	// A second pod that names the PodNIC waits for the first.
	w.pod("db-1", `[{name: eth0, nic: db}]`)
	w.schedule("db-1", "node-b")
	w.awaitEvent("db-1", "PodNICNotFound", "pod db-0 has PodNIC db")
	w.deletePod("db-0")
	held := w.awaitObject("db", "waits for node-a", condition(v1alpha1.ConditionBound, metav1.ConditionFalse, reasonPlugged, "node-a", "db-0"))
	if held.Status.NodeName != "node-a" || held.Status.Pod.Name != "db-0" || w.All()[0].Host != "node-a" {
		t.Errorf("status = %+v, want it still bound to node-a for db-0", held.Status)
	}
	w.says(o, v1alpha1.NodeUnplugged)
	next := w.awaitObject("db", "is bound for the next pod", boundAt("node-b"))
	if st := next.Status; st.Pod.Name != "db-1" || st.PortID != first.Status.PortID || st.MAC != first.Status.MAC || st.Addresses[0].CIDR != "192.168.0.77/24" || st.Node != nil {
		t.Errorf("status = %+v, want the same port for db-1", st)
	}
	w.deletePod("db-1")
	w.awaitObject("db", "belongs to no pod", func(o *v1alpha1.PodNIC) error {
		if o.Status.Pod != nil || o.Status.NodeName != "" || w.All()[0].Host != "" {
			return errors.New("belongs to a pod")
		}
		return in(v1alpha1.PhaseCreated)(o)
	})
	deletePodNIC(t, w, "db")
	w.awaitGone("db")
	w.awaitPorts(0, "port deleted with the PodNIC")
}

// A user's PodNIC stays with its running pod whatever happens to the namespace's VPC and the pod's annotations, and is kept in
// its desired state.
func TestPodNICStaysWithItsPod(t *testing.T) {
	w := start(t, Options{})
	w.nameVPC("a")
	w.podnic("db", v1alpha1.PodNICSpec{})
	p := newPod("db-0", `[{name: eth0, nic: db}]`)
	delete(p.Annotations, v1alpha1.AnnotationVPC)
	harness.Eventually(t, controllers.Limit, "the API server's admission knows the namespace's VPC", func() error { return w.client().Create(t.Context(), p) })
	w.schedule("db-0", "node-a")
	o := w.awaitObject("db", "is bound", boundAt("node-a"))
	seenTo := func(when string) {
		w.Remove(o.Status.PortID)
		o = w.awaitObject("db", "is bound again, "+when, anotherPort(o.Status.PortID, boundAt("node-a"))).DeepCopy()
	}
	w.finish("db-0", corev1.PodRunning)
	seenTo("its pod runs")
	if w.hasEvent("db-0", "NICsRefused") {
		t.Error("pod has an Event NICsRefused although it has its NIC")
	}
	w.nameVPC("")
	seenTo("its namespace has no VPC")
	w.nameVPC("a")
	w.annotate("db-0", `[{name: eth0, nic: db}, {subnett: a}]`)
	seenTo("its pod's annotation has an invalid entry")
	w.annotate("db-0", `[`)
	seenTo("its pod's annotation is invalid")
	if o.Status.Interface != "eth0" || o.Status.Pod == nil || o.Status.Pod.Name != "db-0" {
		t.Errorf("status = %+v, want eth0 of db-0", o.Status)
	}
	w.deletePod("db-0")
	w.awaitObject("db", "belongs to no pod", func(n *v1alpha1.PodNIC) error {
		if n.Status.Pod != nil {
			return errors.New("belongs to a pod")
		}
		return in(v1alpha1.PhaseCreated)(n)
	})
}

// A user's port is bound, returned as it was, and never deleted.
func TestGivenPort(t *testing.T) {
	w := start(t, Options{})
	given := w.AddPort(vpcport.Port{NetworkID: "n-blue", Name: "mine", Tags: []string{vpcport.NamespaceTag(cluster, "default")}, Addresses: []vpcport.FixedIP{{SubnetID: "s-web", IP: web.Gateway.Next()}}})
	o := w.bound("web", `[{portID: `+given.ID+`}]`, "node-a")
	if o.Status.PortID != given.ID || o.Status.Made {
		t.Errorf("status = %+v, want the user's port, not created by Berth", o.Status)
	}
	w.pod("other", `[{portID: `+given.ID+`}]`)
	w.awaitNIC("other", "eth0", "waits", condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, "Conflict", "default/"+o.Name))
	w.awaitEvent("other", "Conflict", "is in use by PodNIC")
	w.deletePod("web")
	w.awaitNIC("other", "eth0", "has the port next", in(v1alpha1.PhaseCreated))
	w.deletePod("other")
	other := w.nicsOf("other")["eth0"]
	if other != nil {
		w.awaitGone(other.Name)
	}
	left := w.All()
	if len(left) != 1 || left[0].ID != given.ID || left[0].Device != "" || left[0].Owner != "" || left[0].Host != "" || w.Front.Count("Delete") > 0 {
		t.Errorf("ports = %+v, want the user's port without Berth's marks", left)
	}
}

// NICs can be added to and removed from a running pod. Existing ones are not changed and the first is not removed; an Event
// says so.
func TestHotChanges(t *testing.T) {
	w := start(t, Options{})
	first := w.bound("web", `[{subnet: web}]`, "node-a")
	w.annotate("web", `[{subnet: web}, {subnet: small}]`)
	second := w.awaitNIC("web", "eth1", "is bound", boundAt("node-a"))
	if second.Status.DefaultRoute || second.Status.Addresses[0].Subnet != "s-small" {
		t.Errorf("status = %+v, want an address in s-small without default route", second.Status)
	}
	w.annotate("web", `[{subnet: small}, {subnet: small}, {name: eth2}]`)
	w.awaitNIC("web", "eth2", "is bound", boundAt("node-a"))
	w.awaitEvent("web", "NICsRefused", "[0]: eth0 cannot be changed")
	w.annotate("web", `[{name: eth2}]`)
	w.awaitEvent("web", "NICsRefused", "names no NIC eth0")
	w.annotate("web", `[{subnet: web}, {name: eth2}]`)
	w.awaitGone(second.Name)
	w.annotate("web", `[{subnet: web}]`)
	w.awaitPorts(1, "other ports deleted")
	if o := w.nicsOf("web")["eth0"]; o == nil || o.UID != first.UID || o.Status.PortID != first.Status.PortID {
		t.Errorf("eth0 changed from %+v to %+v", first, o)
	}
}

// A node's report about a NIC becomes its condition Plugged. If a running pod cannot get the NIC, an Event is recorded.
func TestPlugged(t *testing.T) {
	w := start(t, Options{})
	w.bound("web", `[{}]`, "node-a")
	w.node(w.nicsOf("web")["eth0"], v1alpha1.PodNICNode{State: v1alpha1.NodeFailed, Reason: "NoBridge", Message: "no such bridge"})
	w.awaitNIC("web", "eth0", "is not plugged", condition(v1alpha1.ConditionPlugged, metav1.ConditionFalse, "NoBridge", "no such bridge"))
	w.node(w.nicsOf("web")["eth0"], v1alpha1.PodNICNode{State: v1alpha1.NodePlugged, HostInterface: "tap1"})
	w.awaitNIC("web", "eth0", "is plugged", condition(v1alpha1.ConditionPlugged, metav1.ConditionTrue, "Plugged", "by node node-a as tap1"))
	if w.hasEvent("web", "NoBridge") {
		t.Error("starting pod has an Event for an error that its ADD returns")
	}
	w.finish("web", corev1.PodRunning)
	w.annotate("web", `[{}, {name: eth1}]`)
	w.awaitNIC("web", "eth1", "is bound", boundAt("node-a"))
	w.node(w.nicsOf("web")["eth1"], v1alpha1.PodNICNode{State: v1alpha1.NodeFailed, Reason: "InterfaceExists", Message: "remove it"})
	w.awaitEvent("web", "InterfaceExists", "NIC eth1: remove it")
	w.node(w.nicsOf("web")["eth0"], v1alpha1.PodNICNode{State: v1alpha1.NodePlugged, HostInterface: "tap1", Reason: "AddressChanged", Message: "other addresses"})
	w.awaitNIC("web", "eth0", "differs from its port", condition(v1alpha1.ConditionPlugged, metav1.ConditionFalse, "AddressChanged", "other addresses"))
}

// If the first interface of a running pod gets a replacement port with another address, that is reported: Kubernetes still
// knows the pod by the old address.
func TestPortRecreatedWithAnotherAddress(t *testing.T) {
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
	w.awaitNIC("web", "eth0", "reports that its address differs from the pod's", condition(v1alpha1.ConditionPlugged, metav1.ConditionFalse, reasonMoved, now.Status.Addresses[0].CIDR, ip, "recreate the pod"))
	w.awaitEvent("web", reasonMoved, "NIC eth0: port "+now.Status.PortID)
}

// The default route of a running pod stays where it is.
func TestDefaultRouteOfRunningPodIsKept(t *testing.T) {
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
			t.Errorf("NIC %s = %+v, want the default route on eth1 only", name, o)
		}
	}
	w.bound("db", `[{}]`, "node-a")
	w.finish("db", corev1.PodRunning)
	w.annotate("db", `[{}, {name: eth1, defaultRoute: true}]`)
	w.awaitEvent("db", "NICsRefused", "is true of eth1, which is added")
	if nics := w.nicsOf("db"); len(nics) != 1 || !nics["eth0"].Status.DefaultRoute {
		t.Errorf("NICs = %+v, want only eth0 with the default route", nics)
	}
}

// A user's PodNIC leaves a running pod that no longer names it: its status shows that until the node reports that it is
// unplugged. Then another pod gets it.
func TestReleasedPodNIC(t *testing.T) {
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
	o = w.awaitObject("vip", "is being released", in(v1alpha1.PhaseReleasing))
	if o.Status.Pod == nil || o.Status.Pod.Name != "one" || o.Status.NodeName != "node-a" || o.Status.Interface != "vip" {
		t.Errorf("status = %+v, want it to still name the pod and the node", o.Status)
	}
	w.node(o, v1alpha1.PodNICNode{State: v1alpha1.NodeUnplugged})
	o = w.awaitObject("vip", "belongs to the other pod", boundAt("node-a"))
	if o.Status.Pod.Name != "two" || o.Status.Node != nil {
		t.Errorf("status = %+v, want pod two and no report", o.Status)
	}
}

// Changed security groups of a NIC are applied at the provider.
func TestGroupsOfAPodNIC(t *testing.T) {
	w := start(t, Options{})
	w.pod("web", `[{subnet: web, securityGroup: g-1}]`)
	o := w.awaitNIC("web", "eth0", "has a port", in(v1alpha1.PhaseCreated))
	controllers.Merge(t, o, `{"spec":{"securityGroups":["g-2"]}}`)
	controllers.AwaitValue(t, "groups of the port", func() []string { return w.All()[0].Groups }, []string{"g-2"})
	controllers.Merge(t, o, `{"spec":{"securityGroups":["g-3"]}}`)
	w.awaitNIC("web", "eth0", "reports the failure", condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, "NotFound", "g-3"))
}

// A pod with invalid or forbidden requests gets an Event and no NICs.
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
			t.Logf("%s: rejected by the API server: %v", name, err)
			continue
		}
		w.awaitEvent(name, tt.reason, tt.word)
		if got := w.nicsOf(name); len(got) > 0 {
			t.Errorf("%s: PodNICs = %v, want none", name, got)
		}
	}
	harness.OK(t, controllers.Same("ports", len(w.All()), 0))
	// It continues once the missing object exists.
	w.podnic("absent", v1alpha1.PodNICSpec{})
	w.awaitNIC("absent", "eth0", "has a port", in(v1alpha1.PhaseCreated))
}

// A namespace's VPC applies to pods created after it was set, and not to pods that run without it.
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
		t.Errorf("NIC changed from %+v to %+v", o, again)
	}
}

// Running pods keep their NICs and interface names when an operator is configured to make the first interface a port, or no
// longer a port.
func TestFirstInterfaceSettingChanges(t *testing.T) {
	isPort, isNone := Options{First: nicrequest.First{Name: "eth0", IsPort: true}}, Options{First: nicrequest.First{Name: "eth0"}}
	for name, tt := range map[string]struct {
		before, after Options
		have          []string
		next          string // names of an additional interface, and of a new pod's interface
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
					t.Errorf("NIC %s changed from %+v to %+v", tt.have[i], before, now)
				}
			}
		})
	}
}

// A recreated pod with the same name has its own NICs.
func TestPodIsReplaced(t *testing.T) {
	w := start(t, Options{})
	w.pod("web", "")
	before := w.awaitNIC("web", "eth0", "has a port", in(v1alpha1.PhaseCreated))
	w.deletePod("web")
	w.pod("web", "")
	if o := w.awaitNIC("web", "eth0", "is a new PodNIC", another(before, in(v1alpha1.PhaseCreated))); o.Name == before.Name {
		t.Errorf("both PodNICs are called %s", o.Name)
	}
	w.awaitGone(before.Name)
	w.awaitPorts(1, "one port")
}

// A VPC may take host names from a label of the Nodes. Binding waits for a Node without the label.
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
		t.Errorf("host in status = %+v, want rack-7", o.Status)
	}
}

// NICs wait for a VPC that is not open yet. PodNICs of a VPC that is never opened can be deleted.
func TestUnopenedVPC(t *testing.T) {
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

// While its VPC is not open, for example after an operator restart, the status of a bound NIC stays so that a node can plug it.
// Its pod gets no Event about the VPC.
func TestClosedVPC(t *testing.T) {
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
			t.Errorf("%s: status of web's NIC (-before +now):\n%s", when, diff)
		}
		if diff := cmp.Diff(own, w.nicsOf("db")["eth0"].Status); diff != "" {
			t.Errorf("%s: status of db's NIC (-before +now):\n%s", when, diff)
		}
	}
	w.nets.shut("a")
	check("shut", "late-1")
	w.end()
	w.run(Options{})
	check("after a restart", "late-2")
	for _, pod := range []string{"web", "db"} {
		if w.hasEvent(pod, reasonVPC) {
			t.Errorf("pod %s has an Event about its VPC", pod)
		}
	}
}

// A provider's reply that no node can use is not passed on.
func TestUnusableProviderReply(t *testing.T) {
	w := start(t, Options{})
	w.AddHost("node-a", vpcport.Plug{Kind: vpcport.OVS, Bridge: "a-bridge-with-a-name-too-long"})
	w.pod("web", "")
	w.schedule("web", "node-a")
	o := w.awaitNIC("web", "eth0", "reports the invalid reply", condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, "UnexpectedAnswer", "which cannot exist on a node"))
	if o.Status.Plug != nil || o.Status.Phase == v1alpha1.PhaseBound {
		t.Errorf("status = %+v, want it not bound", o.Status)
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
		"no report":                     {nil, cooling},
		"unplugged before the deletion": {says(v1alpha1.NodeUnplugged, "p", -time.Hour), cooling},
		"unplugged after the deletion":  {says(v1alpha1.NodeUnplugged, "p", 5*time.Second), 5*time.Second + cooling},
		"report about another port":     {says(v1alpha1.NodeUnplugged, "q", 5*time.Second), cooling},
		"still plugged":                 {says(v1alpha1.NodePlugged, "p", 5*time.Second), cooling},
		"repeated report":               {says(v1alpha1.NodeUnplugged, "p", time.Hour), grace + cooling},
	} {
		if got := coolUntil(deleted, tt.says, "p", grace, cooling).Sub(deleted); got != tt.want {
			t.Errorf("%s: coolUntil() is %v after the deletion, want %v", name, got, tt.want)
		}
	}
}
