package podnics

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/vpcport"
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
