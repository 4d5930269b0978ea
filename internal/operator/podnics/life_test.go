package podnics

import (
	"errors"
	"fmt"
	"testing"
	"time"

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
	if n := w.Front.Count("Create"); n != 1 {
		t.Errorf("%d calls of Create", n)
	}
}

// A pod that has ended gives its ports back though its object stays.
func TestPodsThatEnd(t *testing.T) {
	w := start(t, Options{})
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		name := "job-" + map[corev1.PodPhase]string{corev1.PodSucceeded: "good", corev1.PodFailed: "bad"}[phase]
		w.pod(name, "")
		w.schedule(name, "node-a")
		o := w.awaitNIC(name, "eth0", "is bound", boundAt("node-a"))
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
	spec, most := specA(), int32(1)
	spec.MaxNICsPerNode = &most
	w.nets.set("a", Opened{Provider: w.Provider, Network: blue, Spec: spec})
	w.pod("first", "")
	w.schedule("first", "node-a")
	w.awaitNIC("first", "eth0", "is bound", boundAt("node-a"))
	w.pod("second", "")
	w.schedule("second", "node-a")
	w.awaitNIC("second", "eth0", "waits", condition(v1alpha1.ConditionBound, metav1.ConditionFalse, reasonNodeLimit, "node-a has 1 NICs"))
	w.awaitEvent("second", reasonNodeLimit, "spec.maxNICsPerNode")
	w.deletePod("first")
	w.awaitNIC("second", "eth0", "is bound", boundAt("node-a"))
}

// A namespace's quota of PodNICs is kept, and the pod told.
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
	if n := w.Front.Count("Create"); n != 1 {
		t.Errorf("%d calls of Create", n)
	}
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
		o = w.awaitObject("db", "is bound again, "+when, func(n *v1alpha1.PodNIC) error {
			if n.Status.PortID == o.Status.PortID {
				return errors.New("is the one before")
			}
			return boundAt("node-a")(n)
		}).DeepCopy()
	}
	w.finish("db-0", corev1.PodRunning)
	seenTo("its pod runs")
	if w.hasEvent("db-0", "NICsRefused") {
		t.Error("a pod that has its NIC was told that it gets none")
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
	w.pod("web", `[{portID: `+given.ID+`}]`)
	w.schedule("web", "node-a")
	o := w.awaitNIC("web", "eth0", "is bound", boundAt("node-a"))
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
