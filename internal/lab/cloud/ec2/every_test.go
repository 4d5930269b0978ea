package ec2_test

import (
	"context"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/berthnet/berth/internal/lab/cloud/ec2"
	"github.com/berthnet/berth/internal/lab/cloud/spec"
	"github.com/berthnet/berth/internal/lab/cloud/vpc"
)

// sound is a call whose parameters are in order; dry asks for a dry run.
type sound func(dry *bool) error

// outcome is the error of an SDK call.
func outcome[I, O any](ctx context.Context, f func(context.Context, *I, ...func(*awsec2.Options)) (*O, error), in I) error {
	_, err := f(ctx, &in)
	return err
}

// everyAction makes a call of each action: of those that take DryRun, and of
// the others.
func (r rig) everyAction(eni, attachment string) (dryRuns, others map[string]sound) {
	ctx, c := r.Context(), r.Client
	instance := []string{r.lab.Cloud.InstanceID("node-a")}
	tags := []types.Tag{{Key: aws.String("k"), Value: aws.String("v")}}
	describe := map[string]sound{
		"DescribeInstances": func(d *bool) error {
			return outcome(ctx, c.DescribeInstances, awsec2.DescribeInstancesInput{DryRun: d})
		},
		"DescribeAvailabilityZones": func(d *bool) error {
			return outcome(ctx, c.DescribeAvailabilityZones, awsec2.DescribeAvailabilityZonesInput{DryRun: d})
		},
		"DescribeInstanceStatus": func(d *bool) error {
			return outcome(ctx, c.DescribeInstanceStatus, awsec2.DescribeInstanceStatusInput{DryRun: d})
		},
		"DescribeNetworkInterfaceAttribute": func(d *bool) error {
			return outcome(ctx, c.DescribeNetworkInterfaceAttribute, awsec2.DescribeNetworkInterfaceAttributeInput{
				DryRun: d, NetworkInterfaceId: &eni, Attribute: types.NetworkInterfaceAttributeDescription,
			})
		},
		"DescribeInstanceTypes": func(d *bool) error {
			return outcome(ctx, c.DescribeInstanceTypes, awsec2.DescribeInstanceTypesInput{DryRun: d})
		},
		"DescribeNetworkInterfaces": func(d *bool) error {
			return outcome(ctx, c.DescribeNetworkInterfaces, awsec2.DescribeNetworkInterfacesInput{DryRun: d})
		},
		"DescribeRouteTables": func(d *bool) error {
			return outcome(ctx, c.DescribeRouteTables, awsec2.DescribeRouteTablesInput{DryRun: d})
		},
		"DescribeSecurityGroups": func(d *bool) error {
			return outcome(ctx, c.DescribeSecurityGroups, awsec2.DescribeSecurityGroupsInput{DryRun: d})
		},
		"DescribeSubnets": func(d *bool) error { return outcome(ctx, c.DescribeSubnets, awsec2.DescribeSubnetsInput{DryRun: d}) },
		"DescribeTags":    func(d *bool) error { return outcome(ctx, c.DescribeTags, awsec2.DescribeTagsInput{DryRun: d}) },
		"DescribeVpcs":    func(d *bool) error { return outcome(ctx, c.DescribeVpcs, awsec2.DescribeVpcsInput{DryRun: d}) },
	}
	change := map[string]sound{
		"CreateNetworkInterface": func(d *bool) error {
			return outcome(ctx, c.CreateNetworkInterface, awsec2.CreateNetworkInterfaceInput{DryRun: d, SubnetId: aws.String(r.subnet("a"))})
		},
		"AttachNetworkInterface": func(d *bool) error {
			return outcome(ctx, c.AttachNetworkInterface, awsec2.AttachNetworkInterfaceInput{DryRun: d, NetworkInterfaceId: &eni, InstanceId: &instance[0], DeviceIndex: aws.Int32(1)})
		},
		"DetachNetworkInterface": func(d *bool) error {
			return outcome(ctx, c.DetachNetworkInterface, awsec2.DetachNetworkInterfaceInput{DryRun: d, AttachmentId: &attachment})
		},
		"DeleteNetworkInterface": func(d *bool) error {
			return outcome(ctx, c.DeleteNetworkInterface, awsec2.DeleteNetworkInterfaceInput{DryRun: d, NetworkInterfaceId: &eni})
		},
		"ModifyNetworkInterfaceAttribute": func(d *bool) error {
			return outcome(ctx, c.ModifyNetworkInterfaceAttribute, awsec2.ModifyNetworkInterfaceAttributeInput{
				DryRun: d, NetworkInterfaceId: &eni, Description: &types.AttributeValue{Value: aws.String("other")},
			})
		},
		"CreateTags": func(d *bool) error {
			return outcome(ctx, c.CreateTags, awsec2.CreateTagsInput{DryRun: d, Resources: []string{eni}, Tags: tags})
		},
		"DeleteTags": func(d *bool) error {
			return outcome(ctx, c.DeleteTags, awsec2.DeleteTagsInput{DryRun: d, Resources: []string{eni}, Tags: tags})
		},
		"RunInstances": func(d *bool) error {
			return outcome(ctx, c.RunInstances, awsec2.RunInstancesInput{
				DryRun: d, ImageId: aws.String("ami-0123456789abcdef0"), SubnetId: aws.String(r.subnet("a")), MinCount: aws.Int32(1), MaxCount: aws.Int32(1),
			})
		},
		"StartInstances": func(d *bool) error {
			return outcome(ctx, c.StartInstances, awsec2.StartInstancesInput{DryRun: d, InstanceIds: instance})
		},
		"StopInstances": func(d *bool) error {
			return outcome(ctx, c.StopInstances, awsec2.StopInstancesInput{DryRun: d, InstanceIds: instance})
		},
		"TerminateInstances": func(d *bool) error {
			return outcome(ctx, c.TerminateInstances, awsec2.TerminateInstancesInput{DryRun: d, InstanceIds: instance})
		},
	}
	maps.Copy(change, describe)
	return change, map[string]sound{
		"AssignPrivateIpAddresses": func(*bool) error {
			return outcome(ctx, c.AssignPrivateIpAddresses, awsec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: &eni, SecondaryPrivateIpAddressCount: aws.Int32(1)})
		},
		"UnassignPrivateIpAddresses": func(*bool) error {
			return outcome(ctx, c.UnassignPrivateIpAddresses, awsec2.UnassignPrivateIpAddressesInput{NetworkInterfaceId: &eni, PrivateIpAddresses: []string{"10.0.1.11"}})
		},
		"AssignIpv6Addresses": func(*bool) error {
			return outcome(ctx, c.AssignIpv6Addresses, awsec2.AssignIpv6AddressesInput{NetworkInterfaceId: &eni, Ipv6AddressCount: aws.Int32(1)})
		},
		"UnassignIpv6Addresses": func(*bool) error {
			return outcome(ctx, c.UnassignIpv6Addresses, awsec2.UnassignIpv6AddressesInput{NetworkInterfaceId: &eni, Ipv6Addresses: []string{"2600:1f14:abc:de00::77"}})
		},
	}
}

