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

// roles are the components of Kubernetes' own roles, which no controller aggregates here. The last
// one allows creating pods.
var roles = map[string][]string{
	"edit":  {"system:aggregate-to-view", "system:aggregate-to-edit"},
	"admin": {"system:aggregate-to-admin", "system:aggregate-to-view", "system:aggregate-to-edit"},
}

// user returns a client for a user with one of the roles in a namespace.
func user(t *testing.T, role, namespace string) client.Client {
	t.Helper()
	admin, name := harness.KubeClient(t), role+"-of-"+namespace
	harness.OK(t, client.IgnoreAlreadyExists(admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})))
	for _, r := range roles[role] {
		bindRole(t, role, namespace, r)
	}
	cfg, err := harness.ControlPlane.ConfigFor(name)
	harness.OK(t, err)
	return harness.KubeClientFor(t, cfg)
}

// bindRole grants a ClusterRole in a namespace to the user of a role.
func bindRole(t *testing.T, role, namespace, name string) {
	t.Helper()
	harness.OK(t, client.IgnoreAlreadyExists(harness.KubeClient(t).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role + ":" + name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: role + "-of-" + namespace}},
	})))
}

// denied asserts that the user has no right to a resource.
func denied(t *testing.T, err error, resource string) {
	t.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `cannot `) || !strings.Contains(err.Error(), `resource "`+resource+`"`) {
		t.Errorf("error = %v\nwant no right to %s", err, resource)
	}
}

