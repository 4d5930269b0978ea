package deploy_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/test/harness"
)

// asOperator returns a client with the operator's token, restricted by the roles and policies of a mode.
func asOperator(t *testing.T, mode, kind string) client.Client {
	t.Helper()
	return asOperatorOf(t, render(t, mode), kind)
}

// asOperatorOf does the same for rendered objects of any release.
func asOperatorOf(t *testing.T, objects deploy.Objects, kind string) client.Client {
	t.Helper()
	harness.KubeClean(t)
	bindRolesOf(t, objects, true)
	operator := account(t, "berth-operator", "node-1")
	harness.Eventually(t, limit, "roles and policies are in effect", func() error {
		return errors.Join(notBoundMore(t, operator), operator.Create(t.Context(), event("default", kind, "berth-operator"), client.DryRunAll),
			byPolicy(operator.Create(t.Context(), lease("probe"), client.DryRunAll)))
	})
	return operator
}

func lease(name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}}
}

// event returns an Event about a cluster-scoped object.
func event(namespace, kind, reporter string) *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "of-" + reporter},
		EventTime:  metav1.NowMicro(), ReportingController: reporter, ReportingInstance: reporter + "-0",
		Action: "Report", Reason: "Tested", Type: "Normal", Regarding: corev1.ObjectReference{Kind: kind, Name: "node-1"},
	}
}

// rightsTo returns the verbs that an account may use in all namespaces on GROUP/RESOURCE or
// GROUP/RESOURCE/SUBRESOURCE.
func rightsTo(t *testing.T, as client.Client, of string) (may []string) {
	t.Helper()
	parts := append(strings.Split(of, "/"), "")
	for _, verb := range []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"} {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: parts[0], Resource: parts[1], Subresource: parts[2]},
		}}
		harness.OK(t, as.Create(t.Context(), review))
		if review.Status.Allowed {
			may = append(may, verb)
		}
	}
	return may
}

// patch sends a merge patch, as an attacker with a stolen token could.
func patch(t *testing.T, as client.Client, o client.Object, body string, sub ...string) error {
	t.Helper()
	o, p := o.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(body))
	if len(sub) > 0 {
		return as.Status().Patch(t.Context(), o, p)
	}
	return as.Patch(t.Context(), o, p)
}

