package nodenetworksupplier

import (
	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipfamily"
)

// SpecOf is the spec of the object of an instance, in the words of whichever
// dialect the settings speak. What is not set is left to the API's defaults.
func SpecOf(c *config.Config, id cloud.Identity) *v1alpha1.NodeNetworkSpec {
	return &v1alpha1.NodeNetworkSpec{
		InstanceID: id.InstanceID, InstanceType: id.InstanceType,
		ENI: v1alpha1.ENISpec{
			VPCID: id.VPCID, AvailabilityZone: id.Zone, IPFamilies: unlessIPv4(c.IPFamilies),
			MinAllocate: number(c.MinAllocate, 0), PreAllocate: number(c.PreAllocate, 0),
			MaxAboveWatermark: number(c.MaxAboveWatermark, 0), MaxAllocate: number(c.MaxAllocate, 0),
			WarmENITarget: number(c.WarmENITarget, 0), WarmIPTarget: number(c.WarmIPTarget, 0),
			MinimumIPTarget: number(c.MinimumIPTarget, 0), WarmPrefixTarget: number(c.WarmPrefixTarget, 0),
			MaxENIs: number(c.MaxENI, 1), MaxPods: number(c.MaxPods, 1),
			FirstInterfaceIndex: number(c.FirstInterfaceIndex, 0),
			SubnetIDs:           c.Subnets, SubnetTags: c.SubnetTags, SecurityGroups: c.SecurityGroups,
			SecurityGroupTags: c.SecurityGroupTags, PrefixDelegation: ifSet(c.PrefixDelegation), UsePrimaryAddress: ifSet(c.UsePrimaryAddress),
			DeleteOnTermination: unless(c.DeleteOnTermination), Trunk: ifSet(c.TrunkENI),
		},
	}
}

// unlessIPv4 is a set of families as the API writes it, or empty for the default.
func unlessIPv4(s ipfamily.Set) string {
	if s == ipfamily.OnlyIPv4 {
		return ""
	}
	return string(s)
}

// unless is false as a setting, or nil for what is true by default.
func unless(v bool) *bool {
	if v {
		return nil
	}
	return &v
}

// ifSet is true as a setting, or nil for what is false by default.
func ifSet(v bool) *bool {
	if !v {
		return nil
	}
	return &v
}

// number is a setting, or nil when it is below what counts as set.
func number(n, low int) *int32 {
	if n < low {
		return nil
	}
	v := int32(n)
	return &v
}