// Whatever the action: a dry run tells that the call would succeed, one that is
// not permitted or throttled says so, and none of them changes anything.
func TestEveryActionThatDoesNotHappen(t *testing.T) {
	r := newRig(t, dual())
	r.lab.Cloud.SetThrottle(false)
	e := r.create(awsec2.CreateNetworkInterfaceInput{
		PrivateIpAddresses: []types.PrivateIpAddressSpecification{{PrivateIpAddress: aws.String("10.0.1.11")}},
		Ipv6Addresses:      []types.InstanceIpv6Address{{Ipv6Address: aws.String("2600:1f14:abc:de00::77")}},
		TagSpecifications:  tagSpec(types.ResourceTypeNetworkInterface, "k", "v"),
	})
	other := *r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId
	dryRuns, others := r.everyAction(*e.NetworkInterfaceId, r.attach(other, "old", 1))
	all := maps.Clone(dryRuns)
	maps.Copy(all, others)
	if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, ec2.Actions()) {
		t.Fatalf("tried are %v, the lab has %v", got, ec2.Actions())
	}
	before := r.lab.Cloud.Snapshot()

	for name, call := range dryRuns {
		t.Run("dry "+name, func(t *testing.T) {
			wantCode(t, call(aws.Bool(true)), "DryRunOperation", http.StatusPreconditionFailed)
		})
	}
	r.lab.Cloud.Deny("*")
	for name, call := range all {
		t.Run("denied "+name, func(t *testing.T) { wantCode(t, call(nil), "UnauthorizedOperation", http.StatusForbidden) })
	}
	r.lab.Cloud.Allow("*")
	r.lab.Cloud.SetRateLimit("*", spec.RateLimit{Bucket: 0.5, Refill: 1e-9})
	for name, call := range all {
		t.Run("throttled "+name, func(t *testing.T) { wantCode(t, call(nil), "RequestLimitExceeded", http.StatusServiceUnavailable) })
	}
	after := r.lab.Cloud.Snapshot()
	if before.Time = after.Time; !equalBooks(before, after) {
		t.Errorf("the books changed:\n%+v\n%+v", before, after)
	}
}

func equalBooks(a, b vpc.Books) bool {
	return a.Seq == b.Seq && len(a.ENIs) == len(b.ENIs) && len(a.Instances) == len(b.Instances) &&
		slices.EqualFunc(a.ENIs, b.ENIs, func(x, y vpc.ENI) bool {
			return x.ID == y.ID && x.Description == y.Description && maps.Equal(x.Tags, y.Tags)
		})
}

// ids reads one page of a listing, of five rows at most, and the next token.
type ids func(token *string) ([]string, *string, error)