// The operator's token may write one Lease, its own events about its own kinds, and only necessary metadata: nothing
// that prevents or causes an object's deletion.
func TestOperatorTokenRights(t *testing.T) {
	type try struct {
		name, why string
		do        func() error
	}
	const (
		again    = `{"series":{"count":2,"lastObservedTime":"2026-01-01T00:00:00.000000Z"}}`
		leases   = "may create the Lease berth-operator only, not another"
		metadata = "may not change finalizers"
		denied   = "cannot" // by roles
		owned    = `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"gone","uid":"gone"}]}}`
	)
	admin := harness.KubeClient(t)
	check := func(t *testing.T, operator client.Client, mode, kind string, more []try) {
		t.Helper()
		theirs := event("default", kind, "kubelet")
		harness.OK(t, admin.Create(t.Context(), theirs))
		mine := event("default", kind, "berth-operator")
		harness.OK(t, operator.Create(t.Context(), mine))
		harness.OK(t, patch(t, operator, mine, again))
		own := lease("berth-operator")
		harness.OK(t, client.IgnoreNotFound(admin.Delete(t.Context(), own)))
		harness.OK(t, operator.Create(t.Context(), own))
		harness.OK(t, operator.Update(t.Context(), own))
		harness.OK(t, admin.Delete(t.Context(), own))
		if mode != deploy.PortMode { // NICs of port mode are in all namespaces
			more = append(more, try{"event in another namespace", denied, func() error { return operator.Create(t.Context(), event("kube-system", kind, "berth-operator")) }})
		}
		for _, c := range append(more,
			try{"another Lease", leases, func() error { return operator.Create(t.Context(), lease("another")) }},
			try{"Lease in another namespace", denied, func() error {
				l := lease("berth-operator")
				l.Namespace = "default"
				return operator.Create(t.Context(), l)
			}},
			try{"event as another reporter", "its own events", func() error { return operator.Create(t.Context(), event("default", kind, "scheduler")) }},
			try{"event about another kind", "its own events", func() error { return operator.Create(t.Context(), event("default", "Service", "berth-operator")) }},
			try{"event of another reporter", "its own events", func() error { return patch(t, operator, theirs, again) }},
			try{"finalizer on an event of another reporter", "its own events", func() error { return patch(t, operator, theirs, `{"metadata":{"finalizers":["a/b"]}}`) }},
			try{"secrets", denied, func() error { return operator.List(t.Context(), &corev1.SecretList{}) }},
		) {
			if err := c.do(); !apierrors.IsForbidden(err) {
				t.Errorf("mode %s: %s: error = %v, want it forbidden", mode, c.name, err)
			} else {
				forbidden(t, err, c.why)
			}
		}
	}
	t.Run(deploy.OperatorMode, func(t *testing.T) {
		operator := asOperator(t, deploy.OperatorMode, "Node")
		n := nodeNetwork("node-1")
		n.Finalizers, n.Labels = []string{"example.com/mine"}, map[string]string{"a": "b"}
		harness.OK(t, admin.Create(t.Context(), n))
		t.Cleanup(func() { harness.OK(t, patchAs(admin, n, `{"metadata":{"finalizers":null}}`)) })
		harness.OK(t, patch(t, operator, n, `{"spec":{"ipam":{"available":{"10.0.0.4":{"resource":"eni-1"}}}}}`))
		harness.OK(t, patch(t, operator, n, `{"status":{"eni":{"count":1}}}`, "status"))
		check(t, operator, deploy.OperatorMode, "Node", []try{
			{"finalizer", metadata, func() error { return patch(t, operator, n, `{"metadata":{"finalizers":["example.com/mine","a/b"]}}`) }},
			{"finalizer of another owner", metadata, func() error { return patch(t, operator, n, `{"metadata":{"finalizers":null}}`) }},
			{"owner", metadata, func() error { return patch(t, operator, n, owned) }},
			{"label", metadata, func() error { return patch(t, operator, n, `{"metadata":{"labels":{"a":"c"}}}`) }},
			{"annotation", metadata, func() error { return patch(t, operator, n, `{"metadata":{"annotations":{"a":"c"}}}`) }},
		})
	})
	t.Run(deploy.PoolMode, func(t *testing.T) {
		operator := asOperator(t, deploy.PoolMode, "AddressPool")
		pool, block := addressPool("default", "10.0.0.0/16"), addressBlock("default", 1, "node-1")
		harness.OK(t, admin.Create(t.Context(), pool))
		harness.OK(t, operator.Create(t.Context(), block))
		t.Cleanup(func() { harness.OK(t, patchAs(admin, block, `{"metadata":{"finalizers":null}}`)) })
		harness.OK(t, patch(t, operator, pool, `{"metadata":{"finalizers":["berth.dev/blocks"]}}`))
		harness.OK(t, patch(t, operator, pool, `{"metadata":{"finalizers":null}}`))
		harness.OK(t, patch(t, operator, block, `{"metadata":{"finalizers":["example.com/mine"]}}`))
		more := []try{
			{"subnets of a pool", "spec belongs to people", func() error {
				return patch(t, operator, pool, `{"spec":{"subnets":[{"ipv4":"10.0.0.0/16"},{"ipv4":"10.1.0.0/16"}]}}`)
			}},
			{"delete a pool", denied, func() error { return operator.Delete(t.Context(), pool) }},
			{"finalizer of another owner", metadata, func() error { return patch(t, operator, block, `{"metadata":{"finalizers":null}}`) }},
		}
		for _, o := range []client.Object{pool, block} {
			more = append(more,
				try{o.GetName() + ": finalizer", metadata, func() error { return patch(t, operator, o, `{"metadata":{"finalizers":["example.com/mine","a/b"]}}`) }},
				try{o.GetName() + ": owner", metadata, func() error { return patch(t, operator, o, owned) }},
				try{o.GetName() + ": label", metadata, func() error { return patch(t, operator, o, `{"metadata":{"labels":{"a":"c"}}}`) }},
				try{o.GetName() + ": annotation", metadata, func() error { return patch(t, operator, o, `{"metadata":{"annotations":{"a":"c"}}}`) }},
			)
		}
		check(t, operator, deploy.PoolMode, "AddressPool", more)
	})
	t.Run(deploy.PortMode, func(t *testing.T) {
		operator := asOperator(t, deploy.PortMode, "VPC")
		harness.OK(t, admin.Create(t.Context(), vpc("vpc-1", "*")))
		users, made := podNIC("users", ""), podNIC("made", "a")
		harness.OK(t, admin.Create(t.Context(), users))
		harness.OK(t, operator.Create(t.Context(), made))
		harness.OK(t, patch(t, operator, made, `{"status":{"phase":"Bound","nodeName":"node-1"}}`, "status"))
		harness.OK(t, patch(t, operator, vpc("vpc-1"), `{"status":{"networkID":"id"}}`, "status"))
		harness.OK(t, patch(t, operator, vpc("vpc-1"), `{"metadata":{"finalizers":["berth.dev/nics"]}}`))
		harness.OK(t, patch(t, operator, vpc("vpc-1"), `{"metadata":{"finalizers":null}}`))
		harness.OK(t, operator.Delete(t.Context(), made))
		harness.OK(t, patch(t, operator, made, `{"metadata":{"finalizers":null}}`))
		pod := annotated("a", v1alpha1.AnnotationVPC, "vpc-1")
		harness.OK(t, admin.Create(t.Context(), pod))
		policy := nicPolicy("default")
		harness.OK(t, admin.Create(t.Context(), policy))
		harness.OK(t, patch(t, operator, policy, `{"status":{"conditions":null}}`, "status"))
		harness.OK(t, operator.List(t.Context(), &v1alpha1.NICPolicyList{}))
		harness.OK(t, operator.Get(t.Context(), client.ObjectKeyFromObject(policy), &v1alpha1.NICPolicy{}))
		for of, verbs := range map[string][]string{
			"berth.dev/nicpolicies":                      {"get", "list", "watch"},
			"berth.dev/nicpolicies/status":               {"patch"},
			"vpcresources.k8s.aws/securitygrouppolicies": {"get", "list", "watch"}, // the kind need not be installed
			"/serviceaccounts":                           {"get"},
		} {
			if got := rightsTo(t, operator, of); !slices.Equal(got, verbs) {
				t.Errorf("rights to %s = %v, want %v", of, got, verbs)
			}
		}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "reader"}}
		harness.OK(t, client.IgnoreAlreadyExists(admin.Create(t.Context(), account)))
		harness.OK(t, operator.Get(t.Context(), client.ObjectKeyFromObject(account), account))
		password := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "neutron"}}
		harness.OK(t, admin.Create(t.Context(), password))
		t.Cleanup(func() { harness.OK(t, admin.Delete(context.Background(), password)) })
		harness.OK(t, operator.Get(t.Context(), client.ObjectKeyFromObject(password), password))
		elsewhere := client.ObjectKey{Namespace: "default", Name: "neutron"}
		check(t, operator, deploy.PortMode, "VPC", []try{
			{"spec of a VPC", "spec belongs to people", func() error { return patch(t, operator, vpc("vpc-1"), `{"spec":{"allowedNamespaces":null}}`) }},
			{"create a VPC", denied, func() error { return operator.Create(t.Context(), vpc("vpc-2", "*")) }},
			{"delete a VPC", denied, func() error { return operator.Delete(t.Context(), vpc("vpc-1")) }},
			{"delete a user's NIC", "only PodNICs that it created for a pod", func() error { return operator.Delete(t.Context(), users) }},
			{"delete all NICs", denied, func() error {
				return operator.DeleteAllOf(t.Context(), &v1alpha1.PodNIC{}, client.InNamespace("default"))
			}},
			{"report of a node", "may clear status.node of a PodNIC", func() error {
				return patch(t, operator, users, `{"status":{"node":{"state":"Plugged","portID":"port-1"}}}`, "status")
			}},
			{"create a policy", denied, func() error { return operator.Create(t.Context(), nicPolicy("kube-system")) }},
			{"spec of a policy", denied, func() error { return patch(t, operator, policy, `{"spec":{"vpc":"vpc-2"}}`) }},
			{"delete a policy", denied, func() error { return operator.Delete(t.Context(), policy) }},
			{"list service accounts", denied, func() error { return operator.List(t.Context(), &corev1.ServiceAccountList{}) }},
			{"token of a service account", denied, func() error {
				return operator.SubResource("token").Create(t.Context(), account, &authenticationv1.TokenRequest{})
			}},
			{"delete a pod", denied, func() error { return operator.Delete(t.Context(), pod) }},
			{"annotations of a pod", denied, func() error { return patch(t, operator, pod, `{"metadata":{"annotations":{"a":"b"}}}`) }},
			{"status of a pod", denied, func() error { return patch(t, operator, pod, `{"status":{"phase":"Failed"}}`, "status") }},
			{"VPC of a namespace", denied, func() error {
				return patch(t, operator, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, `{"metadata":{"annotations":{"berth.dev/vpc":"vpc-1"}}}`)
			}},
			{"read a secret in another namespace", denied, func() error { return operator.Get(t.Context(), elsewhere, &corev1.Secret{}) }},
			{"list secrets in its own namespace", denied, func() error {
				return operator.List(t.Context(), &corev1.SecretList{}, client.InNamespace("kube-system"))
			}},
			{"write a secret", denied, func() error { return patch(t, operator, password, `{"stringData":{"password":"a"}}`) }},
			{"create a webhook configuration", denied, func() error {
				return operator.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "mine"}})
			}},
			{"change another webhook configuration", denied, func() error {
				return patch(t, operator, &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "another"}}, `{"webhooks":null}`)
			}},
			{"create a secret", denied, func() error {
				return operator.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "another"}})
			}},
		})
	})
}

// patchAs is like patch, for use after a test's context has ended.
func patchAs(as client.Client, o client.Object, body string) error {
	return client.IgnoreNotFound(as.Patch(context.Background(), o.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(body))))
}
