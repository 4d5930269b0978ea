package watched

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/berthnet/berth/api/v1alpha1"
)

// Updates of a Node that do not change the extracted state are filtered out.
func TestNodeChanges(t *testing.T) {
	node := func(status corev1.ConditionStatus, provider string) *corev1.Node {
		n := &corev1.Node{Spec: corev1.NodeSpec{ProviderID: provider}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
		return n
	}
	f := nodeChanges(Ready)
	for _, tt := range []struct {
		before, after client.Object
		want          bool
	}{
		{node("True", "a"), node("False", "a"), true},
		{node("True", "a"), node("True", "b"), false},
		{node("True", "a"), &corev1.Pod{}, false},
	} {
		if got := f.Update(event.UpdateEvent{ObjectOld: tt.before, ObjectNew: tt.after}); got != tt.want {
			t.Errorf("Update() from %v to %v = %t", tt.before, tt.after, got)
		}
	}
}

// Two features that need the same kind share its declaration. Two declarations of one kind are an error, as one feature would lack data.
func TestSet(t *testing.T) {
	kinds, err := Set(Nodes, Namespaces, Nodes, WaitingPods)
	if err != nil || len(kinds) != 3 {
		t.Errorf("Set() = %d kinds, %v, want each of three once", len(kinds), err)
	}
	if got := len(ByObject(kinds)); got != 3 {
		t.Errorf("ByObject() = %d kinds, want 3", got)
	}
	if kinds, err := Set(WaitingPods, Nodes, Pods); err != nil || len(kinds) != 2 || kinds[1] != Pods {
		t.Errorf("Set() = %d kinds, %v, want Nodes, and Pods instead of WaitingPods", len(kinds), err)
	}
	if kinds, err := Set(EgressPods, WaitingPods); err != nil || len(kinds) != 1 || kinds[0] != EgressPods {
		t.Errorf("Set() = %d kinds, %v, want only EgressPods", len(kinds), err)
	}
	if kinds, err := Set(Pods, WaitingPods, EgressPods); err != nil || len(kinds) != 1 || kinds[0] != EgressPods {
		t.Errorf("Set() = %d kinds, %v, want only EgressPods", len(kinds), err)
	}
	metadata := &Kind{Object: &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}}}
	if _, err := Set(Namespaces, metadata); err != nil {
		t.Errorf("Set() with metadata of two kinds: %v", err)
	}
	second := &Kind{Object: &corev1.Node{}, List: func() client.ObjectList { return &corev1.NodeList{} }}
	if _, err := Set(Nodes, second); err == nil || !strings.Contains(err.Error(), "Node") {
		t.Errorf("Set() with a second declaration of Nodes: error = %v, want it to name the kind", err)
	}
}

// A trimmed Node keeps the addresses from which requests can come.
func TestTrimNode(t *testing.T) {
	inside, outside := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "192.0.2.1"}
	n := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{inside, {Type: corev1.NodeHostName, Address: "a"}, outside}}}
	if _, err := trimNode(n); err != nil || !slices.Equal(n.Status.Addresses, []corev1.NodeAddress{inside, outside}) {
		t.Errorf("trimNode() leaves addresses %v, %v, want the IP addresses", n.Status.Addresses, err)
	}
}

// A pod trimmed for Egresses keeps everything that the other declarations keep, and a gateway also the reason why it is not ready.
func TestTrimEgressPod(t *testing.T) {
	pod := func() *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "a", Name: "b", Labels: map[string]string{"app": "web"},
			Annotations:     map[string]string{"egress.berth.dev/internet": "nat", "berth.dev/vpc": "blue", "large": "text"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "b-1"}},
			Finalizers:      []string{"a/b"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
		}}
		p.Spec = corev1.PodSpec{NodeName: "node-a", Containers: []corev1.Container{{Name: "c"}}}
		p.Status = corev1.PodStatus{
			Phase: corev1.PodPending, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}, Message: "text",
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady}, {Type: corev1.PodReadyToStartContainers}, {Type: corev1.PodScheduled}, {Type: corev1.ContainersReady}, {Type: corev1.PodInitialized}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}}},
		}
		return p
	}
	plain := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "a", Name: "b", Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"egress.berth.dev/internet": "nat", "berth.dev/vpc": "blue"},
	}}
	plain.Spec.NodeName = "node-a"
	plain.Status = corev1.PodStatus{
		Phase: corev1.PodPending, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}, Conditions: []corev1.PodCondition{{Type: corev1.PodReady}, {Type: corev1.PodReadyToStartContainers}},
	}
	if got, _ := trimEgressPod(pod()); !reflect.DeepEqual(got, plain) {
		t.Errorf("trimEgressPod() = %+v, want %+v", got, plain)
	}
	gateway, in := plain.DeepCopy(), pod()
	in.Labels[v1alpha1.LabelEgress], gateway.Labels[v1alpha1.LabelEgress] = "nat", "nat"
	gateway.OwnerReferences, gateway.Status.ContainerStatuses = in.OwnerReferences, in.Status.ContainerStatuses
	gateway.Status.Conditions = in.Status.Conditions[:4]
	if got, _ := trimEgressPod(in); !reflect.DeepEqual(got, gateway) {
		t.Errorf("trimEgressPod() of a gateway = %+v, want %+v", got, gateway)
	}
}

// Of the fields of unlimited size that users write, only Berth's are kept.
func TestTrim(t *testing.T) {
	both := map[string]string{"berth.dev/a": "1", "egress.berth.dev/name": "2", "notberth.dev/a": "3", "kubectl.kubernetes.io/last-applied-configuration": "4", "app": "5"}
	own := map[string]string{"berth.dev/a": "1", "egress.berth.dev/name": "2"}
	of := func(m map[string]string, managed ...metav1.ManagedFieldsEntry) *v1alpha1.PodNIC {
		return &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Name: "a", Finalizers: []string{"berth.dev/port"}, Annotations: m, Labels: m, ManagedFields: managed}, Spec: v1alpha1.PodNICSpec{VPC: "blue"}}
	}
	for _, in := range []map[string]string{both, own} {
		if got, _ := Trim(of(in, metav1.ManagedFieldsEntry{Manager: "kubectl"})); !reflect.DeepEqual(got, of(own)) {
			t.Errorf("Trim() = %+v, want only Berth's annotations and labels", got)
		}
	}
	if got, _ := Trim(of(map[string]string{"app": "5"})); !reflect.DeepEqual(got, of(nil)) {
		t.Errorf("Trim() = %+v, want no annotations and labels", got)
	}
}
