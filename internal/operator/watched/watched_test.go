package watched

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// An update of a Node that changes nothing of what is asked for is left out.
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
			t.Errorf("%v to %v: %t", tt.before, tt.after, got)
		}
	}
}

// Two features that need one kind share its declaration; two declarations of
// one kind are an error, as one feature would miss what it reads.
func TestSet(t *testing.T) {
	kinds, err := Set(Nodes, Namespaces, Nodes, WaitingPods)
	if err != nil || len(kinds) != 3 {
		t.Errorf("got %d kinds, %v; want each of three once", len(kinds), err)
	}
	if got := len(ByObject(kinds)); got != 3 {
		t.Errorf("the cache has %d kinds, want 3", got)
	}
	if kinds, err := Set(WaitingPods, Nodes, Pods); err != nil || len(kinds) != 2 || kinds[1] != Pods {
		t.Errorf("got %d kinds, %v; want Nodes, and Pods with the waiting ones among them", len(kinds), err)
	}
	metadata := &Kind{Object: &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}}}
	if _, err := Set(Namespaces, metadata); err != nil {
		t.Errorf("metadata of two kinds: %v", err)
	}
	second := &Kind{Object: &corev1.Node{}, List: func() client.ObjectList { return &corev1.NodeList{} }}
	if _, err := Set(Nodes, second); err == nil || !strings.Contains(err.Error(), "Node") {
		t.Errorf("a second declaration of Nodes: %v, want an error that names them", err)
	}
}