// Each listing hands out its pages without gaps or repetition, and takes no
// token but its own.
func TestPagesOfEveryListing(t *testing.T) {
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
	r := newRig(t, s)
	five := aws.Int32(5)
	listings := map[string]ids{
		"DescribeInstances": func(token *string) ([]string, *string, error) {
			o, err := r.DescribeInstances(t.Context(), &awsec2.DescribeInstancesInput{MaxResults: five, NextToken: token})
			if err != nil {
				return nil, nil, err
			}
			return keys(o.Reservations, func(x types.Reservation) *string { return x.Instances[0].InstanceId }), o.NextToken, nil
		},
		"DescribeSubnets": func(token *string) ([]string, *string, error) {
			o, err := r.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{MaxResults: five, NextToken: token})
			if err != nil {
				return nil, nil, err
			}
			return keys(o.Subnets, func(x types.Subnet) *string { return x.SubnetId }), o.NextToken, nil
		},
		"DescribeVpcs": func(token *string) ([]string, *string, error) {
			o, err := r.DescribeVpcs(t.Context(), &awsec2.DescribeVpcsInput{MaxResults: five, NextToken: token})
			if err != nil {
				return nil, nil, err
			}
			return keys(o.Vpcs, func(x types.Vpc) *string { return x.VpcId }), o.NextToken, nil
		},
		"DescribeSecurityGroups": func(token *string) ([]string, *string, error) {
			o, err := r.DescribeSecurityGroups(t.Context(), &awsec2.DescribeSecurityGroupsInput{MaxResults: five, NextToken: token})
			if err != nil {
				return nil, nil, err
			}
			return keys(o.SecurityGroups, func(x types.SecurityGroup) *string { return x.GroupId }), o.NextToken, nil
		},
		"DescribeRouteTables": func(token *string) ([]string, *string, error) {
			o, err := r.DescribeRouteTables(t.Context(), &awsec2.DescribeRouteTablesInput{MaxResults: five, NextToken: token})
			if err != nil {
				return nil, nil, err
			}
			return keys(o.RouteTables, func(x types.RouteTable) *string { return x.RouteTableId }), o.NextToken, nil
		},
		"DescribeTags": func(token *string) ([]string, *string, error) {
			o, err := r.DescribeTags(t.Context(), &awsec2.DescribeTagsInput{MaxResults: five, NextToken: token, Filters: filters("resource-type", "instance")})
			if err != nil {
				return nil, nil, err
			}
			return keys(o.Tags, func(x types.TagDescription) *string { return x.ResourceId }), o.NextToken, nil
		},
	}
	var foreign *string // a token of another listing
	for _, name := range slices.Sorted(maps.Keys(listings)) {
		t.Run(name, func(t *testing.T) {
			page := listings[name]
			if foreign != nil {
				_, _, err := page(foreign)
				wantCode(t, err, "InvalidNextToken", http.StatusBadRequest)
			}
			var seen []string
			for token := (*string)(nil); ; {
				list, next, err := page(token)
				if err != nil || len(list) == 0 || len(list) > 5 {
					t.Fatalf("a page of %d rows, %v", len(list), err)
				}
				if seen = append(seen, list...); next == nil {
					break
				}
				token, foreign = next, next
			}
			if !slices.IsSorted(seen) || len(slices.Compact(slices.Clone(seen))) != len(seen) || len(seen) < rows {
				t.Errorf("%d rows of at least %d: %v", len(seen), rows, seen)
			}
		})
	}
}

func keys[T any](list []T, key func(T) *string) (out []string) {
	for _, v := range list {
		out = append(out, *key(v))
	}
	return out
}

// Every way to say which addresses a new ENI gets, and its groups.
func TestCreateWithEveryKindOfAddress(t *testing.T) {
	s := dual()
	s.VPCs[0].SecurityGroups = append(s.VPCs[0].SecurityGroups, spec.SecurityGroup{Name: "pods"})
	r := newRig(t, s)
	pods, _ := r.lab.Cloud.Snapshot().Group("pods")
	for _, tc := range []struct {
		name           string
		in             awsec2.CreateNetworkInterfaceInput
		v4, p4, v6, p6 int
	}{
		{"nothing said", awsec2.CreateNetworkInterfaceInput{}, 1, 0, 0, 0},
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
					t.Errorf("addresses %v, want %v; groups %+v", got, want, e.Groups)
				}
			}
		})
	}
	for _, given := range []string{"10.0.1.40", "10.0.1.42", "10.0.2.50", "2600:1f14:abc:de00::41"} {
		owner := slices.ContainsFunc(r.lab.Cloud.Snapshot().ENIs, func(e vpc.ENI) bool { return e.Owns(netip.MustParseAddr(given)) })
		if !owner {
			t.Errorf("nobody owns %s", given)
		}
	}
	if err := r.lab.Cloud.Snapshot().Check(); err != nil {
		t.Error(err)
	}
}
