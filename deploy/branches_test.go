package deploy_test

import (
	"context"
	"maps"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/operator/podnics/webhook"
	"github.com/berthnet/berth/internal/operator/podnics/webhook/callers"
	"github.com/berthnet/berth/test/harness"
)

// Only pods that a policy may select depend on the webhook. Two of its three configurations match
// nothing until the operator fills them in.
func TestWebhooksThatChangePods(t *testing.T) {
	objects := rendered(t, deploy.OperatorMode, "ports: {enabled: true}")
	config := one[admissionregistrationv1.MutatingWebhookConfiguration](t, objects, "berth-ports")
	type traits struct {
		path   string
		policy admissionregistrationv1.FailurePolicyType
		rules  int
	}
	if first := config.Webhooks[0].Name; first != callers.PolicyWebhookName {
		t.Errorf("the first is %s, want that of policies, by whose annotations the others go", first)
	}
	got := map[string]traits{}
	for _, w := range config.Webhooks {
		got[w.Name] = traits{*w.ClientConfig.Service.Path, *w.FailurePolicy, len(w.Rules)}
		if *w.TimeoutSeconds > 5 || len(w.MatchConditions) == 0 || *w.SideEffects != admissionregistrationv1.SideEffectClassNone {
			t.Errorf("%+v", w)
		}
	}
	if want := map[string]traits{
		callers.PolicyWebhookName:       {webhook.PolicyPath, admissionregistrationv1.Fail, 0},
		"pods.branches.ports.berth.dev": {webhook.MutatePath, admissionregistrationv1.Ignore, 1},
		callers.WebhookName:             {webhook.MutatePath, admissionregistrationv1.Ignore, 0},
	}; !maps.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// The operator's token may write one resource of a Node's capacity and no other field.
func TestOperatorTokenWritesBranchCapacityOnly(t *testing.T) {
	operator := asOperatorOf(t, rendered(t, deploy.OperatorMode, "ports: {enabled: true}"), "Node")
	admin := harness.KubeClient(t)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "node-1", Labels: map[string]string{"pool": "a"}, Annotations: map[string]string{"a": "b"}, Finalizers: []string{"example.com/mine"},
	}}
	n.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), "example.com/gpus": resource.MustParse("1")}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
	harness.OK(t, admin.Create(t.Context(), n))
	t.Cleanup(func() { harness.OK(t, patchAs(admin, n, `{"metadata":{"finalizers":null}}`)) })
	harness.Eventually(t, limit, "the policy holds", func() error {
		other := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"pool":"b"}}}`))
		return byPolicy(operator.Status().Patch(t.Context(), n.DeepCopy(), other, client.DryRunAll))
	})

	const branches = `"` + v1alpha1.ResourceBranches + `"`
	for _, body := range []string{
		`{"status":{"capacity":{` + branches + `:"18"}}}`, `{"status":{"capacity":{` + branches + `:"9"}}}`, `{"status":{"capacity":{` + branches + `:null}}}`,
	} {
		harness.OK(t, patch(t, operator, n, body, "status"))
	}
	bare := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}}
	harness.OK(t, admin.Create(t.Context(), bare))
	harness.OK(t, patch(t, operator, bare, `{"status":{"capacity":{`+branches+`:"18"}}}`, "status"))

	const metadata, others = "may not change the metadata of a Node", "may write the resource berth.dev/branch-interfaces of a Node's status only"
	for body, why := range map[string]string{
		`{"metadata":{"labels":{"pool":"b"}}}`:   metadata,
		`{"metadata":{"labels":null}}`:           metadata,
		`{"metadata":{"annotations":{"c":"d"}}}`: metadata,
		`{"metadata":{"finalizers":null}}`:       metadata,
		`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"gone","uid":"gone"}]}}`: metadata,
		`{"status":{"capacity":{"cpu":"400"}}}`:                                                           others,
		`{"status":{"capacity":{"cpu":null}}}`:                                                            others,
		`{"status":{"capacity":{"example.com/tpus":"1"}}}`:                                                others,
		`{"status":{"capacity":null}}`:                                                                    others,
		`{"status":{"capacity":{` + branches + `:"18","example.com/gpus":"2"}}}`:                          others,
		`{"status":{"allocatable":{"cpu":"4"}}}`:                                                          others,
		`{"status":{"allocatable":null}}`:                                                                 others,
		`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`:                                   others,
		`{"status":{"conditions":null}}`:                                                                  others,
		`{"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.2"}]}}`:                           others,
		`{"status":{"nodeInfo":{"kubeletVersion":"v0"}}}`:                                                 others,
		`{"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":1}}}}`:                                   others,
		`{"status":{"volumesAttached":[{"name":"a","devicePath":"b"}]}}`:                                  others,
		`{"status":{"phase":"Terminated"}}`:                                                               others,
	} {
		forbidden(t, patch(t, operator, n, body, "status"), why)
	}
	for what, do := range map[string]func() error{
		"a taint": func() error { return patch(t, operator, n, `{"spec":{"taints":null}}`) },
		"a label": func() error { return patch(t, operator, n, `{"metadata":{"labels":{"pool":"b"}}}`) },
		"an end":  func() error { return operator.Delete(t.Context(), n) },
		"a Node": func() error {
			return operator.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-3"}})
		},
		"a webhook": func() error {
			return operator.Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "mine"}})
		},
		"another's webhook": func() error {
			return patch(t, operator, &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "another"}}, `{"webhooks":null}`)
		},
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), "cannot") {
			t.Errorf("%s: %v, want it refused by roles", what, err)
		}
	}
	// A status update does not change the spec.
	harness.OK(t, patch(t, operator, n, `{"spec":{"unschedulable":true}}`, "status"))
	harness.OK(t, admin.Get(t.Context(), client.ObjectKeyFromObject(n), n))
	if n.Spec.Unschedulable {
		t.Error("the operator has the Node take no pods")
	}

	// Even with all RBAC rights, the policy lets the operator write only the status.
	t.Run("with all rights", func(t *testing.T) {
		applyPoliciesOfRelease(t, values(t, deploy.OperatorMode, "ports: {enabled: true}"))
		harness.Eventually(t, limit, "it has all rights", func() error { return operator.List(t.Context(), &corev1.ConfigMapList{}) })
		forbidden(t, patch(t, operator, n, `{"metadata":{"labels":{"pool":"b"}}}`), "may write the status of a Node only")
		forbidden(t, operator.Delete(t.Context(), n, client.DryRunAll), "may write the status of a Node only")
		forbidden(t, operator.Create(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-3"}}), "may write the status of a Node only")
	})
}
