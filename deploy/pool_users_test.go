package deploy_test

import (
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/test/harness"
)

// roles are what Kubernetes' own roles consist of; nobody adds them up here. The
// last lets pods be made.
var roles = map[string][]string{
	"edit":  {"system:aggregate-to-view", "system:aggregate-to-edit"},
	"admin": {"system:aggregate-to-admin", "system:aggregate-to-view", "system:aggregate-to-edit"},
}

// user is somebody who has one of the roles in one namespace.
func user(t *testing.T, role, namespace string) client.Client {
	t.Helper()
	admin, name := harness.KubeClient(t), role+"-of-"+namespace
	ensure := func(o client.Object) {
		if err := admin.Create(t.Context(), o); !apierrors.IsAlreadyExists(err) {
			harness.OK(t, err)
		}
	}
	ensure(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	for _, r := range roles[role] {
		ensure(&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role + ":" + r},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: r},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
		})
	}
	cfg, err := harness.ControlPlane.ConfigFor(name)
	harness.OK(t, err)
	return harness.KubeClientFor(t, cfg)
}

// denied checks that the user has no right to a resource.
func denied(t *testing.T, err error, resource string) {
	t.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `cannot `) || !strings.Contains(err.Error(), `resource "`+resource+`"`) {
		t.Errorf("got %v\nwant no right to %s", err, resource)
	}
}

// Who edits, or even administers, a namespace can ask for a pool by a pod's
// annotation, which counts only where the pool's own spec lists the namespace;
// that is the daemon's matter. What would give the namespace a pool is out of
// reach: the namespace's annotation, the pool's list, blocks and requests.
func TestUsersOfANamespaceCannotReachAPool(t *testing.T) {
	applyPoolPolicies(t)
	const namespace = "team-a"
	given := addressPool("public", "192.0.2.0/24")
	given.Spec.PodNamespaces = []string{"team-b"}
	harness.OK(t, harness.KubeClient(t).Create(t.Context(), given))
	merge := func(text string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(text)) }
	pod := func(in string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: in, GenerateName: "pod-", Annotations: map[string]string{v1alpha1.AnnotationPool: "public"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}},
		}
	}
	for role := range roles {
		t.Run(role, func(t *testing.T) {
			c := user(t, role, namespace)
			harness.Eventually(t, limit, "the role holds", func() error { return c.Create(t.Context(), pod(namespace)) })
			denied(t, c.Create(t.Context(), pod("default")), "pods")

			here := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
			denied(t, c.Patch(t.Context(), here, merge(`{"metadata": {"annotations": {"berth.dev/pool": "public"}}}`)), "namespaces")
			denied(t, c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "of-my-own"}}), "namespaces")

			denied(t, c.Patch(t.Context(), given.DeepCopy(), merge(`{"spec": {"podNamespaces": ["team-a"]}}`)), "addresspools")
			denied(t, c.Create(t.Context(), addressPool("default", "198.51.100.0/24")), "addresspools")
			denied(t, c.Delete(t.Context(), given.DeepCopy()), "addresspools")
			denied(t, c.Create(t.Context(), blockRequest("mine", "node-1")), "blockrequests")
			denied(t, c.Create(t.Context(), addressBlock("public", 1, "node-1")), "addressblocks")
			as := &authenticationv1.TokenRequest{}
			berthd := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "berthd"}}
			denied(t, c.SubResource("token").Create(t.Context(), berthd, as), "serviceaccounts/token")
		})
	}
}

