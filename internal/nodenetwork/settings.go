package nodenetwork

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// Settings returns the settings of an object's spec, with the defaults of Cilium's "ENI Allocation
// Parameters". The error names every invalid field; the CRD rejects most of them, unless its validation
// is disabled or older.
func Settings(spec *v1alpha1.NodeNetworkSpec) (eni.Settings, error) {
	s, err := Over(eni.Settings{InstanceType: spec.InstanceType, AnySubnet: true, Policy: ipam.DefaultCilium()}, &spec.ENI)
	if spec.InstanceID == "" {
		err = errors.Join(errors.New("spec.instanceID is empty: expected an EC2 instance ID"), err)
	}
	return s, err
}

// Over returns settings overridden by the fields that e sets. Of fields that exclude each other, one that
// is set replaces all: subnetIDs and subnetTags, securityGroups and securityGroupTags, warm targets and
// watermarks. The error names every invalid field.
func Over(s eni.Settings, e *v1alpha1.ENISpec) (eni.Settings, error) {
	policy, policyErr := policyOver(s.Policy, e)
	s.Policy = policy
	s.VPCID, s.Zone = cmp.Or(e.VPCID, s.VPCID), cmp.Or(e.AvailabilityZone, s.Zone)
	if len(e.SubnetIDs)+len(e.SubnetTags) > 0 {
		s.SubnetIDs, s.SubnetTags = slices.Sorted(slices.Values(e.SubnetIDs)), maps.Clone(e.SubnetTags)
	}
	if len(e.SecurityGroups)+len(e.SecurityGroupTags) > 0 {
		s.Groups, s.GroupTags = slices.Sorted(slices.Values(e.SecurityGroups)), maps.Clone(e.SecurityGroupTags)
	}
	if e.DeleteOnTermination != nil {
		s.KeepENIs = !*e.DeleteOnTermination
	}
	if e.UsePrimaryAddress != nil {
		s.UsePrimaryAddress = *e.UsePrimaryAddress
	}
	if e.Trunk != nil {
		s.Trunk = *e.Trunk
	}
	return s, errors.Join(policyErr, selectorErrors(e))
}

// HasWarmTargets reports whether an ENISpec sets warm targets of the Amazon VPC CNI.
func HasWarmTargets(e *v1alpha1.ENISpec) bool {
	return e.WarmENITarget != nil || e.WarmIPTarget != nil || e.MinimumIPTarget != nil || e.WarmPrefixTarget != nil
}

// HasWatermarks reports whether an ENISpec sets watermarks of Cilium.
func HasWatermarks(e *v1alpha1.ENISpec) bool {
	return e.MinAllocate != nil || e.PreAllocate != nil || e.MaxAboveWatermark != nil || e.MaxAllocate != nil
}

// BeyondType returns an error if no instance of the type can have the settings, once the limits of the
// type are known.
func BeyondType(s eni.Settings, inv *eni.Inventory) error {
	first, most := s.Policy.FirstInterfaceIndex, inv.Limits.MaxENIs
	if most == 0 || first < most {
		return nil
	}
	return fmt.Errorf("spec.eni.firstInterfaceIndex is %d: expected at most %d, as the instance, of type %s, may have %d ENIs", first, most-1, inv.InstanceType, most)
}

// policyOver returns the policy in the dialect that e sets (warm targets or watermarks), else in that
// of p.
func policyOver(p ipam.Policy, e *v1alpha1.ENISpec) (ipam.Policy, error) {
	warm, marks := HasWarmTargets(e), HasWatermarks(e)
	switch {
	case warm:
		p = inDialect(ipam.DefaultAWS(), p)
	case marks:
		p = inDialect(ipam.DefaultCilium(), p)
	}
	var errs []error
	for _, f := range [...]struct {
		name string
		from *int32
		to   *int
	}{
		{"minAllocate", e.MinAllocate, &p.MinAllocate}, {"preAllocate", e.PreAllocate, &p.PreAllocate},
		{"maxAboveWatermark", e.MaxAboveWatermark, &p.MaxAboveWatermark}, {"maxAllocate", e.MaxAllocate, &p.MaxAllocate},
		{"warmENITarget", e.WarmENITarget, &p.WarmENI}, {"warmIPTarget", e.WarmIPTarget, &p.WarmIP},
		{"minimumIPTarget", e.MinimumIPTarget, &p.MinimumIP}, {"warmPrefixTarget", e.WarmPrefixTarget, &p.WarmPrefix},
		{"maxENIs", e.MaxENIs, &p.MaxENI}, {"maxPods", e.MaxPods, &p.MaxPods},
		{"firstInterfaceIndex", e.FirstInterfaceIndex, &p.FirstInterfaceIndex},
	} {
		if f.from == nil {
			continue
		}
		if *f.to = int(*f.from); *f.to < 0 {
			errs = append(errs, fmt.Errorf("spec.eni.%s is %d: expected a number from 0", f.name, *f.from))
		}
	}
	if e.PrefixDelegation != nil {
		p.PrefixDelegation = *e.PrefixDelegation
	}
	if e.IPFamilies != "" || p.Families == "" {
		var err error
		if p.Families, err = ipfamily.Parse(e.IPFamilies); err != nil {
			errs = append(errs, fmt.Errorf("spec.eni.ipFamilies is %w", err))
		}
	}
	if warm && marks {
		errs = append(errs, errors.New("spec.eni has warm targets and watermarks: expected either warmENITarget, warmIPTarget, "+
			"minimumIPTarget and warmPrefixTarget or minAllocate, preAllocate, maxAboveWatermark and maxAllocate"))
	}
	if p.MaxAllocate > 0 && p.MinAllocate > p.MaxAllocate {
		errs = append(errs, fmt.Errorf("spec.eni.minAllocate is %d: expected at most maxAllocate, which is %d", p.MinAllocate, p.MaxAllocate))
	}
	return p, errors.Join(errs...)
}

// inDialect returns a policy of another dialect, with the fields that both dialects share.
func inDialect(other, p ipam.Policy) ipam.Policy {
	other.Families, other.PrefixDelegation = p.Families, p.PrefixDelegation
	other.MaxENI, other.MaxPods, other.FirstInterfaceIndex = p.MaxENI, p.MaxPods, p.FirstInterfaceIndex
	return other
}

func selectorErrors(e *v1alpha1.ENISpec) error {
	var errs []error
	for _, f := range [...]struct {
		ids, tags string
		list      []string
		byTag     map[string]string
	}{
		{"subnetIDs", "subnetTags", e.SubnetIDs, e.SubnetTags},
		{"securityGroups", "securityGroupTags", e.SecurityGroups, e.SecurityGroupTags},
	} {
		if len(f.list) > 0 && len(f.byTag) > 0 {
			errs = append(errs, fmt.Errorf("spec.eni.%s and spec.eni.%s are both set: expected one of them", f.ids, f.tags))
		}
		if slices.Contains(f.list, "") {
			errs = append(errs, fmt.Errorf("spec.eni.%s has an empty ID", f.ids))
		}
		if _, ok := f.byTag[""]; ok {
			errs = append(errs, fmt.Errorf("spec.eni.%s has a tag without a key", f.tags))
		}
	}
	return errors.Join(errs...)
}
