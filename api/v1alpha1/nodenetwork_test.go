package v1alpha1_test

import (
	"os"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Kube(m)) }

func node(name string) *v1alpha1.NodeNetwork {
	return &v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.NodeNetworkSpec{InstanceID: "i-0123456789abcdef0", InstanceType: "m5.large"},
	}
}

func TestDefaults(t *testing.T) {
	harness.KubeClean(t)
	c := harness.KubeClient(t)
	n := node("node-1")
	harness.OK(t, c.Create(t.Context(), n))
	if e := n.Spec.ENI; e.FirstInterfaceIndex == nil || *e.FirstInterfaceIndex != 1 || e.DeleteOnTermination == nil || !*e.DeleteOnTermination {
		t.Errorf("defaults %+v", e)
	}
}