// Who edits a namespace makes PodNICs there, in VPCs that are for it, and reaches no
// VPC, no status, and no other namespace's.
func TestUsersOfANamespaceHaveItsPodNICs(t *testing.T) {
	applyPortPolicies(t)
	const namespace = "team-c"
	admin := harness.KubeClient(t)
	harness.OK(t, harness.ControlPlane.ApplyObjects(t.Context(), render(t, deploy.PortMode).Of("ClusterRole")))
	mine, others := vpc("mine", namespace), vpc("others", "elsewhere")
	mine.Spec.DefaultSecurityGroups = []string{"open"}
	mine.Spec.NamespaceLimits = []v1alpha1.VPCNamespaceLimits{
		{Namespaces: v1alpha1.VPCNamespaces{Names: []string{"bank"}}, SecurityGroups: []string{"of-the-bank"}},
		{Namespaces: v1alpha1.VPCNamespaces{Names: []string{namespace}}, SecurityGroups: []string{"web"}},
	}
	harness.OK(t, admin.Create(t.Context(), mine))
	harness.OK(t, admin.Create(t.Context(), others))
	in := func(name, vpc string) *v1alpha1.PodNIC {
		n := podNIC(name, "")
		n.Namespace, n.Spec.VPC = namespace, vpc
		return n
	}
	c := user(t, "edit", namespace)
	// What Kubernetes' controller adds up elsewhere, is bound by name here.
	for _, role := range []string{"berth-podnics-view", "berth-podnics-edit"} {
		harness.OK(t, client.IgnoreAlreadyExists(admin.Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "edit-of-" + namespace}},
		})))
	}
	db := in("db", "mine")
	harness.Eventually(t, limit, "the role holds", func() error { return c.Create(t.Context(), db) })
	harness.OK(t, patch(t, c, db, `{"spec":{"securityGroups":["web"]}}`))
	const theirs = "spec.securityGroups: of-the-bank is not for namespace " + namespace + " in VPC mine"
	harness.Eventually(t, limit, "the policy holds", func() error {
		posing := in("posing", "mine")
		posing.Spec.SecurityGroups = []string{"open", "of-the-bank"}
		if err := c.Create(t.Context(), posing, client.DryRunAll); err == nil || !strings.Contains(err.Error(), theirs) {
			return fmt.Errorf("want %s, got %w", theirs, err)
		}
		return nil
	})
	forbidden(t, patch(t, c, db, `{"spec":{"securityGroups":["of-the-bank"]}}`), theirs)
	forbidden(t, c.Create(t.Context(), in("another", "others")), "spec.vpc: VPC others is not for namespace "+namespace)
	forPod := in("for-pod", "mine")
	forPod.Spec.Pod, forPod.Spec.Interface = &v1alpha1.PodReference{Name: "a", UID: "1"}, "eth0"
	forbidden(t, c.Create(t.Context(), forPod), "spec.pod: is set by berth-operator only")
	denied(t, patch(t, c, db, `{"status":{"nodeName":"node-1","portID":"of-another"}}`, "status"), "podnics/status")
	denied(t, c.Create(t.Context(), podNIC("elsewhere", "")), "podnics")
	denied(t, c.Get(t.Context(), client.ObjectKeyFromObject(mine), &v1alpha1.VPC{}), "vpcs")
	denied(t, patch(t, c, others, `{"spec":{"allowedNamespaces":{"names":["*"]}}}`), "vpcs")
	denied(t, c.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "neutron"}, &corev1.Secret{}), "secrets")
	harness.OK(t, patch(t, admin, db, `{"metadata":{"finalizers":["berth.dev/port","example.com/mine"]}}`)) // as the operator has it
	harness.OK(t, c.Delete(t.Context(), db))
	for _, finalizers := range []string{`null`, `["example.com/mine"]`} {
		forbidden(t, patch(t, c, db, `{"metadata":{"finalizers":`+finalizers+`}}`), "metadata.finalizers: berth-operator takes berth.dev/port away once the port is given back")
	}
	harness.OK(t, patch(t, c, db, `{"metadata":{"finalizers":["berth.dev/port"]}}`)) // the user's own
	harness.OK(t, patch(t, admin, db, `{"metadata":{"finalizers":null}}`))
	policy := nicPolicy(namespace)
	harness.OK(t, c.Create(t.Context(), policy))
	harness.OK(t, patch(t, c, policy, `{"spec":{"subnet":"subnet-1"}}`))
	denied(t, patch(t, c, policy, `{"status":{"conditions":null}}`, "status"), "nicpolicies/status")
	denied(t, c.Create(t.Context(), nicPolicy("default")), "nicpolicies")
	viewer := user(t, "view", namespace) // with Berth's part of that role alone
	harness.OK(t, client.IgnoreAlreadyExists(admin.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "view:berth-podnics-view"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "berth-podnics-view"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "view-of-" + namespace}},
	})))
	harness.Eventually(t, limit, "the role of who views holds", func() error {
		return viewer.Get(t.Context(), client.ObjectKeyFromObject(policy), &v1alpha1.NICPolicy{})
	})
	harness.OK(t, viewer.List(t.Context(), &v1alpha1.NICPolicyList{}, client.InNamespace(namespace)))
	denied(t, patch(t, viewer, policy, `{"spec":{"subnet":"subnet-2"}}`), "nicpolicies")
	denied(t, viewer.Delete(t.Context(), policy), "nicpolicies")
	denied(t, viewer.Create(t.Context(), nicPolicy(namespace)), "nicpolicies")
	harness.OK(t, c.Delete(t.Context(), policy))
	for name, label := range map[string]string{"berth-podnics-view": "aggregate-to-view", "berth-podnics-edit": "aggregate-to-edit"} {
		if got := get[rbacv1.ClusterRole](t, deploy.PortMode, "ClusterRole", name); got.Labels["rbac.authorization.k8s.io/"+label] != "true" {
			t.Errorf("%s has the labels %v", name, got.Labels)
		}
	}
}

