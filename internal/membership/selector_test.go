package membership

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

func TestSelector(t *testing.T) {
	has := func(key, value string) *v1alpha1.LabelSelector {
		return &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{key: v1alpha1.LabelValue(value)}}
	}
	type of = v1alpha1.EgressClientSelector
	for what, tt := range map[string]struct {
		of             *of
		own, web, pods bool // namespace internet, where the Egress is; namespace shop with team: web; a pod with app: web
		other          bool // a pod without labels
	}{
		"not set":          {of: nil},
		"pods":             {&of{PodSelector: has("app", "web")}, true, false, true, false},
		"all of its own":   {&of{PodSelector: &v1alpha1.LabelSelector{}}, true, false, true, true},
		"namespaces":       {&of{NamespaceSelector: has("team", "web")}, false, true, true, true},
		"all namespaces":   {&of{NamespaceSelector: &v1alpha1.LabelSelector{}}, true, true, true, true},
		"pods in them":     {&of{NamespaceSelector: has("team", "web"), PodSelector: has("app", "web")}, false, true, true, false},
		"pods of all":      {&of{NamespaceSelector: &v1alpha1.LabelSelector{}, PodSelector: has("app", "web")}, true, true, true, false},
		"what none has":    {&of{NamespaceSelector: has("team", "db"), PodSelector: has("app", "db")}, false, false, false, false},
		"nothing is asked": {&of{}, true, false, true, true}, // the definition refuses it
	} {
		s, err := NewSelector("internet", tt.of)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		own, web := s.Namespace("internet", nil), s.Namespace("shop", map[string]string{"team": "web"})
		pods, other := s.Pod(map[string]string{"app": "web"}), s.Pod(nil)
		if own != tt.own || web != tt.web || pods != tt.pods || other != tt.other || s.Any() != (tt.of != nil) {
			t.Errorf("%s: own %t, web %t, pods %t, other %t, any %t", what, own, web, pods, other, s.Any())
		}
	}
	bad := &v1alpha1.LabelSelector{MatchExpressions: []v1alpha1.LabelRequirement{{Key: "a", Operator: "Near"}}}
	for field, of := range map[string]*of{"spec.clients.namespaceSelector": {NamespaceSelector: bad}, "spec.clients.podSelector": {PodSelector: bad}} {
		if _, err := NewSelector("internet", of); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestAllows(t *testing.T) {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}}
	for what, tt := range map[string]struct {
		of   *v1alpha1.VPCNamespaces
		want bool
	}{
		"not set":  {nil, false},
		"named":    {&v1alpha1.VPCNamespaces{Names: []string{"db", "shop"}}, true},
		"all":      {&v1alpha1.VPCNamespaces{Names: []string{"*"}}, true},
		"others":   {&v1alpha1.VPCNamespaces{Names: []string{"db"}}, false},
		"selected": {&v1alpha1.VPCNamespaces{Names: []string{"db"}, Selector: selector}, true},
	} {
		if got, err := tt.of.Allows("shop", map[string]string{"team": "web"}); got != tt.want || err != nil {
			t.Errorf("%s: %t, %v", what, got, err)
		}
	}
}
