package v1alpha1_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

// The API server adds no defaults: readers apply Cilium's defaults, and a template overrides only
// the fields that it sets.
func TestNodeNetworkHasNoDefaults(t *testing.T) {
	c := clean(t)
	if d := cmp.Diff(v1alpha1.ENISpec{}, create(t, c, "node-1", "").Spec.ENI); d != "" {
		t.Errorf("without eni (-want +got):\n%s", d)
	}
	index, remove := int32(0), false
	got := create(t, c, "node-2", ", eni: {firstInterfaceIndex: 0, deleteOnTermination: false}")
	if d := cmp.Diff(v1alpha1.ENISpec{FirstInterfaceIndex: &index, DeleteOnTermination: &remove}, got.Spec.ENI); d != "" {
		t.Errorf("said otherwise (-want +got):\n%s", d)
	}
}

// Writing the object leaves its status unchanged, and the other way round.
func TestStatusIsASubresource(t *testing.T) {
	c := clean(t)
	o := nodeNetwork(t, "node-1", with(""))
	o.Object["status"] = map[string]any{"ipam": map[string]any{"usedCount": int64(7)}}
	harness.OK(t, c.Create(t.Context(), o))
	n := read(t, c, "node-1")
	if n.Status.IPAM.UsedCount != 0 {
		t.Errorf("created with %d used addresses", n.Status.IPAM.UsedCount)
	}
	n.Spec.InstanceType = "m5.xlarge"
	n.Status.IPAM.UsedCount = 3
	harness.OK(t, c.Status().Update(t.Context(), n))
	if n := read(t, c, "node-1"); n.Status.IPAM.UsedCount != 3 || n.Spec.InstanceType != "m5.large" {
		t.Errorf("after a write of the status: %d used, type %s", n.Status.IPAM.UsedCount, n.Spec.InstanceType)
	}
}

// The columns of `kubectl get nodenetworks`, including the zone of -o wide.
func TestColumnsOfNodeNetworks(t *testing.T) {
	c := clean(t)
	n := create(t, c, "node-1", ", eni: {availabilityZone: us-west-2a}")
	n.Status.IPAM.UsedCount = 4
	n.Status.ENI = v1alpha1.ENIStatus{Count: 2, Available: 12, Needed: 0}
	n.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Served", LastTransitionTime: metav1.Now(),
	}}
	harness.OK(t, c.Status().Update(t.Context(), n))
	table := harness.KubeTable(t, v1alpha1.GroupVersion.WithResource("nodenetworks"))
	var head []string
	for _, column := range table.ColumnDefinitions {
		head = append(head, column.Name)
	}
	want := []string{"Name", "Instance", "Type", "Zone", "ENIs", "Available", "Used", "Needed", "Ready", "Reason", "Template", "Outdated", "Trunk", "Age"}
	if d := cmp.Diff(want, head); d != "" {
		t.Fatalf("columns (-want +got):\n%s", d)
	}
	row := fmt.Sprint(table.Rows[0].Cells[:10])
	if row != "[node-1 i-0123456789abcdef0 m5.large us-west-2a 2 12 4 0 True Served]" {
		t.Errorf("row %s", row)
	}
}

func TestShortNameOfNodeNetworks(t *testing.T) {
	crd := readCRD(t, "nodenetworks")
	names := crd.Spec.Names
	if names.Plural != "nodenetworks" || len(names.ShortNames) != 1 || names.ShortNames[0] != "nn" || crd.Spec.Scope != "Cluster" {
		t.Errorf("names %+v, scope %s", names, crd.Spec.Scope)
	}
}

// The address map is atomic: entries that its owner omits are deleted.
func TestEachFieldHasOneWriter(t *testing.T) {
	c := clean(t)
	apply := func(owner, spec, status string) error {
		o := nodeNetwork(t, "node-1", spec)
		o.SetResourceVersion("")
		if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(owner)); err != nil {
			return err
		}
		if status == "" {
			return nil
		}
		s := ofKind(t, "NodeNetwork", "node-1", "status: "+status)
		return c.Status().Apply(t.Context(), client.ApplyConfigurationFromUnstructured(s), client.FieldOwner(owner))
	}
	daemon, operator := v1alpha1.OwnerDaemon, v1alpha1.OwnerOperator

	harness.OK(t, apply(daemon, with(", eni: {preAllocate: 16}"), "{ipam: {usedCount: 1, used: {10.0.0.4: {owner: default/a}}}}"))
	harness.OK(t, apply(operator, "{ipam: {available: {10.0.0.4: {resource: eni-1}, 10.0.0.5: {resource: eni-1}}}}",
		"{eni: {count: 1, available: 2, needed: 0}}"))
	harness.OK(t, apply(operator, "{ipam: {available: {10.0.0.4: {resource: eni-1}}}}", ""))

	n := read(t, c, "node-1")
	if n.Spec.InstanceID == "" || *n.Spec.ENI.PreAllocate != 16 || n.Status.IPAM.UsedCount != 1 {
		t.Errorf("the operator's writes changed what the daemon wrote: %+v", n)
	}
	if len(n.Spec.IPAM.Available) != 1 || n.Status.ENI.Available != 2 {
		t.Errorf("available %v, status %+v", n.Spec.IPAM.Available, n.Status.ENI)
	}

	t.Run("a person's edit stands", func(t *testing.T) {
		harness.OK(t, c.Patch(t.Context(), n, merge(t, "{spec: {eni: {preAllocate: 2}}}"), client.FieldOwner("kubectl-edit")))
		harness.OK(t, apply(operator, "{ipam: {available: {10.0.0.6: {resource: eni-1}}}}", ""))
		err := apply(daemon, with(", eni: {preAllocate: 16}"), "")
		if !apierrors.IsConflict(err) {
			t.Errorf("the daemon writes spec.eni again: %v, want a conflict", err)
		}
		if n := read(t, c, "node-1"); *n.Spec.ENI.PreAllocate != 2 {
			t.Errorf("preAllocate is %d again", *n.Spec.ENI.PreAllocate)
		}
	})
	t.Run("who takes another's field is told", func(t *testing.T) {
		err := apply("somebody", "{ipam: {available: {10.0.0.9: {resource: eni-9}}}}", "")
		if !apierrors.IsConflict(err) {
			t.Errorf("writing spec.ipam beside the operator: %v, want a conflict", err)
		}
	})
}
