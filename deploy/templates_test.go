package deploy_test

import (
	"errors"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
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

// With the value set, the daemon in node mode applies NodeNetworkTemplates: the CRD is installed
// and the daemon has a token. In operator mode the value has no effect.
func TestTemplatesInNodeMode(t *testing.T) {
	objects, err := deploy.Render(templatesInNodeMode)
	harness.OK(t, err)
	if !load(t, onlyContainer(t, podOf(t, objects, "daemon"))).NodeNetworkTemplates {
		t.Error("berthd does not go by templates")
	}
	daemons, err := deploy.Get[appsv1.DaemonSet](objects, "DaemonSet", "berthd")
	harness.OK(t, err)
	if daemons.Spec.Template.Spec.AutomountServiceAccountToken != nil {
		t.Error("berthd has no token")
	}
	if crds := objects.Of("CustomResourceDefinition"); len(crds) != 1 || crds[0].GetName() != "nodenetworktemplates.berth.dev" {
		t.Errorf("%d definitions", len(crds))
	}
	for _, mode := range []string{deploy.NodeMode, deploy.OperatorMode} {
		text := map[string]string{deploy.NodeMode: "{}", deploy.OperatorMode: "nodeNetworkTemplates: {enabled: true}"}[mode]
		objects := rendered(t, mode, text)
		if load(t, onlyContainer(t, podOf(t, objects, "daemon"))).NodeNetworkTemplates {
			t.Errorf("%s: berthd goes by templates", mode)
		}
		for _, o := range objects.Of("ClusterRole") {
			if o.GetName() == "berthd-templates" {
				t.Errorf("%s: there is a role for it", mode)
			}
		}
	}
	old := templatesInNodeMode
	old.Kubernetes = "v1.31.4"
	if _, err := deploy.Render(old); err == nil || !strings.Contains(err.Error(), "nodeNetworkTemplates.enabled needs Kubernetes 1.32 or later") {
		t.Errorf("on Kubernetes 1.31: %v", err)
	}
}

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
