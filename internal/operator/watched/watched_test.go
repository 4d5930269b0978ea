package watched

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

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
	metadata := &Kind{Object: &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}}}
	if _, err := Set(Namespaces, metadata); err != nil {
		t.Errorf("metadata of two kinds: %v", err)
	}
	second := &Kind{Object: &corev1.Node{}, List: func() client.ObjectList { return &corev1.NodeList{} }}
	if _, err := Set(Nodes, second); err == nil || !strings.Contains(err.Error(), "Node") {
		t.Errorf("a second declaration of Nodes: %v, want an error that names them", err)
	}
}
