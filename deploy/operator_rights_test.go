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

// asOperator returns a client with the operator's token, limited by the roles and policies of a
// mode.
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
	harness.Eventually(t, limit, "roles and policies hold", func() error {
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

// patch sends a merge patch, as someone with a stolen token could.
func patch(t *testing.T, as client.Client, o client.Object, body string, sub ...string) error {
	t.Helper()
	o, p := o.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(body))
	if len(sub) > 0 {
		return as.Status().Patch(t.Context(), o, p)
	}
	return as.Patch(t.Context(), o, p)
}

// The operator's token may write one Lease, its own events about its own kinds, and only the
// metadata that it needs: nothing that keeps an object or causes its deletion.
func TestOperatorTokenReachesNoFurther(t *testing.T) {
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
			more = append(more, try{"an event of another namespace", denied, func() error { return operator.Create(t.Context(), event("kube-system", kind, "berth-operator")) }})
		}
		for _, c := range append(more,
			try{"another's Lease", leases, func() error { return operator.Create(t.Context(), lease("another")) }},
			try{"a Lease of another namespace", denied, func() error {
				l := lease("berth-operator")
				l.Namespace = "default"
				return operator.Create(t.Context(), l)
			}},
			try{"an event in another's name", "its own events", func() error { return operator.Create(t.Context(), event("default", kind, "scheduler")) }},
			try{"an event about another's object", "its own events", func() error { return operator.Create(t.Context(), event("default", "Service", "berth-operator")) }},
			try{"another's event", "its own events", func() error { return patch(t, operator, theirs, again) }},
			try{"another's event kept", "its own events", func() error { return patch(t, operator, theirs, `{"metadata":{"finalizers":["a/b"]}}`) }},
			try{"secrets", denied, func() error { return operator.List(t.Context(), &corev1.SecretList{}) }},
		) {
			if err := c.do(); !apierrors.IsForbidden(err) {
				t.Errorf("%s, %s: %v, want it forbidden", mode, c.name, err)
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
			{"a finalizer", metadata, func() error { return patch(t, operator, n, `{"metadata":{"finalizers":["example.com/mine","a/b"]}}`) }},
			{"another's finalizer", metadata, func() error { return patch(t, operator, n, `{"metadata":{"finalizers":null}}`) }},
			{"an owner", metadata, func() error { return patch(t, operator, n, owned) }},
			{"a label", metadata, func() error { return patch(t, operator, n, `{"metadata":{"labels":{"a":"c"}}}`) }},
			{"an annotation", metadata, func() error { return patch(t, operator, n, `{"metadata":{"annotations":{"a":"c"}}}`) }},
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
			{"a pool's subnets", "spec belongs to people", func() error {
				return patch(t, operator, pool, `{"spec":{"subnets":[{"ipv4":"10.0.0.0/16"},{"ipv4":"10.1.0.0/16"}]}}`)
			}},
			{"an end of a pool", denied, func() error { return operator.Delete(t.Context(), pool) }},
			{"another's finalizer", metadata, func() error { return patch(t, operator, block, `{"metadata":{"finalizers":null}}`) }},
		}
		for _, o := range []client.Object{pool, block} {
			more = append(more,
				try{o.GetName() + ": a finalizer", metadata, func() error { return patch(t, operator, o, `{"metadata":{"finalizers":["example.com/mine","a/b"]}}`) }},
				try{o.GetName() + ": an owner", metadata, func() error { return patch(t, operator, o, owned) }},
				try{o.GetName() + ": a label", metadata, func() error { return patch(t, operator, o, `{"metadata":{"labels":{"a":"c"}}}`) }},
				try{o.GetName() + ": an annotation", metadata, func() error { return patch(t, operator, o, `{"metadata":{"annotations":{"a":"c"}}}`) }},
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
			"vpcresources.k8s.aws/securitygrouppolicies": {"get", "list", "watch"}, // their kind need not be installed
			"/serviceaccounts":                           {"get"},
		} {
			if got := rightsTo(t, operator, of); !slices.Equal(got, verbs) {
				t.Errorf("rights to %s: %v, want %v", of, got, verbs)
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
			{"a VPC's spec", "spec belongs to people", func() error { return patch(t, operator, vpc("vpc-1"), `{"spec":{"allowedNamespaces":null}}`) }},
			{"a VPC", denied, func() error { return operator.Create(t.Context(), vpc("vpc-2", "*")) }},
			{"an end of a VPC", denied, func() error { return operator.Delete(t.Context(), vpc("vpc-1")) }},
			{"an end of a user's NIC", "only PodNICs that it created for a pod", func() error { return operator.Delete(t.Context(), users) }},
			{"an end of all NICs", denied, func() error {
				return operator.DeleteAllOf(t.Context(), &v1alpha1.PodNIC{}, client.InNamespace("default"))
			}},
			{"a node's report", "may clear status.node of a PodNIC", func() error {
				return patch(t, operator, users, `{"status":{"node":{"state":"Plugged","portID":"port-1"}}}`, "status")
			}},
			{"a policy", denied, func() error { return operator.Create(t.Context(), nicPolicy("kube-system")) }},
			{"a policy's spec", denied, func() error { return patch(t, operator, policy, `{"spec":{"vpc":"vpc-2"}}`) }},
			{"an end of a policy", denied, func() error { return operator.Delete(t.Context(), policy) }},
			{"all service accounts", denied, func() error { return operator.List(t.Context(), &corev1.ServiceAccountList{}) }},
			{"a token of an account", denied, func() error {
				return operator.SubResource("token").Create(t.Context(), account, &authenticationv1.TokenRequest{})
			}},
			{"a pod", denied, func() error { return operator.Delete(t.Context(), pod) }},
			{"a pod's annotations", denied, func() error { return patch(t, operator, pod, `{"metadata":{"annotations":{"a":"b"}}}`) }},
			{"a pod's status", denied, func() error { return patch(t, operator, pod, `{"status":{"phase":"Failed"}}`, "status") }},
			{"a namespace's VPC", denied, func() error {
				return patch(t, operator, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, `{"metadata":{"annotations":{"berth.dev/vpc":"vpc-1"}}}`)
			}},
			{"a secret of another namespace", denied, func() error { return operator.Get(t.Context(), elsewhere, &corev1.Secret{}) }},
			{"secrets of its own namespace at once", denied, func() error {
				return operator.List(t.Context(), &corev1.SecretList{}, client.InNamespace("kube-system"))
			}},
			{"a secret's text", denied, func() error { return patch(t, operator, password, `{"stringData":{"password":"a"}}`) }},
			{"whom the API server asks of all", denied, func() error {
				return operator.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "mine"}})
			}},
			{"whom another is asked", denied, func() error {
				return patch(t, operator, &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "another"}}, `{"webhooks":null}`)
			}},
			{"a secret of its own making", denied, func() error {
				return operator.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "another"}})
			}},
		})
	})
}

// patchAs is patch for use after a test's context has ended.
func patchAs(as client.Client, o client.Object, body string) error {
	return client.IgnoreNotFound(as.Patch(context.Background(), o.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(body))))
}
