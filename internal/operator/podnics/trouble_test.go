package podnics

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/portfake"
	"github.com/berthnet/berth/test/harness"
)

func deletePodNIC(t *testing.T, w *world, name string) {
	t.Helper()
	harness.OK(t, w.client().Delete(t.Context(), &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}))
}

// A full subnet, an unknown group, a taken address and the gateway's hold up the NICs
// that ask for them, and no others; each goes on when that is over.
func TestTroubleOfOneNIC(t *testing.T) {
	w := start(t, Options{})
	for i := range 5 {
		w.AddPort(vpcport.Port{NetworkID: "n-blue", Addresses: []vpcport.FixedIP{{SubnetID: "s-small", IP: nth(small.Gateway, i+1)}}})
	}
	w.pod("full", `[{subnet: small}]`)
	w.pod("group", `[{subnet: web, securityGroup: g-none}]`)
	w.pod("taken", `[{ip: 192.168.1.4}]`)
	w.pod("gateway", `[{ip: 192.168.0.1}]`)
	w.pod("nowhere", `[{subnet: nowhere}]`)
	for i := range 3 {
		w.pod(fmt.Sprintf("good-%d", i), "")
	}
	for i := range 3 {
		w.awaitNIC(fmt.Sprintf("good-%d", i), "eth0", "has a port", in(v1alpha1.PhaseCreated))
	}
	is := func(reason string, words ...string) func(*v1alpha1.PodNIC) error {
		return condition(v1alpha1.ConditionPortReady, metav1.ConditionFalse, reason, words...)
	}
	w.awaitNIC("full", "eth0", "waits", is("SubnetFull", "s-small"))
	w.awaitNIC("group", "eth0", "waits", is("NotFound", "g-none"))
	w.awaitNIC("taken", "eth0", "waits", is("AddressTaken", "192.168.1.4"))
	w.awaitNIC("gateway", "eth0", "is refused", is(reasonRefused, "is the gateway"))
	w.awaitNIC("nowhere", "eth0", "is refused", is(reasonRefused, "no subnet"))
	w.awaitEvent("full", "SubnetFull", "eth0")
	w.awaitEvent("gateway", reasonRefused, "metadata.annotations[berth.dev/nics][0].ip: 192.168.0.1 is the gateway")
	if err := in(v1alpha1.PhaseFailed)(w.nicsOf("group")["eth0"]); err != nil {
		t.Error(err)
	}
	for _, p := range w.All() {
		if p.Device == "" {
			w.Remove(p.ID)
		}
	}
	w.awaitNIC("full", "eth0", "has a port", in(v1alpha1.PhaseCreated))
	w.awaitNIC("taken", "eth0", "has a port", in(v1alpha1.PhaseCreated))
	w.AddGroup("g-none")
	w.deletePod("group")
	w.pod("group2", `[{subnet: web, securityGroup: g-none}]`)
	w.awaitNIC("group2", "eth0", "has a port", in(v1alpha1.PhaseCreated))
}

// A host without an agent is tried again, and takes the port once it has one.
func TestBindingFails(t *testing.T) {
	w := start(t, Options{})
	w.RemoveHost("node-a")
	w.pod("web", "")
	w.schedule("web", "node-a")
	w.awaitNIC("web", "eth0", "fails to bind", condition(v1alpha1.ConditionBound, metav1.ConditionFalse, reasonBinding, "node-a"))
	w.awaitEvent("web", reasonBinding, "does its agent there live")
	w.AddHost("node-a", ovn)
	w.awaitNIC("web", "eth0", "is bound", boundAt("node-a"))
	if n := w.Front.Count("Update"); n > 12 {
		t.Errorf("%d calls", n)
	}
}