// Users with the role edit or admin in a namespace can request a pool with a pod's annotation. The daemon ignores it
// unless the pool's spec lists the namespace. They cannot change anything that would grant the pool: the namespace's
// annotation, the pool's list, blocks and requests.
func TestNamespaceUsersCannotGrantPools(t *testing.T) {
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
			harness.Eventually(t, limit, "the role is in effect", func() error { return c.Create(t.Context(), pod(namespace)) })
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

// Users with the role edit can create PodNICs in their namespace, in VPCs that allow it. They cannot change VPCs,
// statuses, or objects in other namespaces.
func TestNamespaceUsersManagePodNICs(t *testing.T) {
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
	// Bound by name, because no controller aggregates roles here.
	bindRole(t, "edit", namespace, "berth-podnics-view")
	bindRole(t, "edit", namespace, "berth-podnics-edit")
	db := in("db", "mine")
	harness.Eventually(t, limit, "the role is in effect", func() error { return c.Create(t.Context(), db) })
	harness.OK(t, patch(t, c, db, `{"spec":{"securityGroups":["web"]}}`))
	const theirs = "spec.securityGroups: of-the-bank is not for namespace " + namespace + " in VPC mine"
	harness.Eventually(t, limit, "the policy is in effect", func() error {
		posing := in("posing", "mine")
		posing.Spec.SecurityGroups = []string{"open", "of-the-bank"}
		if err := c.Create(t.Context(), posing, client.DryRunAll); err == nil || !strings.Contains(err.Error(), theirs) {
			return fmt.Errorf("error = %[2]w, want %[1]s", theirs, err)
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
	harness.OK(t, patch(t, admin, db, `{"metadata":{"finalizers":["berth.dev/port","example.com/mine"]}}`)) // as set by the operator
	harness.OK(t, c.Delete(t.Context(), db))
	for _, finalizers := range []string{`null`, `["example.com/mine"]`} {
		forbidden(t, patch(t, c, db, `{"metadata":{"finalizers":`+finalizers+`}}`), "metadata.finalizers: berth-operator removes berth.dev/port once the port is released")
	}
	harness.OK(t, patch(t, c, db, `{"metadata":{"finalizers":["berth.dev/port"]}}`)) // the user's own finalizer
	harness.OK(t, patch(t, admin, db, `{"metadata":{"finalizers":null}}`))
	policy := nicPolicy(namespace)
	harness.OK(t, c.Create(t.Context(), policy))
	harness.OK(t, patch(t, c, policy, `{"spec":{"subnet":"subnet-1"}}`))
	denied(t, patch(t, c, policy, `{"status":{"conditions":null}}`, "status"), "nicpolicies/status")
	denied(t, c.Create(t.Context(), nicPolicy("default")), "nicpolicies")
	viewer := user(t, "view", namespace) // the role contains only Berth's rules here
	bindRole(t, "view", namespace, "berth-podnics-view")
	harness.Eventually(t, limit, "the role view is in effect", func() error {
		return viewer.Get(t.Context(), client.ObjectKeyFromObject(policy), &v1alpha1.NICPolicy{})
	})
	harness.OK(t, viewer.List(t.Context(), &v1alpha1.NICPolicyList{}, client.InNamespace(namespace)))
	denied(t, patch(t, viewer, policy, `{"spec":{"subnet":"subnet-2"}}`), "nicpolicies")
	denied(t, viewer.Delete(t.Context(), policy), "nicpolicies")
	denied(t, viewer.Create(t.Context(), nicPolicy(namespace)), "nicpolicies")
	harness.OK(t, c.Delete(t.Context(), policy))
	for name, label := range map[string]string{"berth-podnics-view": "aggregate-to-view", "berth-podnics-edit": "aggregate-to-edit"} {
		if got := one[rbacv1.ClusterRole](t, render(t, deploy.PortMode), name); got.Labels["rbac.authorization.k8s.io/"+label] != "true" {
			t.Errorf("labels of %s = %v", name, got.Labels)
		}
	}
}

// egressUsers applies the chart's roles and policies of Egresses, and returns a client for a user of each role in a namespace.
func egressUsers(t *testing.T, namespace string) map[string]client.Client {
	t.Helper()
	applyEgressPolicies(t)
	objects, err := deploy.Render(egressRelease)
	harness.OK(t, err)
	harness.OK(t, harness.ControlPlane.ApplyObjects(t.Context(), objects.Of("ClusterRole")))
	clients := map[string]client.Client{}
	for role := range roles {
		clients[role] = user(t, role, namespace)
		bindRole(t, role, namespace, "berth-egresses-view") // aggregated by Kubernetes' controller
		bindRole(t, role, namespace, "berth-egresses-edit")
	}
	return clients
}

// Users with the role edit or admin cannot have pods count as clients of Coil's gateways, which are not reported as not served,
// nor end that during a migration: each change of its annotation requires the right to create AddressPools.
func TestNamespaceUsersCannotPretendToMigrate(t *testing.T) {
	const namespace, why = "team-m", "metadata.annotations[migrate.berth.dev/coil-egress]: only users who may create AddressPools may set, change or remove it"
	admin := harness.KubeClient(t)
	for role, c := range egressUsers(t, namespace) {
		migrating := func(name, of string) *v1alpha1.Egress {
			e := egress(name + "-" + role)
			e.Namespace, e.Annotations = namespace, map[string]string{v1alpha1.AnnotationCoilClients: "true"}
			if of != "" {
				e.Annotations[v1alpha1.AnnotationCoilEgress] = of
			}
			return e
		}
		annotate := func(value string) string {
			return `{"metadata":{"annotations":{"` + v1alpha1.AnnotationCoilEgress + `":` + value + `}}}`
		}
		harness.Eventually(t, limit, "role and policy are in effect", func() error {
			if err := c.Create(t.Context(), migrating("another", "1"), client.DryRunAll); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), why) {
				return fmt.Errorf("error = %w, want it forbidden by the policy", err)
			}
			return nil
		})
		own := migrating("own", "")
		harness.OK(t, c.Create(t.Context(), own))
		forbidden(t, patch(t, c, own, annotate(`"1"`)), why)
		forbidden(t, patch(t, c, own, annotate(`""`)), why)

		coils := migrating("coils", "1")
		harness.OK(t, admin.Create(t.Context(), coils))
		forbidden(t, patch(t, c, coils, annotate(`"2"`)), why)
		harness.OK(t, patch(t, admin, coils, annotate(`"2"`)))
		harness.OK(t, patch(t, c, coils, `{"spec":{"replicas":2}}`))
		forbidden(t, patch(t, c, coils, annotate("null")), why)
		forbidden(t, patch(t, c, coils, `{"metadata":{"annotations":null}}`), why)
		harness.OK(t, patch(t, admin, coils, annotate("null")))
	}
}

// Users with the role edit can select pods of other namespaces with an Egress only if those Namespaces consent, or if
// the Egress's own Namespace has the administrator's label. The role does not allow writing Namespaces. A selector
// without bounds requires the label.
func TestNamespaceUsersCannotSelectOtherNamespaces(t *testing.T) {
	const namespace = "team-e"
	clients, admin := egressUsers(t, namespace), harness.KubeClient(t)
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
				t.Errorf("role %s, selector %s: error = %v, want it forbidden", role, what, err)
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
		harness.Eventually(t, limit, "the grant is in effect", func() error { return c.Create(t.Context(), all) })
		grant("null")
		harness.Eventually(t, limit, "the grant is no longer in effect", func() error {
			if err := c.Create(t.Context(), in("taps", &v1alpha1.LabelSelector{}), client.DryRunAll); !apierrors.IsForbidden(err) {
				return fmt.Errorf("still allowed: %w", err)
			}
			return nil
		})
		harness.OK(t, patch(t, c, all, `{"spec":{"replicas":2}}`)) // an existing Egress
		forbidden(t, patch(t, c, all, `{"spec":{"clients":{"podSelector":{"matchLabels":{"a":"b"}}}}}`), why)
	}
}
