package branchcapacity

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud/limits"
)

// trunked is the NodeNetwork of instance i-1 with a trunk.
func trunked() *v1alpha1.NodeNetwork {
	o := &v1alpha1.NodeNetwork{Spec: v1alpha1.NodeNetworkSpec{InstanceID: "i-1", InstanceType: "m5.xlarge"}}
	o.Status.ENI.Trunk = &v1alpha1.TrunkENI{ID: "eni-1", MAC: "02:00:00:00:00:01", DeviceIndex: 1}
	return o
}

func nodeOf(provider string) *corev1.Node {
	return &corev1.Node{Spec: corev1.NodeSpec{ProviderID: provider}}
}

func TestCapacityOf(t *testing.T) {
	const mine = "aws:///zone-a/i-1"
	most := int64(limits.Branches("m5.xlarge"))
	if most == 0 {
		t.Fatal("the type of the test has no branches")
	}
	for name, tt := range map[string]struct {
		provider string
		edit     func(*v1alpha1.NodeNetwork)
		want     int64
	}{
		"a trunk":                 {mine, func(*v1alpha1.NodeNetwork) {}, most},
		"none wanted":             {mine, func(o *v1alpha1.NodeNetwork) { o.Status.ENI.Trunk = nil }, 0},
		"being made":              {mine, func(o *v1alpha1.NodeNetwork) { o.Status.ENI.Trunk = &v1alpha1.TrunkENI{Reason: "Pending"} }, 0},
		"on its way out":          {mine, func(o *v1alpha1.NodeNetwork) { o.Status.ENI.Trunk.Reason = "HasBranches" }, 0},
		"a type without branches": {mine, func(o *v1alpha1.NodeNetwork) { o.Spec.InstanceType = "t3.micro" }, 0},
		"another instance":        {"aws:///zone-a/i-2", func(*v1alpha1.NodeNetwork) {}, 0},
		"an unknown instance":     {"", func(*v1alpha1.NodeNetwork) {}, 0},
	} {
		o := trunked()
		tt.edit(o)
		if got := capacityOf(nodeOf(tt.provider), o); got != tt.want {
			t.Errorf("%s: got %d, want %d", name, got, tt.want)
		}
	}
	if got := capacityOf(nodeOf(mine), nil); got != 0 {
		t.Errorf("without a NodeNetwork: got %d, want 0", got)
	}
}

// A Node of no branches does not have the resource, and 0 of it is to be taken away.
func TestSays(t *testing.T) {
	for name, tt := range map[string]struct {
		has      string // empty: nothing
		capacity int64
		want     bool
	}{
		"as it should be":  {"18", 18, true},
		"in other words":   {"18000m", 18, true},
		"nothing yet":      {"", 18, false},
		"reset":            {"0", 18, false},
		"another number":   {"9", 18, false},
		"none":             {"", 0, true},
		"no more":          {"18", 0, false},
		"none, and says 0": {"0", 0, false},
	} {
		n := nodeOf("")
		if tt.has != "" {
			n.Status.Capacity = corev1.ResourceList{v1alpha1.ResourceBranches: resource.MustParse(tt.has)}
		}
		if got := says(n, tt.capacity); got != tt.want {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

// A patch names no other resource, and holds for the Node that was seen only.
func TestPatchOf(t *testing.T) {
	n := nodeOf("")
	n.ResourceVersion = "7"
	for capacity, want := range map[int64]string{18: `"18"`, 0: `null`} {
		got, err := patchOf(n, capacity)
		want = strings.ReplaceAll(`{"metadata":{"resourceVersion":"7"},"status":{"capacity":{"berth.dev/branch-interfaces":N}}}`, "N", want)
		if err != nil || string(got) != want {
			t.Errorf("%d: got %s, %v; want %s", capacity, got, err, want)
		}
	}
}
