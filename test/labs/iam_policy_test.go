package labs

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/test/harness"
)

// TestOperatorPolicySuffices runs an operator with deploy/iam/operator.json, and nodes without EC2
// permissions. They grow and shrink without a refused call, and every action of the policy is used.
func TestOperatorPolicySuffices(t *testing.T) {
	t.Parallel()
	harness.Rotate(t, 3) // every lab has the policy; what is too much in it is seen here
	few := harness.Few(t, "m5.large")
	s := lab.DefaultSpec(2, few.Type)
	s.VPCs[0].SecurityGroups = append(s.VPCs[0].SecurityGroups, spec.SecurityGroup{
		Name: "pods", Description: "of pods", Tags: map[string]string{"for": "pods"},
		Ingress: s.VPCs[0].SecurityGroups[0].Ingress,
	})
	further := s.VPCs[0].Subnets[0] // of the zone, so that there is a choice
	further.Name, further.ID, further.IPv6, further.CIDR = "further", "", netip.Prefix{}, netip.MustParsePrefix("10.0.200.0/24")
	s.VPCs[0].Subnets = append(s.VPCs[0].Subnets, further)
	l := harness.RaiseQuick(t, lab.OperatorMode, lab.Options{Spec: &s, DaemonArgs: []string{"--pre-allocate=8", "--warm-wait=20s"}})

	first, prefixes := l.Nodes()[0], l.Nodes()[1]
	// One edit, and no pods before it takes effect: the new ENI is the one that looks for groups.
	harness.Edit(t, l, first.Name, func(s *v1alpha1.NodeNetworkSpec) {
		s.ENI.SecurityGroupTags, s.ENI.PreAllocate = map[string]string{"for": "pods"}, new(int32(few.PerENI+1)) // more than an ENI has room for
	})
	harness.Eventually(t, patience, "the operator looks for groups", func() error {
		if l.Cloud.API.Stats()["DescribeSecurityGroups"].Count == 0 {
			return errors.New("it did not")
		}
		return nil
	})
	harness.Edit(t, l, prefixes.Name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.PrefixDelegation = new(true) })
	pods := few.PerENI + 3
	for _, n := range l.Nodes() {
		for i := range pods {
			harness.Add(t, n, fmt.Sprintf("p%d", i))
		}
	}
	for _, n := range l.Nodes() {
		for i := range pods {
			harness.Remove(t, n, fmt.Sprintf("p%d", i))
		}
	}
	// Whichever ENIs released addresses first, one has room for this one.
	harness.Edit(t, l, first.Name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.PreAllocate = new(int32(1)) })
	harness.Eventually(t, patience, "surplus ENIs go", func() error {
		if enis := l.Snapshot().InstanceENIs(first.InstanceID); len(enis) > 2 {
			return fmt.Errorf("%s has %d ENIs", first.Name, len(enis))
		}
		return nil
	})
	harness.Settle(t, l)

	harness.OK(t, l.Cloud.Instances.Stop(prefixes.InstanceID))
	harness.Eventually(t, patience, "the operator has called what it may, and asked what became of an instance", func() error {
		calls := l.Cloud.API.Stats()
		var errs []error
		for _, m := range regexp.MustCompile(`ec2:([A-Z]\w+)`).FindAllStringSubmatch(deploy.OperatorPolicy("lab"), -1) {
			// EC2 wants this permission for tags at creation; ec2:CreateAction is a condition key;
			// these pods have no ports of a VPC.
			unneeded := []string{"CreateTags", "CreateAction", "AssociateTrunkInterface", "DisassociateTrunkInterface"}
			if harness.Families() == ipfamily.OnlyIPv6 {
				unneeded = append(unneeded, "AssignPrivateIpAddresses", "UnassignPrivateIpAddresses")
			} else { // with both families ENIs come and go with their prefix
				unneeded = append(unneeded, "AssignIpv6Addresses", "UnassignIpv6Addresses")
			}
			if action := m[1]; calls[action].Count == 0 && !slices.Contains(unneeded, action) {
				errs = append(errs, fmt.Errorf("%s was never called", action))
			}
		}
		return errors.Join(errs...)
	})
	for action, c := range l.Cloud.API.Stats() {
		if c.Errors["UnauthorizedOperation"] > 0 {
			t.Errorf("%s was refused", action)
		}
	}
}
