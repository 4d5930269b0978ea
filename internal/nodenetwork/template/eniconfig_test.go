package template

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

func eniConfig(name, subnet string, groups ...string) ENIConfig {
	c := ENIConfig{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec.Subnet, c.Spec.SecurityGroups = subnet, groups
	return c
}

// A Node gets the settings of the ENIConfig that the Amazon VPC CNI would choose for it.
func TestFromENIConfigs(t *testing.T) {
	const zone = "topology.kubernetes.io/zone"
	all, err := FromENIConfigs(zone, []ENIConfig{
		eniConfig("zone-b", "subnet-0b"), eniConfig("zone-a", "subnet-0a", "sg-2", "sg-1", "sg-2"), eniConfig("default", "subnet-0d"),
		eniConfig("no-subnet", ""), eniConfig("a.name.of.more.than.63.characters.cannot.be.the.value.of.a.label", "subnet-0e"),
	})
	want := "ENIConfig no-subnet: spec.subnet is empty: expected a subnet ID such as subnet-0123456789abcdef0\n" +
		"ENIConfig a.name.of.more.than.63.characters.cannot.be.the.value.of.a.label: its name cannot be the value of a label: must be no more than 63"
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v\nwant %s", err, want)
	}
	for name, want := range map[string]*Choice{
		"zone-a": {"NodeNetworkTemplate/zone-a", v1alpha1.ENISpec{FirstInterfaceIndex: new(int32(1)), SubnetIDs: []string{"subnet-0a"}, SecurityGroups: []string{"sg-1", "sg-2"}}, false},
		"zone-b": {"NodeNetworkTemplate/zone-b", v1alpha1.ENISpec{FirstInterfaceIndex: new(int32(1)), SubnetIDs: []string{"subnet-0b"}}, false},
		"zone-c": nil,
		"":       {"NodeNetworkTemplate/default", v1alpha1.ENISpec{FirstInterfaceIndex: new(int32(1)), SubnetIDs: []string{"subnet-0d"}}, false},
	} {
		labels := map[string]string{"other": "x"}
		if name != "" {
			labels[zone] = name
		}
		got, err := Choose(labels, all)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}