// Who edits a namespace has its Egresses select pods of other namespaces only as their Namespaces, or that of the
// Egress, say, which nobody writes by that role. A selector of all namespaces an administrator must have allowed.
func TestUsersOfANamespaceSelectNoOthersPods(t *testing.T) {
	applyEgressPolicies(t)
	const namespace = "team-e"
	admin := harness.KubeClient(t)
	objects, err := deploy.Render(egressRelease)
	harness.OK(t, err)
	harness.OK(t, harness.ControlPlane.ApplyObjects(t.Context(), objects.Of("ClusterRole")))
	clients := map[string]client.Client{}
	for role := range roles {
		clients[role] = user(t, role, namespace)
		for _, name := range []string{"berth-egresses-view", "berth-egresses-edit"} { // as Kubernetes' controller adds them up
			harness.OK(t, client.IgnoreAlreadyExists(admin.Create(t.Context(), &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role + ":" + name},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
				Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: role + "-of-" + namespace}},
			})))
		}
	}
	here := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	grant := func(value string) {
		harness.OK(t, patch(t, admin, here, `{"metadata":{"labels":{"berth.dev/egress-may-select":`+value+`}}}`))
	}
	grant("null")
	in := func(name string, namespaces *v1alpha1.LabelSelector) *v1alpha1.Egress {
		e := selecting(name, namespaces)
		e.Namespace, e.Spec.Destinations = namespace, []string{"0.0.0.0/1", "128.0.0.0/1"}
		e.Spec.Template = &v1alpha1.EgressPodTemplate{Spec: &runtime.RawExtension{Raw: []byte(`{"containers":[{"name":"tap","image":"tap"}]}`)}}
		return e
	}
	expression := func(key string, operator string, values ...v1alpha1.LabelValue) *v1alpha1.LabelSelector {
		return &v1alpha1.LabelSelector{MatchExpressions: []v1alpha1.LabelRequirement{{Key: key, Operator: operator, Values: values}}}
	}
	const why = "spec.clients.namespaceSelector: selects namespaces without bounds: add matchLabels, or a matchExpression with the operator In, or have a cluster administrator label namespace team-e with berth.dev/egress-may-select=true"
	for role, c := range clients {
		own := in("own-"+role, nil)
		own.Spec.Clients.PodSelector = &v1alpha1.LabelSelector{}
		harness.Eventually(t, limit, "the role holds", func() error { return c.Create(t.Context(), own) })
		for what, s := range map[string]*v1alpha1.LabelSelector{
			"all": {}, "all with a name": expression("kubernetes.io/metadata.name", "Exists"), "all but one": expression("kubernetes.io/metadata.name", "NotIn", "a"),
			"all without a label": expression("no-such-label", "DoesNotExist"),
		} {
			if err := c.Create(t.Context(), in("taps", s)); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), why) {
				t.Errorf("%s, %s: got %v", role, what, err)
			}
		}
		forbidden(t, patch(t, c, own, `{"spec":{"clients":{"namespaceSelector":{}}}}`), why)
		named := in("named-"+role, expression("kubernetes.io/metadata.name", "In", "shop"))
		harness.OK(t, c.Create(t.Context(), named))
		harness.OK(t, patch(t, c, named, `{"spec":{"clients":{"namespaceSelector":{"matchLabels":{"team":"shop"},"matchExpressions":null}}}}`))
		for _, namespace := range []*corev1.Namespace{here, {ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceDefault}}} {
			denied(t, patch(t, c, namespace, `{"metadata":{"labels":{"berth.dev/egress-may-select":"true"}}}`), "namespaces")
			denied(t, patch(t, c, namespace, `{"metadata":{"annotations":{"berth.dev/egress-selectable-from":"team-e"}}}`), "namespaces")
		}
		denied(t, c.Create(t.Context(), selecting("mine", nil)), "egresses")

		grant(`"true"`)
		all := in("all-"+role, &v1alpha1.LabelSelector{})
		harness.Eventually(t, limit, "the grant is known", func() error { return c.Create(t.Context(), all) })
		grant("null")
		harness.Eventually(t, limit, "the grant is gone", func() error {
			if err := c.Create(t.Context(), in("taps", &v1alpha1.LabelSelector{}), client.DryRunAll); !apierrors.IsForbidden(err) {
				return fmt.Errorf("it is allowed still: %w", err)
			}
			return nil
		})
		harness.OK(t, patch(t, c, all, `{"spec":{"replicas":2}}`)) // one of before
		forbidden(t, patch(t, c, all, `{"spec":{"clients":{"podSelector":{"matchLabels":{"a":"b"}}}}}`), why)
	}
}
