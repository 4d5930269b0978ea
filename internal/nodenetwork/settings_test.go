package nodenetwork

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

const instance = "i-0a"

func TestSettings(t *testing.T) {
	base := eni.Settings{InstanceType: "m5.large", AnySubnet: true, Policy: ipam.Policy{Dialect: ipam.Cilium, Families: ipfamily.OnlyIPv4, PreAllocate: 8, FirstInterfaceIndex: 1}}
	with := func(change func(*eni.Settings)) eni.Settings {
		s := base
		change(&s)
		return s
	}
	no := false
	for _, tt := range []struct {
		name string
		spec v1alpha1.ENISpec
		want eni.Settings
	}{
		{"defaults of Cilium's AWS ENI allocator", v1alpha1.ENISpec{}, base},
		{"watermarks", v1alpha1.ENISpec{MinAllocate: new(int32(16)), PreAllocate: new(int32(0)), MaxAboveWatermark: new(int32(4)), MaxAllocate: new(int32(40))},
			with(func(s *eni.Settings) {
				s.Policy = ipam.Policy{Dialect: ipam.Cilium, Families: ipfamily.OnlyIPv4, MinAllocate: 16, MaxAboveWatermark: 4, MaxAllocate: 40, FirstInterfaceIndex: 1}
			})},
		{"warm targets", v1alpha1.ENISpec{WarmIPTarget: new(int32(5)), MinimumIPTarget: new(int32(10))},
			with(func(s *eni.Settings) {
				s.Policy = ipam.Policy{Dialect: ipam.AWS, Families: ipfamily.OnlyIPv4, WarmENI: 1, WarmPrefix: 1, WarmIP: 5, MinimumIP: 10, FirstInterfaceIndex: 1}
			})},
		{"prefixes kept warm", v1alpha1.ENISpec{WarmPrefixTarget: new(int32(2)), WarmENITarget: new(int32(0)), PrefixDelegation: new(true)},
			with(func(s *eni.Settings) {
				s.Policy = ipam.Policy{Dialect: ipam.AWS, Families: ipfamily.OnlyIPv4, WarmPrefix: 2, FirstInterfaceIndex: 1, PrefixDelegation: true}
			})},
		{"caps and eth0", v1alpha1.ENISpec{MaxENIs: new(int32(2)), MaxPods: new(int32(29)), FirstInterfaceIndex: new(int32(0)), UsePrimaryAddress: new(true), Trunk: new(true)},
			with(func(s *eni.Settings) {
				s.Policy.MaxENI, s.Policy.MaxPods, s.Policy.FirstInterfaceIndex, s.UsePrimaryAddress = 2, 29, 0, true
				s.Trunk = true
			})},
		{"both families", v1alpha1.ENISpec{IPFamilies: "dual"}, with(func(s *eni.Settings) { s.Policy.Families = ipfamily.Dual })},
		{"IPv6", v1alpha1.ENISpec{IPFamilies: "ipv6"}, with(func(s *eni.Settings) { s.Policy.Families = ipfamily.OnlyIPv6 })},
		{"placement and groups", v1alpha1.ENISpec{
			VPCID: "vpc-1", AvailabilityZone: "zone-a", SubnetIDs: []string{"subnet-2", "subnet-1"},
			SecurityGroupTags: map[string]string{"a": "b"}, DeleteOnTermination: &no,
		}, with(func(s *eni.Settings) {
			s.VPCID, s.Zone, s.SubnetIDs, s.GroupTags, s.KeepENIs = "vpc-1", "zone-a", []string{"subnet-1", "subnet-2"}, map[string]string{"a": "b"}, true
		})},
		{"selection by tags", v1alpha1.ENISpec{SubnetTags: map[string]string{"pods": "yes"}, SecurityGroups: []string{"sg-1"}},
			with(func(s *eni.Settings) {
				s.SubnetTags, s.Groups = map[string]string{"pods": "yes"}, []string{"sg-1"}
			})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Settings(&v1alpha1.NodeNetworkSpec{InstanceID: instance, InstanceType: "m5.large", ENI: tt.spec})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestInvalidSettings(t *testing.T) {
	for _, tt := range []struct {
		name string
		spec v1alpha1.NodeNetworkSpec
		want string
	}{
		{"no instance ID", v1alpha1.NodeNetworkSpec{}, "spec.instanceID is empty: expected an EC2 instance ID"},
		{"negative", v1alpha1.NodeNetworkSpec{InstanceID: instance, ENI: v1alpha1.ENISpec{PreAllocate: new(int32(-1))}},
			"spec.eni.preAllocate is -1: expected a number from 0"},
		{"unknown families", v1alpha1.NodeNetworkSpec{InstanceID: instance, ENI: v1alpha1.ENISpec{IPFamilies: "both"}},
			`spec.eni.ipFamilies is "both": expected ipv4, ipv6 or dual`},
		{"two dialects", v1alpha1.NodeNetworkSpec{InstanceID: instance, ENI: v1alpha1.ENISpec{PreAllocate: new(int32(1)), WarmIPTarget: new(int32(1))}},
			"spec.eni has warm targets and watermarks: expected either warmENITarget, warmIPTarget, minimumIPTarget and warmPrefixTarget or minAllocate, preAllocate, maxAboveWatermark and maxAllocate"},
		{"minAllocate above maxAllocate", v1alpha1.NodeNetworkSpec{InstanceID: instance, ENI: v1alpha1.ENISpec{MinAllocate: new(int32(9)), MaxAllocate: new(int32(8))}},
			"spec.eni.minAllocate is 9: expected at most maxAllocate, which is 8"},
		{"IDs and tags", v1alpha1.NodeNetworkSpec{InstanceID: instance, ENI: v1alpha1.ENISpec{
			SubnetIDs: []string{"subnet-1"}, SubnetTags: map[string]string{"a": ""}, SecurityGroups: []string{""}, SecurityGroupTags: map[string]string{"": ""},
		}}, "spec.eni.subnetIDs and spec.eni.subnetTags are both set: expected one of them\n" +
			"spec.eni.securityGroups and spec.eni.securityGroupTags are both set: expected one of them\n" +
			"spec.eni.securityGroups has an empty ID\nspec.eni.securityGroupTags has a tag without a key"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Settings(&tt.spec)
			if err == nil || err.Error() != tt.want {
				t.Errorf("Settings() error = %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestSettingsBeyondInstanceTypeLimits(t *testing.T) {
	large := &eni.Inventory{InstanceType: "m5.large", Limits: cloud.Limits{MaxENIs: 3, IPv4PerENI: 10}}
	at := func(first int) eni.Settings { return eni.Settings{Policy: ipam.Policy{FirstInterfaceIndex: first}} }
	for first, want := range map[int]string{
		0: "", 2: "", 3: "spec.eni.firstInterfaceIndex is 3: expected at most 2, as the instance, of type m5.large, may have 3 ENIs",
	} {
		got := ""
		if err := BeyondType(at(first), large); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("first index %d: BeyondType() = %q, want %q", first, got, want)
		}
	}
	if err := BeyondType(at(9), &eni.Inventory{}); err != nil {
		t.Errorf("BeyondType() with unknown limits = %v", err)
	}
}
