package pool

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/sourcenode"
)

func TestRequestNames(t *testing.T) {
	long := strings.Repeat("a-very-long-name.", 14) + "example"
	seen := map[string]bool{}
	for _, node := range []string{"node-1", "node-2", long, long + "2"} {
		for slot := range maxOutstanding {
			name := requestName("pool-1", node, slot)
			if slotOf(name) != slot || seen[name] || len(name) > 90 || !strings.HasPrefix(name, "pool-1-") {
				t.Errorf("request %s of slot %d", name, slot)
			}
			seen[name] = true
		}
	}
	for _, name := range []string{"", "x", "pool-1-8", "pool-1-x", "pool-1--1"} {
		if got := slotOf(name); got != -1 && name != "pool-1--1" {
			t.Errorf("%q is of slot %d", name, got)
		}
	}
}

func TestReadRequest(t *testing.T) {
	condition := func(kind, status string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionStatus(status), Reason: v1alpha1.ReasonPoolExhausted, Message: "full"}
	}
	for _, tc := range []struct {
		name       string
		block      string
		conditions []metav1.Condition
		complete   bool
		failed     string
	}{
		{"new", "", nil, false, ""},
		{"complete", "p-1", []metav1.Condition{condition("Complete", "True")}, true, ""},
		{"half written", "p-1", nil, false, ""},
		{"failed", "", []metav1.Condition{condition("Failed", "True")}, false, "PoolExhausted"},
		{"failed before", "p-1", []metav1.Condition{condition("Failed", "True"), condition("Complete", "True")}, true, ""},
		{"failed no more", "", []metav1.Condition{condition("Failed", "False")}, false, ""},
	} {
		r := readRequest(&v1alpha1.BlockRequest{Status: v1alpha1.BlockRequestStatus{AddressBlockName: tc.block, Conditions: tc.conditions}}, t0)
		if r.complete() != tc.complete || r.failed != tc.failed {
			t.Errorf("%s: complete %v, failed %q", tc.name, r.complete(), r.failed)
		}
	}
}

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
	if !(m.Log.Count("is reserved for this node, is node stranger's") > 0) {
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
