package ec2api_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/berthnet/berth/lab/cloud/spec"
)

// withNative returns dual with an IPv6-only subnet, "six", and an instance in it.
func withNative() spec.Spec {
	s := dual()
	s.VPCs[0].Subnets = append(s.VPCs[0].Subnets, spec.Subnet{
		Name: "six", Zone: "lab-1a", IPv6Native: true, IPv6: netip.MustParsePrefix("2600:1f14:abc:de66::/64"),
	})
	s.Instances = append(s.Instances, spec.Instance{Name: "native", Type: "m5.large", Subnet: "six"})
	return s
}

// An IPv6-only subnet is described without an IPv4 block and free IPv4 addresses, and its ENIs and
// instances without IPv4 addresses.
func TestIPv6OnlySubnet(t *testing.T) {
	r := newRig(t, withNative())
	subnets, err := r.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{Filters: filters("ipv6-native", "true")})
	ok(t, err)
	if len(subnets.Subnets) != 1 {
		t.Fatalf("%d IPv6-only subnets, want 1", len(subnets.Subnets))
	}
	n := subnets.Subnets[0]
	if !*n.Ipv6Native || n.CidrBlock != nil || *n.AvailableIpAddressCount != 0 || !*n.AssignIpv6AddressOnCreation || *n.Ipv6CidrBlockAssociationSet[0].Ipv6CidrBlock != "2600:1f14:abc:de66::/64" {
		t.Errorf("subnet = %+v, want IPv6-only", n)
	}
	for _, tc := range []struct {
		name                string
		in                  awsec2.CreateNetworkInterfaceInput
		addresses, prefixes int
	}{
		{"no addresses requested", awsec2.CreateNetworkInterfaceInput{}, 1, 0},
		{"none", awsec2.CreateNetworkInterfaceInput{Ipv6AddressCount: aws.Int32(0)}, 1, 0},
		{"some", awsec2.CreateNetworkInterfaceInput{Ipv6AddressCount: aws.Int32(3)}, 3, 0},
		{"IPv6 prefix", awsec2.CreateNetworkInterfaceInput{Ipv6PrefixCount: aws.Int32(1)}, 1, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.in.SubnetId = n.SubnetId
			e := r.describe(*r.create(tc.in).NetworkInterfaceId)
			if e.PrivateIpAddress != nil || len(e.PrivateIpAddresses) > 0 || len(e.Ipv6Addresses) != tc.addresses || len(e.Ipv6Prefixes) != tc.prefixes || !aws.ToBool(e.Ipv6Native) {
				t.Errorf("ENI = %+v, want %d IPv6 addresses, %d prefixes and no IPv4 address", e, tc.addresses, tc.prefixes)
			}
		})
	}
	id := r.cloud.Instances.ID("native")
	instances, err := r.DescribeInstances(t.Context(), &awsec2.DescribeInstancesInput{InstanceIds: []string{id}, Filters: filters("network-interface.ipv6-native", "true")})
	ok(t, err)
	if i := instances.Reservations[0].Instances[0]; i.PrivateIpAddress != nil || !strings.HasPrefix(*i.PrivateDnsName, id+".") || i.Ipv6Address == nil {
		t.Errorf("instance = %+v, want an IPv6 address, no IPv4 address and a name from its ID", i)
	}
	if err := r.cloud.Snapshot().Check(); err != nil {
		t.Error(err)
	}
}

// An IPv6-only subnet refuses requests for IPv4 and instances not built on Nitro.
func TestIPv6OnlySubnetRefusesIPv4(t *testing.T) {
	r := newRig(t, withNative())
	six := aws.String(r.subnet("six"))
	const combination = "InvalidParameterCombination"
	r.refuses(t, combination, &awsec2.CreateNetworkInterfaceInput{SubnetId: six, SecondaryPrivateIpAddressCount: aws.Int32(1)})
	r.refuses(t, combination, &awsec2.CreateNetworkInterfaceInput{SubnetId: six, Ipv4PrefixCount: aws.Int32(1)})
	r.refuses(t, combination, &awsec2.CreateNetworkInterfaceInput{SubnetId: six, PrivateIpAddress: aws.String("10.0.0.9")})
	id := r.create(awsec2.CreateNetworkInterfaceInput{SubnetId: six}).NetworkInterfaceId
	r.refuses(t, combination, &awsec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: id, SecondaryPrivateIpAddressCount: aws.Int32(1)})
	r.refuses(t, "UnsupportedOperation", &awsec2.AttachNetworkInterfaceInput{NetworkInterfaceId: id, InstanceId: aws.String(r.cloud.Instances.ID("old")), DeviceIndex: aws.Int32(1)})
	r.refuses(t, "UnsupportedOperation", &awsec2.RunInstancesInput{
		ImageId: aws.String("ami-1"), InstanceType: "m4.large", SubnetId: six, MinCount: aws.Int32(1), MaxCount: aws.Int32(1),
	})
	if err := r.cloud.Snapshot().Check(); err != nil {
		t.Error(err)
	}
}