// A port that somebody deletes is made again, with its address and its MAC address; one
// that somebody unbinds or gives other groups is put right.
func TestPortChangedBehindItsBack(t *testing.T) {
	w := start(t, Options{})
	lower := w.AddPort(vpcport.Port{NetworkID: "n-blue", Addresses: []vpcport.FixedIP{{SubnetID: "s-web", IP: nth(web.Gateway, 1)}}})
	w.pod("web", `[{subnet: web, securityGroup: g-1}]`)
	w.schedule("web", "node-a")
	o := w.awaitNIC("web", "eth0", "is bound", boundAt("node-a"))
	w.says(o, v1alpha1.NodePlugged)
	w.Touch(o.Status.PortID, func(p *vpcport.Port) {
		p.Host, p.Binding, p.Groups = "node-b", vpcport.Binding{Result: vpcport.Bound, Plug: ovn}, []string{"g-2"}
	})
	harness.Eventually(t, limit, "it is put right", func() error {
		if p := w.All()[1]; p.Host != "node-a" || !slices.Equal(p.Groups, []string{"g-1"}) {
			return fmt.Errorf("is %+v", p)
		}
		return nil
	})
	w.awaitNIC("web", "eth0", "is bound again", boundAt("node-a"))
	w.Touch(o.Status.PortID, func(p *vpcport.Port) { p.Device = "" })
	harness.Eventually(t, limit, "it has its device again", func() error {
		if p := w.All(); len(p) != 2 || p[1].ID != o.Status.PortID || p[1].Device != vpcport.Device(cluster, string(o.UID)) {
			return fmt.Errorf("there are %+v", p)
		}
		return nil
	})
	w.Remove(lower.ID) // its address would be the next
	w.Remove(o.Status.PortID)
	next := w.awaitNIC("web", "eth0", "is bound again", func(n *v1alpha1.PodNIC) error {
		if n.Status.PortID == o.Status.PortID {
			return errors.New("is the one before")
		}
		return boundAt("node-a")(n)
	})
	if next.Status.MAC != o.Status.MAC || next.Status.Addresses[0] != o.Status.Addresses[0] || !next.Status.Made {
		t.Errorf("was %+v, is %+v", o.Status, next.Status)
	}
}

// A PodNIC that a person deletes while its pod lives gives its port back once the node
// has unplugged it, and comes again.
func TestPodNICDeletedByHand(t *testing.T) {
	w := start(t, Options{})
	w.pod("web", "")
	w.schedule("web", "node-a")
	o := w.awaitNIC("web", "eth0", "is bound", boundAt("node-a"))
	w.says(o, v1alpha1.NodePlugged)
	deletePodNIC(t, w, o.Name)
	w.awaitObject(o.Name, "waits", in(v1alpha1.PhaseReleasing))
	w.says(o, v1alpha1.NodeUnplugged)
	w.awaitNIC("web", "eth0", "comes again", func(n *v1alpha1.PodNIC) error {
		if n.UID == o.UID {
			return errors.New("is the one before")
		}
		return boundAt("node-a")(n)
	})
	w.awaitPorts(1, "one port")
}

// So does that of a pod which is in its namespace's VPC and asks for nothing itself, also when the
// namespace has no VPC any more; one that never had any gets none.
func TestDefaultPodNICDeletedByHand(t *testing.T) {
	w := start(t, Options{})
	plain := func(name string) {
		p := newPod(name, "")
		p.Annotations = nil
		harness.OK(t, w.client().Create(t.Context(), p))
		w.schedule(name, "node-a")
	}
	plain("before")
	w.finish("before", corev1.PodRunning)
	w.nameVPC("a")
	plain("web")
	o := w.awaitNIC("web", "eth0", "is bound", boundAt("node-a"))
	w.finish("web", corev1.PodRunning)
	again := func(when string) {
		deletePodNIC(t, w, o.Name)
		o = w.awaitNIC("web", "eth0", "comes again, "+when, func(n *v1alpha1.PodNIC) error {
			if n.UID == o.UID {
				return errors.New("is the one before")
			}
			return boundAt("node-a")(n)
		})
	}
	again("its pod runs")
	w.end()
	w.run(Options{})
	again("by another operator")
	w.nameVPC("")
	again("its namespace has no VPC")
	if !o.Status.DefaultRoute {
		t.Errorf("status %+v", o.Status)
	}
	if got := w.nicsOf("before"); len(got) > 0 {
		t.Errorf("the pod from before got %v", got)
	}
	w.awaitPorts(1, "one port")
}

