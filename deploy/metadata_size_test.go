package deploy_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

// managed returns entries of metadata.managedFields as a client may send them.
func managed(count, bytes int) (out []metav1.ManagedFieldsEntry) {
	now := metav1.Now()
	for i := range count {
		out = append(out, metav1.ManagedFieldsEntry{
			Manager: fmt.Sprintf("manager-%d", i), Operation: metav1.ManagedFieldsOperationApply, APIVersion: "berth.dev/v1alpha1", Time: &now,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:` + strings.Repeat("x", bytes) + `":{}}}`),
		})
	}
	return out
}

// hoards are ways to put large data into an object that neither its schema nor the API server
// limits.
var hoards = map[string]func(client.Object){
	"many managed fields":  func(o client.Object) { o.SetManagedFields(managed(300, 1000)) },
	"large managed fields": func(o client.Object) { o.SetManagedFields(managed(1, 300_000)) },
	"deep managed fields": func(o client.Object) {
		o.SetManagedFields(managed(1, 1))
		o.GetManagedFields()[0].FieldsV1 = metav1.NewFieldsV1(`{"f:a":{"f:b":{"f:c":{"f:d":{"f:` + strings.Repeat("x", 300_000) + `":{}}}}}}`)
	},
	"a large owner": func(o client.Object) {
		o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node-1", UID: types.UID(strings.Repeat("x", 300_000))}})
	},
}

// managedPatch returns a patch of an object's managed fields only.
func managedPatch(t *testing.T, entries []metav1.ManagedFieldsEntry) client.Patch {
	t.Helper()
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"managedFields": entries}})
	harness.OK(t, err)
	return client.RawPatch(types.MergePatchType, body)
}

func TestNodeNetworkMetadataIsBounded(t *testing.T) {
	applyPolicies(t)
	daemon := account(t, "berthd", "node-1")
	for what, add := range hoards {
		n := nodeNetwork("node-1")
		add(n)
		if err := byPolicy(daemon.Create(t.Context(), n, client.DryRunAll)); err != nil {
			t.Errorf("create with %s: error = %v, want it rejected by a policy", what, err)
		}
	}
	n := nodeNetwork("node-1")
	n.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node-1", UID: types.UID(strings.Repeat("u", 36))}}
	n.Spec.ENI.SubnetTags = map[string]string{}
	harness.OK(t, daemon.Create(t.Context(), n))
	carriesNothingElse(t, daemon, n)
}

func TestBlockAndRequestMetadataIsBounded(t *testing.T) {
	applyPoolPolicies(t)
	daemon, operator := account(t, "berthd", "node-1"), account(t, "berth-operator", "")
	for what, add := range hoards {
		r := blockRequest("request", "node-1")
		add(r)
		if err := byPolicy(daemon.Create(t.Context(), r, client.DryRunAll)); err != nil {
			t.Errorf("request with %s: error = %v, want it rejected by a policy", what, err)
		}
	}
	b := addressBlock("default", 1, "node-1")
	harness.OK(t, operator.Create(t.Context(), b))
	carriesNothingElse(t, daemon, b)
	if err := byPolicy(daemon.Patch(t.Context(), b, managedPatch(t, managed(1, 300_000)))); err != nil {
		t.Error(err)
	}
}

func TestPodNICMetadataIsBounded(t *testing.T) {
	applyPortPolicies(t)
	n := podNIC("own", "")
	harness.OK(t, harness.KubeClient(t).Create(t.Context(), n))
	bound(t, n, "node-1")
	carriesNothingElse(t, account(t, "berthd", "node-1"), n)
}

// carriesNothingElse asserts that a daemon cannot add other data to an existing object, including one that has large
// managed fields.
func carriesNothingElse(t *testing.T, daemon client.Client, o client.Object) {
	t.Helper()
	kind := strings.TrimPrefix(fmt.Sprintf("%T", o), "*v1alpha1.")
	report := map[string]string{
		"NodeNetwork":  `{"status":{"ipam":{"waiting":%d,"usedCount":1,"used":{"10.0.0.4":{"owner":"a/b","resource":"eni-1"}},"released":["10.0.0.5"],"instanceID":"i-1"}}}`,
		"PodNIC":       `{"status":{"node":{"state":"Plugged","portID":"port-%d"}}}`,
		"AddressBlock": `{"status":{"renewTime":"2026-01-01T00:00:0%d.000000Z"}}`,
	}[kind]
	reports := func(n int) {
		t.Helper()
		harness.OK(t, daemon.Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, report, n)), client.FieldOwner(v1alpha1.OwnerDaemon)))
	}
	reports(1)
	// Small entries of many managers.
	var err error
	for i := range 20 {
		apply := client.RawPatch(types.ApplyPatchType, fmt.Appendf(nil, `{"apiVersion":"berth.dev/v1alpha1","kind":%q,`+report[1:], kind, 1))
		err = daemon.Status().Patch(t.Context(), o, apply, client.FieldOwner(fmt.Sprintf("manager-%d", i)), client.ForceOwnership)
		if err != nil {
			break
		}
	}
	forbidden(t, err, "at most 16 entries")
	harness.OK(t, harness.KubeClient(t).Patch(t.Context(), o, managedPatch(t, managed(30, 10_000))))
	reports(2)
}
