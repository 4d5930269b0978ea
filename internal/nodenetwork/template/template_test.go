package template

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/nodenetwork"
)

// made returns a template of an age in seconds that selects Nodes by a label; empty: all Nodes.
func made(name string, age, priority int32, label string) v1alpha1.NodeNetworkTemplate {
	t := v1alpha1.NodeNetworkTemplate{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9-int64(age), 0))}}
	t.Spec.Priority = priority
	if key, value, ok := strings.Cut(label, "="); ok {
		t.Spec.NodeSelector.MatchLabels = map[string]v1alpha1.LabelValue{key: v1alpha1.LabelValue(value)}
	}
	return t
}

func TestChoose(t *testing.T) {
	expr := func(name string, r v1alpha1.LabelRequirement) v1alpha1.NodeNetworkTemplate {
		x := made(name, 0, 0, "")
		x.Spec.NodeSelector.MatchExpressions = []v1alpha1.LabelRequirement{r}
		return x
	}
	labels := map[string]string{"pool": "gpu", "zone": "a"}
	for _, tt := range []struct {
		name string
		all  []v1alpha1.NodeNetworkTemplate
		want string
	}{
		{"no templates", nil, ""},
		{"no match", []v1alpha1.NodeNetworkTemplate{made("x", 9, 9, "pool=cpu")}, ""},
		{"all nodes", []v1alpha1.NodeNetworkTemplate{made("x", 0, 0, "")}, "x"},
		{"highest priority before oldest", []v1alpha1.NodeNetworkTemplate{made("old", 9, 0, ""), made("new", 1, 1, "pool=gpu")}, "new"},
		{"negative priority", []v1alpha1.NodeNetworkTemplate{made("old", 9, -1, ""), made("new", 1, 0, "")}, "new"},
		{"oldest before first by name", []v1alpha1.NodeNetworkTemplate{made("a", 1, 0, ""), made("b", 2, 0, "zone=a")}, "b"},
		{"first by name", []v1alpha1.NodeNetworkTemplate{made("b", 1, 0, ""), made("a", 1, 0, "")}, "a"},
		{"In", []v1alpha1.NodeNetworkTemplate{expr("x", v1alpha1.LabelRequirement{Key: "zone", Operator: "In", Values: []v1alpha1.LabelValue{"b", "a"}})}, "x"},
		{"NotIn", []v1alpha1.NodeNetworkTemplate{expr("x", v1alpha1.LabelRequirement{Key: "zone", Operator: "NotIn", Values: []v1alpha1.LabelValue{"a"}})}, ""},
		{"Exists", []v1alpha1.NodeNetworkTemplate{expr("x", v1alpha1.LabelRequirement{Key: "zone", Operator: "Exists"})}, "x"},
		{"DoesNotExist", []v1alpha1.NodeNetworkTemplate{expr("x", v1alpha1.LabelRequirement{Key: "zone", Operator: "DoesNotExist"})}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 {
				got, err := Choose(labels, tt.all)
				if err != nil {
					t.Fatal(err)
				}
				name := ""
				if got != nil {
					name = strings.TrimPrefix(got.Name, "NodeNetworkTemplate/")
				}
				if name != tt.want {
					t.Errorf("Choose() = %q, want %q", name, tt.want)
				}
				slices.Reverse(tt.all)
			}
		})
	}
}

// A template with an invalid selector is reported, and the others are used.
func TestChooseWithInvalidTemplate(t *testing.T) {
	bad := made("bad", 9, 9, "")
	bad.Spec.NodeSelector.MatchExpressions = []v1alpha1.LabelRequirement{{Key: "a", Operator: "Near"}}
	got, err := Choose(nil, []v1alpha1.NodeNetworkTemplate{bad, made("good", 0, 0, "")})
	if err == nil || !strings.HasPrefix(err.Error(), "NodeNetworkTemplate bad: spec.nodeSelector: ") {
		t.Errorf("Choose() error = %v, want it to name the invalid template", err)
	}
	if got == nil || got.Name != "NodeNetworkTemplate/good" {
		t.Errorf("Choose() = %+v, want good", got)
	}
}

// A field of a template replaces the fields that exclude it, and the others stay; nodenetwork.Over has
// the same result in node mode.
func TestMerge(t *testing.T) {
	n := func(i int32) *int32 { return &i }
	own := v1alpha1.ENISpec{
		VPCID: "vpc-1", AvailabilityZone: "a", IPFamilies: "dual", PreAllocate: n(4), MinAllocate: n(8), MaxENIs: n(3), MaxPods: n(20), FirstInterfaceIndex: n(0),
		SubnetTags: map[string]string{"a": "b"}, SecurityGroups: []string{"sg-1"}, PrefixDelegation: new(true), UsePrimaryAddress: new(true),
		DeleteOnTermination: new(false),
	}
	with := func(change func(*v1alpha1.ENISpec)) v1alpha1.ENISpec {
		o := *own.DeepCopy()
		change(&o)
		return o
	}
	for _, tt := range []struct {
		name       string
		over, want v1alpha1.ENISpec
	}{
		{"nothing", v1alpha1.ENISpec{}, own},
		{"subnets by ID in place of tags", v1alpha1.ENISpec{SubnetIDs: []string{"subnet-1"}}, with(func(e *v1alpha1.ENISpec) { e.SubnetTags, e.SubnetIDs = nil, []string{"subnet-1"} })},
		{"groups by tags in place of IDs", v1alpha1.ENISpec{SecurityGroupTags: map[string]string{"x": "y"}},
			with(func(e *v1alpha1.ENISpec) { e.SecurityGroups, e.SecurityGroupTags = nil, map[string]string{"x": "y"} })},
		{"warm targets in place of watermarks", v1alpha1.ENISpec{WarmIPTarget: n(2)},
			with(func(e *v1alpha1.ENISpec) { e.PreAllocate, e.MinAllocate, e.WarmIPTarget = nil, nil, n(2) })},
		{"one watermark in place of all", v1alpha1.ENISpec{PreAllocate: n(1)}, with(func(e *v1alpha1.ENISpec) { e.PreAllocate, e.MinAllocate = n(1), nil })},
		{"caps, eth0 and switches", v1alpha1.ENISpec{
			MaxENIs: n(0), MaxPods: n(9), FirstInterfaceIndex: n(1), PrefixDelegation: new(false), UsePrimaryAddress: new(false), DeleteOnTermination: new(true), Trunk: new(true),
		}, with(func(e *v1alpha1.ENISpec) {
			e.MaxENIs, e.MaxPods, e.FirstInterfaceIndex, e.PrefixDelegation, e.UsePrimaryAddress, e.DeleteOnTermination = n(0), n(9), n(1), new(false), new(false), new(true)
			e.Trunk = new(true)
		})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Merge(&own, &tt.over)
			if d := cmp.Diff(&tt.want, got); d != "" {
				t.Error(d)
			}
			base := eni.Settings{Policy: ipam.DefaultCilium()}
			merged, err := nodenetwork.Over(base, got)
			if err != nil {
				t.Fatal(err)
			}
			ownFirst, err := nodenetwork.Over(base, &own)
			if err != nil {
				t.Fatal(err)
			}
			if over, err := nodenetwork.Over(ownFirst, &tt.over); err != nil || !cmp.Equal(merged, over) {
				t.Errorf("Over() in node mode differs: %v\n%s", err, cmp.Diff(merged, over))
			}
		})
	}
}