// A node that died with a port plugged holds it for the grace, one that is gone or out of
// service not at all.
func TestNodesThatDie(t *testing.T) {
	w := start(t, Options{UnplugGrace: time.Hour})
	plugged := func(pod, node string) *v1alpha1.PodNIC {
		w.pod(pod, "")
		w.schedule(pod, node)
		o := w.awaitNIC(pod, "eth0", "is bound", boundAt(node))
		w.says(o, v1alpha1.NodePlugged)
		return o
	}
	gone, out := plugged("gone", "node-a"), plugged("out", "node-b")
	w.deletePod("gone")
	w.deletePod("out")
	w.awaitObject(gone.Name, "waits", in(v1alpha1.PhaseReleasing))
	w.awaitObject(out.Name, "waits", in(v1alpha1.PhaseReleasing))
	harness.OK(t, w.client().Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}))
	w.awaitGone(gone.Name)
	n := &corev1.Node{}
	harness.OK(t, w.client().Get(t.Context(), client.ObjectKey{Name: "node-b"}, n))
	n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	harness.OK(t, w.client().Update(t.Context(), n))
	w.awaitGone(out.Name)
	w.awaitPorts(0, "no port is left")
}

// Lost replies and calls that fail lead to one port.
func TestFaults(t *testing.T) {
	w := start(t, Options{Listing: time.Hour})
	for _, class := range []vpcport.Class{vpcport.Transient, vpcport.Throttled, vpcport.Stale, vpcport.Conflict} {
		w.Front.Inject(portfake.Fault{Times: 1, Err: portfake.Err(class)})
	}
	w.Front.Inject(portfake.Fault{Op: "Create", Times: 1, Err: portfake.Err(vpcport.Transient), After: true})
	w.pod("web", "")
	w.schedule("web", "node-a")
	harness.Eventually(t, limit, "faults are met", func() error {
		if n := w.Front.Count("Ports", "Create", "Update"); n < 2 {
			return fmt.Errorf("%d calls", n)
		}
		return nil
	})
	w.Front.ClearFaults()
	w.nets.set("a", Opened{Provider: w.Provider, Network: blue, Spec: specA()})
	w.awaitNIC("web", "eth0", "is bound", boundAt("node-a"))
	w.awaitPorts(1, "one port")
}

// hung is a provider that answers no listing.
type hung struct {
	vpcport.Provider
	asked, ended chan struct{} // closed when the first listing begins, and ends
	once         [2]sync.Once
}

func (h *hung) Ports(ctx context.Context, f vpcport.Filter) ([]vpcport.Port, error) {
	h.once[0].Do(func() { close(h.asked) })
	<-ctx.Done()
	h.once[1].Do(func() { close(h.ended) })
	return nil, ctx.Err()
}

// A VPC whose provider does not answer keeps no other from being swept.
func TestSweepOfOneVPCHangs(t *testing.T) {
	w := start(t, Options{})
	h := &hung{Provider: newProvider(portfake.Options{}), asked: make(chan struct{}), ended: make(chan struct{})}
	harness.OK(t, w.client().Create(t.Context(), &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: specA()}))
	w.nets.set("b", Opened{Provider: h, Network: blue, Spec: specA()})
	<-h.asked
	w.AddPort(vpcport.Port{NetworkID: "n-blue", Device: vpcport.Device(cluster, "uid-1"), Owner: vpcport.Owner, MAC: vpcport.DerivedMAC(cluster, "uid-1", 0)})
	w.awaitPorts(0, "the port of no PodNIC goes")
	select {
	case <-h.ended:
		t.Error("the other VPC waited until the listing ended")
	default:
	}
}

