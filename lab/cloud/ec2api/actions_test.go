package ec2api_test

import (
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/berthnet/berth/lab/cloud/ec2api"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// everyAction returns an input with valid parameters for each action.
func (r rig) everyAction(eni, attachment string) []any {
	instance := []string{r.cloud.Instances.ID("node-a")}
	tags := []types.Tag{{Key: aws.String("k"), Value: aws.String("v")}}
	subnet, one := aws.String(r.subnet("a")), aws.Int32(1)
	return []any{
		&awsec2.DescribeAvailabilityZonesInput{},
		&awsec2.DescribeInstancesInput{},
		&awsec2.DescribeInstanceStatusInput{},
		&awsec2.DescribeInstanceTypesInput{},
		&awsec2.DescribeNetworkInterfaceAttributeInput{
			NetworkInterfaceId: &eni, Attribute: types.NetworkInterfaceAttributeDescription,
		},
		&awsec2.DescribeNetworkInterfacesInput{},
		&awsec2.DescribeRouteTablesInput{},
		&awsec2.DescribeSecurityGroupsInput{},
		&awsec2.DescribeSubnetsInput{},
		&awsec2.DescribeTagsInput{},
		&awsec2.DescribeTrunkInterfaceAssociationsInput{},
		&awsec2.DescribeVpcsInput{},

		&awsec2.CreateNetworkInterfaceInput{SubnetId: subnet},
		&awsec2.AttachNetworkInterfaceInput{NetworkInterfaceId: &eni, InstanceId: &instance[0], DeviceIndex: one},
		&awsec2.DetachNetworkInterfaceInput{AttachmentId: &attachment},
		&awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &eni},
		&awsec2.AssociateTrunkInterfaceInput{TrunkInterfaceId: &eni, BranchInterfaceId: &eni, VlanId: one},
		&awsec2.DisassociateTrunkInterfaceInput{AssociationId: aws.String("trunk-assoc-0123456789abcdef0")},
		&awsec2.ModifyNetworkInterfaceAttributeInput{
			NetworkInterfaceId: &eni, Description: &types.AttributeValue{Value: aws.String("other")},
		},
		&awsec2.CreateTagsInput{Resources: []string{eni}, Tags: tags},
		&awsec2.DeleteTagsInput{Resources: []string{eni}, Tags: tags},
		&awsec2.RunInstancesInput{
			ImageId: aws.String("ami-0123456789abcdef0"), SubnetId: subnet, MinCount: one, MaxCount: one,
		},
		&awsec2.StartInstancesInput{InstanceIds: instance},
		&awsec2.StopInstancesInput{InstanceIds: instance},
		&awsec2.TerminateInstancesInput{InstanceIds: instance},

		&awsec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: &eni, SecondaryPrivateIpAddressCount: one},
		&awsec2.UnassignPrivateIpAddressesInput{NetworkInterfaceId: &eni, PrivateIpAddresses: []string{"10.0.1.11"}},
		&awsec2.AssignIpv6AddressesInput{NetworkInterfaceId: &eni, Ipv6AddressCount: one},
		&awsec2.UnassignIpv6AddressesInput{NetworkInterfaceId: &eni, Ipv6Addresses: []string{"2600:1f14:abc:de00::77"}},
	}
}

