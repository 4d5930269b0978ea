package nodenetwork

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

// A request has exactly the fields that are given, empty ones too, and the resource version that it was
// decided on.
func TestApplyBody(t *testing.T) {
	o := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "7", Labels: map[string]string{"a": "b"}}}
	got, err := ApplyBody(o, nil, map[string][]string{"released": {}})
	const want = `{"kind":"NodeNetwork","apiVersion":"berth.dev/v1alpha1","metadata":{"name":"n","uid":"u","resourceVersion":"7"},"status":{"released":[]}}`
	if err != nil || string(got) != want {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
}

func TestInstanceOf(t *testing.T) {
	for providerID, want := range map[string]string{"aws:///zone-a/i-0aa": "i-0aa", "k3s://x": "", "": ""} {
		if got := InstanceOf(providerID); got != want {
			t.Errorf("%s: %q, want %q", providerID, got, want)
		}
	}
}
