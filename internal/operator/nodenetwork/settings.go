package nodenetwork

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// Settings is an object's spec in the fleet's words, with the defaults of
// Cilium's "ENI Allocation Parameters" where nothing is set. The error
// names every field that makes no sense; the CRD refuses most of that, unless
// its validation is off or older.
func Settings(spec *v1alpha1.NodeNetworkSpec) (eni.Settings, error) {
	e := &spec.ENI
	policy, policyErr := policyOf(e)
	s := eni.Settings{
		InstanceType: spec.InstanceType, VPCID: e.VPCID, Zone: e.AvailabilityZone, Policy: policy,
		SubnetIDs: slices.Sorted(slices.Values(e.SubnetIDs)), SubnetTags: maps.Clone(e.SubnetTags), AnySubnet: true,
		Groups: slices.Sorted(slices.Values(e.SecurityGroups)), GroupTags: maps.Clone(e.SecurityGroupTags),
		KeepENIs:          e.DeleteOnTermination != nil && !*e.DeleteOnTermination,
		UsePrimaryAddress: e.UsePrimaryAddress,
	}
	return s, errors.Join(policyErr, selectorErrors(spec))
}

// beyondType is the error of settings that no instance of a type can have, once
// the cloud said what its limits are.
func beyondType(s eni.Settings, inv *eni.Inventory) error {
	first, most := s.Policy.FirstInterfaceIndex, inv.Limits.MaxENIs
	if most == 0 || first < most {
		return nil
	}
	return fmt.Errorf("spec.eni.firstInterfaceIndex is %d: expected at most %d, as the instance, of type %s, may have %d ENIs", first, most-1, inv.InstanceType, most)
}

// policyOf is how many addresses there should be, in whichever dialect the
// spec speaks: the warm targets if one is set, else the watermarks.
func policyOf(e *v1alpha1.ENISpec) (ipam.Policy, error) {
	warm := e.WarmENITarget != nil || e.WarmIPTarget != nil || e.MinimumIPTarget != nil || e.WarmPrefixTarget != nil
	marks := e.MinAllocate != nil || e.PreAllocate != nil || e.MaxAboveWatermark != nil || e.MaxAllocate != nil
	p := ipam.DefaultCilium()
	if warm {
		p = ipam.DefaultAWS()
		p.FirstInterfaceIndex = ipam.DefaultCilium().FirstInterfaceIndex
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
	p.PrefixDelegation = e.PrefixDelegation
	var err error
	if p.Families, err = ipfamily.Parse(e.IPFamilies); err != nil {
		errs = append(errs, fmt.Errorf("spec.eni.ipFamilies is %w", err))
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

func selectorErrors(spec *v1alpha1.NodeNetworkSpec) error {
	var errs []error
	e := &spec.ENI
	if spec.InstanceID == "" {
		errs = append(errs, errors.New("spec.instanceID is empty: expected an EC2 instance ID"))
	}
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
