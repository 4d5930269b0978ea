package deploy_test

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/test/harness"
)

// templatesInNodeMode enables NodeNetworkTemplates in node mode, without Events of pods.
var templatesInNodeMode = deploy.Release{Values: map[string]any{
	"mode": deploy.NodeMode, "clusterName": "test", "nodeNetworkTemplates": map[string]any{"enabled": true},
	"daemon": map[string]any{"settings": map[string]any{"pod-events": "never"}},
}}

// The token may read templates and Nodes, but not write them.
func TestNodeTokenReadsTemplates(t *testing.T) {
	harness.KubeClean(t)
	objects, err := deploy.Render(templatesInNodeMode)
	harness.OK(t, err)
	admin := harness.KubeClient(t)
	bindRolesOf(t, objects, false)
	node := account(t, "berthd", "node-1")
	harness.Eventually(t, limit, "its roles hold, and no others", func() error {
		return errors.Join(notBoundMore(t, node), node.List(t.Context(), &v1alpha1.NodeNetworkTemplateList{}), node.List(t.Context(), &corev1.NodeList{}))
	})
	o := &v1alpha1.NodeNetworkTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t"}}
	harness.OK(t, admin.Create(t.Context(), o))
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	harness.OK(t, admin.Create(t.Context(), n))
	for what, err := range map[string]error{
		"create a template": node.Create(t.Context(), &v1alpha1.NodeNetworkTemplate{ObjectMeta: metav1.ObjectMeta{Name: "u"}}),
		"change a template": node.Update(t.Context(), o),
		"delete a template": node.Delete(t.Context(), o),
		"label its Node":    node.Update(t.Context(), n),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want no right to it", what, err)
		}
	}
}