// A dry run reports that the call would succeed; a call without permission or over the rate limit fails
// accordingly. None of them changes anything.
func TestRefusedActionsHaveNoEffect(t *testing.T) {
	r := newRig(t, dual())
	r.cloud.API.SetThrottle(false)
	e := r.create(awsec2.CreateNetworkInterfaceInput{
		PrivateIpAddresses: []types.PrivateIpAddressSpecification{{PrivateIpAddress: aws.String("10.0.1.11")}},
		Ipv6Addresses:      []types.InstanceIpv6Address{{Ipv6Address: aws.String("2600:1f14:abc:de00::77")}},
		TagSpecifications:  tagSpec(types.ResourceTypeNetworkInterface, "k", "v"),
	})
	other := *r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId
	all := r.everyAction(*e.NetworkInterfaceId, r.attach(other, "old", 1))
	var tried []string
	for _, in := range all {
		tried = append(tried, actionOf(in))
	}
	if slices.Sort(tried); !slices.Equal(tried, ec2api.Actions()) {
		t.Fatalf("test covers the actions %v, want %v", tried, ec2api.Actions())
	}
	before := r.cloud.Snapshot()

	dryRuns := 0
	for _, in := range all {
		if !set(in, "DryRun", aws.Bool(true)) { // Assign and Unassign have no DryRun in EC2
			continue
		}
		dryRuns++
		t.Run("dry run of "+actionOf(in), func(t *testing.T) {
			_, err := r.call(in)
			wantCode(t, err, "DryRunOperation", http.StatusPreconditionFailed)
		})
		set(in, "DryRun", (*bool)(nil))
	}
	if dryRuns != len(all)-4 { // all but the four Assign and Unassign actions
		t.Errorf("%d of %d actions accept DryRun, want %d", dryRuns, len(all), len(all)-4)
	}
	refused := func(how, code string, status int) {
		for _, in := range all {
			t.Run(how+" "+actionOf(in), func(t *testing.T) {
				_, err := r.call(in)
				wantCode(t, err, code, status)
			})
		}
	}
	r.cloud.API.Deny("*")
	refused("denied", "UnauthorizedOperation", http.StatusForbidden)
	r.cloud.API.Allow("*")
	r.cloud.API.SetRateLimit("*", spec.RateLimit{Bucket: 0.5, Refill: 1e-9})
	refused("throttled", "RequestLimitExceeded", http.StatusServiceUnavailable)
	after := r.cloud.Snapshot()
	if before.Time = after.Time; !equalSnapshots(before, after) {
		t.Errorf("refused calls changed the cloud:\nbefore %+v\nafter %+v", before, after)
	}
}

func equalSnapshots(a, b vpc.Snapshot) bool {
	return a.Seq == b.Seq && len(a.ENIs) == len(b.ENIs) && len(a.Instances) == len(b.Instances) &&
		slices.EqualFunc(a.ENIs, b.ENIs, func(x, y vpc.ENI) bool {
			return x.ID == y.ID && x.Description == y.Description && maps.Equal(x.Tags, y.Tags)
		})
}

// The pages of each list have no gaps or duplicates, and a token is valid for its own list only.
func TestPaginationOfEveryList(t *testing.T) {
	const rows = 12
	s := instant()
	for i := range rows {
		n := string(rune('a'+i)) + "x"
		s.VPCs = append(s.VPCs, spec.VPC{
			Name: n, CIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i), 0}), 24)},
			Subnets: []spec.Subnet{{Name: n, Zone: "lab-1a", CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i), 0}), 24)}},
		})
		s.Instances = append(s.Instances, spec.Instance{Name: n, Type: "t3.small", Subnet: n})
	}
	s.Instances = append(s.Instances, spec.Instance{Name: "trunks", Type: "m5.xlarge", Subnet: "a", Interfaces: []spec.Interface{{DeviceIndex: 1, Type: "trunk"}}})
	r := newRig(t, s)
	trunk := r.cloud.Snapshot().InstanceENIs(r.cloud.Instances.ID("trunks"))[1].ID
	for vlan := range int32(rows) {
		r.associate(trunk, *r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId, 1+vlan)
	}
	var foreign *string // a token of another list
	for _, name := range slices.Sorted(maps.Keys(rowIDs)) {
		t.Run(name, func(t *testing.T) {
			// page requests one page of at most five rows.
			page := func(token *string) (ids []string, next *string, err error) {
				var fs []types.Filter
				if name == "DescribeTags" {
					fs = filters("resource-type", "instance") // with one tag each
				}
				in := r.input(name, fs)
				set(in, "MaxResults", aws.Int32(5))
				set(in, "NextToken", token)
				out, err := r.call(in)
				if err != nil {
					return nil, nil, err
				}
				next, _ = out.Elem().FieldByName("NextToken").Interface().(*string)
				return texts(out, rowIDs[name]), next, nil
			}
			if foreign != nil {
				_, _, err := page(foreign)
				wantCode(t, err, "InvalidNextToken", http.StatusBadRequest)
			}
			var seen []string
			for token := (*string)(nil); ; {
				list, next, err := page(token)
				if err != nil || len(list) == 0 || len(list) > 5 {
					t.Fatalf("page of %d rows, %v; want 1 to 5 rows", len(list), err)
				}
				if seen = append(seen, list...); next == nil {
					break
				}
				token, foreign = next, next
			}
			if !slices.IsSorted(seen) || len(slices.Compact(slices.Clone(seen))) != len(seen) || len(seen) < rows {
				t.Errorf("pages hold %d rows, want at least %d, sorted and without duplicates: %v", len(seen), rows, seen)
			}
		})
	}
}

