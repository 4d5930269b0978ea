package podnics

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

func TestCoolUntil(t *testing.T) {
	const grace, cooling = time.Minute, 30 * time.Second
	deleted := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	says := func(state v1alpha1.NodeNICState, port string, after time.Duration) *v1alpha1.PodNICNode {
		return &v1alpha1.PodNICNode{State: state, PortID: port, Since: metav1.NewTime(deleted.Add(after))}
	}
	for name, tt := range map[string]struct {
		says *v1alpha1.PodNICNode
		want time.Duration
	}{
		"nobody says anything":              {nil, cooling},
		"unplugged before":                  {says(v1alpha1.NodeUnplugged, "p", -time.Hour), cooling},
		"unplugged later":                   {says(v1alpha1.NodeUnplugged, "p", 5*time.Second), 5*time.Second + cooling},
		"another port":                      {says(v1alpha1.NodeUnplugged, "q", 5*time.Second), cooling},
		"still plugged, as it was":          {says(v1alpha1.NodePlugged, "p", 5*time.Second), cooling},
		"a node that says it over and over": {says(v1alpha1.NodeUnplugged, "p", time.Hour), grace + cooling},
	} {
		if got := coolUntil(deleted, tt.says, "p", grace, cooling).Sub(deleted); got != tt.want {
			t.Errorf("%s: after %v, want %v", name, got, tt.want)
		}
	}
}
