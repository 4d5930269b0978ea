package deploy_test

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/test/harness"
)

// RBAC has no field selectors: the right to list the pods of a node is the right to read every pod, including its
// environment. So in no mode may a node's token read pods or other objects of users.
func TestNodeTokenCannotReadUserObjects(t *testing.T) {
	harness.KubeClean(t)
	admin := harness.KubeClient(t)
	victim := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "database"},
		Spec: corev1.PodSpec{NodeName: "node-2", Containers: []corev1.Container{{
			Name: "a", Image: "a", Env: []corev1.EnvVar{{Name: "PASSWORD", Value: "secret"}},
		}}},
	}
	harness.Eventually(t, limit, "another node's pod", func() error { return admin.Create(t.Context(), victim) })
	for _, mode := range []string{deploy.PoolMode, deploy.OperatorMode, deploy.PortMode} {
		t.Run(mode, func(t *testing.T) {
			bindRoles(t, mode, false)
			node := account(t, "berthd", "node-1")
			harness.Eventually(t, limit, "only its role is in effect", func() error {
				if err := notBoundMore(t, node); err != nil {
					return err
				}
				err := node.Get(t.Context(), client.ObjectKey{Name: "node-1"}, &corev1.Node{})
				if apierrors.IsForbidden(err) {
					err = node.List(t.Context(), &corev1.NodeList{})
				}
				if apierrors.IsForbidden(err) {
					err = node.List(t.Context(), &v1alpha1.PodNICList{})
				}
				return client.IgnoreNotFound(err)
			})
			for what, err := range map[string]error{
				"one pod":              node.Get(t.Context(), client.ObjectKeyFromObject(victim), &corev1.Pod{}),
				"all pods":             node.List(t.Context(), &corev1.PodList{}),
				"pods of its own node": node.List(t.Context(), &corev1.PodList{}, client.MatchingFields{"spec.nodeName": "node-1"}),
				"metadata of pods":     node.List(t.Context(), metadataOf("Pod")),
				"pods of a namespace":  node.List(t.Context(), &corev1.PodList{}, client.InNamespace("kube-system")),
				"secrets":              node.List(t.Context(), &corev1.SecretList{}),
				"a secret":             node.Get(t.Context(), client.ObjectKeyFromObject(victim), &corev1.Secret{}),
				"service accounts":     node.List(t.Context(), &corev1.ServiceAccountList{}),
				"VPCs":                 node.List(t.Context(), &v1alpha1.VPCList{}),
				"a VPC":                node.Get(t.Context(), client.ObjectKey{Name: "vpc-1"}, &v1alpha1.VPC{}),
				"NICPolicies":          node.List(t.Context(), &v1alpha1.NICPolicyList{}),
				"a NICPolicy":          node.Create(t.Context(), nicPolicy("default")),
				"a NICPolicy's status": node.Status().Patch(t.Context(), nicPolicy("default"), client.RawPatch(types.MergePatchType, []byte(`{"status":{"conditions":null}}`))),
				"a template":           node.Create(t.Context(), &v1alpha1.NodeNetworkTemplate{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}),
				"a label of its Node":  node.Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"pool":"gpu"}}}`))),
			} {
				if !apierrors.IsForbidden(err) {
					t.Errorf("%s: error = %v, want it forbidden", what, err)
				}
			}
		})
	}
}

func metadataOf(kind string) *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind + "List"))
	return list
}

// In port mode, berthd's token reads PodNICs and reports on those of its node.
func TestNodeTokenReportsOnItsNICs(t *testing.T) {
	applyPortPolicies(t)
	admin := harness.KubeClient(t)
	own, other := podNIC("own", ""), podNIC("other", "")
	for _, n := range []*v1alpha1.PodNIC{own, other} {
		harness.OK(t, admin.Create(t.Context(), n))
	}
	bound(t, own, "node-1")
	bound(t, other, "node-2")
	bindRoles(t, deploy.PortMode, true)
	node := account(t, "berthd", "node-1")
	harness.Eventually(t, limit, "only its role is in effect", func() error {
		return errors.Join(notBoundMore(t, node), node.List(t.Context(), &v1alpha1.PodNICList{}))
	})
	var list v1alpha1.PodNICList
	harness.OK(t, node.List(t.Context(), &list, client.MatchingFields{"status.nodeName": "node-1"}))
	if len(list.Items) != 1 || list.Items[0].Name != "own" {
		t.Errorf("PodNICs of node-1 = %v, want own", list.Items)
	}
	harness.OK(t, node.List(t.Context(), &corev1.NamespaceList{}))
	const report = `{"status":{"node":{"state":"Plugged","portID":"port-1"}}}`
	harness.OK(t, patch(t, node, own, report, "status"))
	forbidden(t, patch(t, node, other, report, "status"), "status.nodeName is node-2")
	forbidden(t, patch(t, node, own, `{"status":{"portID":"of-another"}}`, "status"), "may write status.node only")
	forbidden(t, patch(t, node, own, `{"spec":{"securityGroups":["open"]}}`), "cannot patch")
	forbidden(t, node.Create(t.Context(), podNIC("new", "")), "cannot create")
	forbidden(t, node.Delete(t.Context(), own), "cannot delete")
}