// Ports of no PodNIC are looked for less often than ports are listed.
func TestOrphansAreLookedForLessOften(t *testing.T) {
	w := start(t, Options{Orphans: time.Hour})
	orphan := w.AddPort(vpcport.Port{NetworkID: "n-blue", Device: vpcport.Device(cluster, "uid-1"), Owner: vpcport.Owner, MAC: vpcport.DerivedMAC(cluster, "uid-1", 0)})
	w.pod("web", "")
	w.schedule("web", "node-a")
	o := w.awaitNIC("web", "eth0", "is bound", boundAt("node-a"))
	for range 3 { // each seen by a listing, as OrphanAge goes by
		w.Remove(o.Status.PortID)
		before := o.Status.PortID
		o = w.awaitNIC("web", "eth0", "is bound again", func(n *v1alpha1.PodNIC) error {
			if n.Status.PortID == before {
				return errors.New("is the one before")
			}
			return boundAt("node-a")(n)
		})
	}
	if _, err := w.Get(t.Context(), orphan.ID); err != nil {
		t.Errorf("the port of no PodNIC: %v", err)
	}
}

// A port of no PodNIC is deleted after a while; one that a user made loses the marks, whatever
// it is called.
func TestSweep(t *testing.T) {
	w := start(t, Options{})
	port := func(of, uid, name string) vpcport.Port {
		return w.AddPort(vpcport.Port{NetworkID: "n-blue", Device: vpcport.Device(of, uid), Owner: vpcport.Owner, Name: name})
	}
	made := w.AddPort(vpcport.Port{NetworkID: "n-blue", Device: vpcport.Device(cluster, "uid-1"), Owner: vpcport.Owner, MAC: vpcport.DerivedMAC(cluster, "uid-1", 1)})
	named := port(cluster, "uid-2", portName("uid-2", "x", "y"))
	users := []vpcport.Port{
		port(cluster, "uid-3", "mine"),
		port(cluster, "uid-4", "berth/shop/web"),
		port(cluster, "uid-5", portName("uid-2", "x", "y")), // called as one of Berth's was
		port(cluster, "uid-6", "berth/uid-66/x/y"),
	}
	other := port("other", "uid-1", portName("uid-1", "x", "y"))
	for _, u := range users {
		harness.Eventually(t, limit, u.Name+" is given back", func() error {
			if got, err := w.Get(t.Context(), u.ID); err != nil || got.Device != "" || got.Owner != "" {
				return fmt.Errorf("is %+v, %w", got, err)
			}
			return nil
		})
	}
	w.awaitPorts(len(users)+1, "those of no PodNIC go")
	if got, err := w.Get(t.Context(), other.ID); err != nil || got.Device != other.Device {
		t.Errorf("that of another cluster is %+v: %v", got, err)
	}
	for _, p := range []vpcport.Port{made, named} {
		if _, err := w.Get(t.Context(), p.ID); vpcport.ClassOf(err) != vpcport.PortGone {
			t.Errorf("port %s, which Berth made: %v", p.ID, err)
		}
	}
}

// A NIC that is looked at while a call about it lasts is looked at again when its node is to be
// told: the controller's queue drops the later one of two moments.
func TestLookedAtDuringACall(t *testing.T) {
	now := time.Unix(1000, 0)
	c := &nicReconciler{o: Options{Clock: clock.NewFake(now)}}
	o := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7"}}
	got, err := c.during(t.Context(), o, nic{call: callState{inFlight: true, asked: now.Add(-slow / 4)}})
	if want := slow * 3 / 4; err != nil || got.RequeueAfter != want {
		t.Errorf("again after %v, %v; want %v", got.RequeueAfter, err, want)
	}
	if got, err := c.during(t.Context(), o, nic{call: callState{inFlight: true, asked: now}, replaced: "7"}); err != nil || got.RequeueAfter != 0 {
		t.Errorf("before the cache has its last write: again after %v, %v; want not", got.RequeueAfter, err)
	}
}
