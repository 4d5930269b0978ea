package nodenetworksupplier

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

// put creates an object as a person would.
func (m *machine) put(id string) *v1alpha1.NodeNetwork {
	m.T.Helper()
	o := objectOf(id)
	m.Create(o)
	return o
}

func objectOf(id string) *v1alpha1.NodeNetwork {
	three := int32(3)
	return &v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Spec:       v1alpha1.NodeNetworkSpec{InstanceID: id, InstanceType: itype, ENI: v1alpha1.ENISpec{PreAllocate: &three}},
	}
}

// ofNoUse returns the operator's status of an object whose instance is not the Node's.
func ofNoUse(o *v1alpha1.NodeNetwork) {
	o.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionDegraded, Status: "True", Reason: "AnotherInstance", LastTransitionTime: metav1.Now()}}
}

func (m *machine) putNode(providerID string) *corev1.Node {
	m.T.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Spec: corev1.NodeSpec{ProviderID: providerID}}
	m.Create(n)
	return n
}

// readySays waits until the node is not ready and says why.
func (m *machine) readySays(what string) {
	m.T.Helper()
	m.until("Ready says "+what, func() bool {
		err := m.Ready()
		return err != nil && strings.Contains(err.Error(), what)
	})
}

func TestObjectIsOwnedByTheNode(t *testing.T) {
	m := newMachine(t)
	n := m.putNode("aws:///zone-a/" + instance)
	m.start()
	o := m.appears("the object", func(*v1alpha1.NodeNetwork) bool { return true })
	if len(o.OwnerReferences) != 1 || o.OwnerReferences[0].UID != n.UID || o.OwnerReferences[0].Kind != "Node" {
		t.Errorf("owner references: %+v", o.OwnerReferences)
	}
}

func TestAnObjectOfAPersonStaysAsItIs(t *testing.T) {
	m := newMachine(t)
	before := m.put(instance)
	m.start()
	o := m.appears("the daemon reports", func(o *v1alpha1.NodeNetwork) bool { return o.Status.IPAM.InstanceID == instance })
	if o.UID != before.UID || o.Generation != before.Generation || *o.Spec.ENI.PreAllocate != 3 {
		t.Errorf("the spec was changed: %+v", o.Spec)
	}
}

func TestWaitsForTheObject(t *testing.T) {
	m := newMachine(t)
	m.spec = nil
	m.start()
	m.readySays("create it, or let berthd do so by --auto-create-node-network")
	m.put(instance)
	m.readySays("operator has not reported")
	m.operator(give(10, 10))
	m.add(1)
}

func TestStaleObjectIsNotServed(t *testing.T) {
	m := newMachine(t)
	m.spec = nil
	m.put("i-0ddd")
	m.operator(give(10, 12))
	m.start()
	m.readySays("is of instance i-0ddd")
	m.until("the log says so, once", func() bool { return m.Log.Count("is of instance i-0ddd") == 1 })
	if _, err := m.try(1, 1); err == nil {
		t.Error("a pod got another instance's address")
	}
}

func TestStaleObjectIsReplaced(t *testing.T) {
	m := newMachine(t)
	old := m.put("i-0ddd")
	m.operator(give(10, 12))
	m.start()
	m.readySays("only if the operator's condition Degraded says that the instance belongs to another node or is gone")
	m.operator(ofNoUse)
	o := m.appears("an object of this instance", func(o *v1alpha1.NodeNetwork) bool { return o.Spec.InstanceID == instance })
	if o.UID == old.UID || len(o.Spec.IPAM.Available) > 0 {
		t.Errorf("the object was changed, not replaced: %+v", o)
	}
	m.operator(give(20, 20))
	m.gets(1, 20)
}

// According to the Node, the name is still the other instance's.
func TestStaleObjectOfALiveNodeStays(t *testing.T) {
	m := newMachine(t)
	m.putNode("aws:///zone-a/i-0ddd")
	old := m.put("i-0ddd")
	m.start()
	m.readySays("is the node's name another's?")
	if o := m.object(); o.UID != old.UID {
		t.Error("the object was replaced")
	}
}

// The object is deleted while pods run: they go on, free addresses are served, and the new object gets
// all of them.
func TestObjectIsDeleted(t *testing.T) {
	m := startMachine(t)
	o := m.object()
	m.operator(give(10, 11))
	m.add(1)
	harness.OK(t, m.API.Delete(t.Context(), o))
	m.appears("a new object", func(n *v1alpha1.NodeNetwork) bool { return n.UID != o.UID && n.Status.IPAM.UsedCount == 1 })
	m.add(2)
	m.operator(give(10, 12))
	m.add(3)
	if m.Log.Count("not available to this node any more") > 0 {
		t.Error("addresses were called lost that were not")
	}
}

// Two daemons with the same name do not replace each other's object all the time.
func TestReplacedObjectIsNotReplacedAgain(t *testing.T) {
	m := newMachine(t)
	m.put("i-0ddd")
	m.operator(ofNoUse)
	m.start()
	o := m.appears("an object of this instance", func(o *v1alpha1.NodeNetwork) bool { return o.Spec.InstanceID == instance })
	harness.OK(t, m.API.Delete(t.Context(), o))
	m.until("it gives way to the other daemon's object", func() bool {
		if m.API.Create(t.Context(), objectOf("i-0ddd")) != nil {
			if o := m.find(); o != nil && o.Spec.InstanceID == instance {
				_ = m.API.Delete(t.Context(), o)
				_ = m.API.Create(t.Context(), objectOf("i-0ddd")) // at once: this daemon makes one as soon as it hears
			}
		}
		err := m.Ready()
		return err != nil && strings.Contains(err.Error(), "do two nodes have the same name?")
	})
}

// If the daemon's settings ask for something that is not on the administrator's list, the message has
// field, value and list.
func TestObjectThatIsNotAllowed(t *testing.T) {
	m := newMachine(t)
	m.spec.ENI.SecurityGroups = []string{"sg-0a"}
	m.start()
	const why = "spec.eni.securityGroups has sg-0a, which securityGroups of the ConfigMap kube-system/berthd-allowed does not list"
	m.readySays(why)
	if err := m.Ready(); err == nil || strings.Contains(err.Error(), "apply deploy/chart") {
		t.Errorf("a person is told to do what does not help: %v", err)
	}
}
