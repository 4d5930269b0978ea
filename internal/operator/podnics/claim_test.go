package podnics

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/test/harness"
)

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
	if err := w.hasEvent("db-0", "NICsRefused", ""); err == nil {
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
