//go:build guest

package guest

import (
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/test/harness"
)

// TestGuestReachesTheAPIServer checks that tests in the machine reach the host's API server, as a user with a certificate
// and as one with a token.
func TestGuestReachesTheAPIServer(t *testing.T) {
	control, err := kube.Remote(os.Getenv(kube.RemoteDir))
	harness.OK(t, err)
	c := harness.KubeClientFor(t, control.Config())
	harness.OK(t, c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "of-the-guest"}}))
	harness.OK(t, c.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "of-the-guest"}}))
	if err := harness.KubeClientFor(t, control.ConfigWithToken("no-such-token")).List(t.Context(), &corev1.NodeList{}); err == nil {
		t.Error("the API server takes any token")
	}
}
