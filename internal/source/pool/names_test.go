package pool

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/sourcenode"
)

// Who has another node's token makes requests, for that node, under the names
// that this one uses. It takes others.
func TestNamesOfRequestsThatAnotherNodeTook(t *testing.T) {
	m := newMachine(t)
	m.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "stranger"}})
	m.pool("default", 0, nil, "10.0.0.0/24")
	m.pods(0, 2)
	stranger := harness.KubeClientFor(t, sourcenode.Config(t, "berthd", "stranger"))
	for slot := range maxOutstanding {
		r := &v1alpha1.BlockRequest{
			ObjectMeta: metav1.ObjectMeta{Name: requestName("default", nodeID, slot)},
			Spec:       v1alpha1.BlockRequestSpec{NodeName: "stranger", PoolName: "default"},
		}
		harness.Eventually(t, longest, "a request of the other node's", func() error { return stranger.Create(t.Context(), r) })
	}
	m.startOperator()
	m.start()
	for i := range 3 {
		m.add(i)
	}
	if !(m.Log.Count("another node's") > 0) {
		t.Error("nothing is told of the names")
	}
	m.until("its requests are over", func() bool {
		list := &v1alpha1.BlockRequestList{}
		m.List(list)
		for _, r := range list.Items {
			if r.Spec.NodeName == nodeID {
				return false
			}
		}
		return len(list.Items) == maxOutstanding
	})
}