// CreateNetworkInterface accepts every way to request addresses, together with groups.
func TestCreateWithEveryAddressParameter(t *testing.T) {
	s := dual()
	s.VPCs[0].SecurityGroups = append(s.VPCs[0].SecurityGroups, spec.SecurityGroup{Name: "pods"})
	r := newRig(t, s)
	pods, _ := r.cloud.Snapshot().Group("pods")
	for _, tc := range []struct {
		name           string
		in             awsec2.CreateNetworkInterfaceInput
		v4, p4, v6, p6 int
	}{
		{"no addresses requested", awsec2.CreateNetworkInterfaceInput{}, 1, 0, 0, 0},
		{"secondary count", awsec2.CreateNetworkInterfaceInput{SecondaryPrivateIpAddressCount: aws.Int32(3)}, 4, 0, 0, 0},
		{"secondary addresses", awsec2.CreateNetworkInterfaceInput{PrivateIpAddresses: []types.PrivateIpAddressSpecification{
			{PrivateIpAddress: aws.String("10.0.1.40"), Primary: aws.Bool(true)}, {PrivateIpAddress: aws.String("10.0.1.41")}, {PrivateIpAddress: aws.String("10.0.1.42")},
		}}, 3, 0, 0, 0},
		{"prefix count", awsec2.CreateNetworkInterfaceInput{Ipv4PrefixCount: aws.Int32(2)}, 1, 2, 0, 0},
		{"prefixes", awsec2.CreateNetworkInterfaceInput{Ipv4Prefixes: []types.Ipv4PrefixSpecificationRequest{{Ipv4Prefix: aws.String("10.0.2.48/28")}}}, 1, 1, 0, 0},
		{"IPv6 count", awsec2.CreateNetworkInterfaceInput{Ipv6AddressCount: aws.Int32(2)}, 1, 0, 2, 0},
		{"IPv6 addresses", awsec2.CreateNetworkInterfaceInput{Ipv6Addresses: []types.InstanceIpv6Address{{Ipv6Address: aws.String("2600:1f14:abc:de00::41")}}}, 1, 0, 1, 0},
		{"IPv6 prefix count", awsec2.CreateNetworkInterfaceInput{Ipv6PrefixCount: aws.Int32(2)}, 1, 0, 0, 2},
		{"IPv6 prefixes", awsec2.CreateNetworkInterfaceInput{Ipv6Prefixes: []types.Ipv6PrefixSpecificationRequest{{Ipv6Prefix: aws.String("2600:1f14:abc:de00:7::/80")}}}, 1, 0, 0, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.in.Groups = []string{pods.ID}
			made := r.create(tc.in)
			for _, e := range []types.NetworkInterface{made, r.describe(*made.NetworkInterfaceId)} {
				got := []int{len(e.PrivateIpAddresses), len(e.Ipv4Prefixes), len(e.Ipv6Addresses), len(e.Ipv6Prefixes)}
				if want := []int{tc.v4, tc.p4, tc.v6, tc.p6}; !slices.Equal(got, want) || len(e.Groups) != 1 || *e.Groups[0].GroupId != pods.ID {
					t.Errorf("IPv4 addresses, IPv4 prefixes, IPv6 addresses, IPv6 prefixes = %v, want %v; groups = %+v, want the group pods", got, want, e.Groups)
				}
			}
		})
	}
	for _, given := range []string{"10.0.1.40", "10.0.1.42", "10.0.2.50", "2600:1f14:abc:de00::41"} {
		owner := slices.ContainsFunc(r.cloud.Snapshot().ENIs, func(e vpc.ENI) bool { return e.Owns(netip.MustParseAddr(given)) })
		if !owner {
			t.Errorf("no ENI has the requested address %s", given)
		}
	}
	if err := r.cloud.Snapshot().Check(); err != nil {
		t.Error(err)
	}
}
