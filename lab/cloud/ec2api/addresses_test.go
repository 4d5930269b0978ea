package ec2api_test

import (
	"net/http"
	"net/netip"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/berthnet/berth/lab/cloud/spec"
)

// dual returns the default spec with IPv6 and with a node whose instance type does not support prefixes.
func dual() spec.Spec {
	s := instant()
	s.VPCs[0].IPv6 = []netip.Prefix{netip.MustParsePrefix("2600:1f14:abc:de00::/56")}
	s.VPCs[0].Subnets[0].IPv6 = netip.MustParsePrefix("2600:1f14:abc:de00::/64")
	s.Instances = append(s.Instances, spec.Instance{Name: "old", Type: "m4.large", Subnet: "a"})
	return s
}

func TestIPv4Addresses(t *testing.T) {
	r := newRig(t, instant())
	id := r.create(awsec2.CreateNetworkInterfaceInput{PrivateIpAddress: aws.String("10.0.1.10")}).NetworkInterfaceId
	assign := func(in awsec2.AssignPrivateIpAddressesInput) *awsec2.AssignPrivateIpAddressesOutput {
		t.Helper()
		in.NetworkInterfaceId = id
		out, err := r.AssignPrivateIpAddresses(t.Context(), &in)
		ok(t, err)
		return out
	}
	byCount := assign(awsec2.AssignPrivateIpAddressesInput{SecondaryPrivateIpAddressCount: aws.Int32(2)}).AssignedPrivateIpAddresses
	assign(awsec2.AssignPrivateIpAddressesInput{PrivateIpAddresses: []string{"10.0.1.20", "10.0.1.21"}})
	prefix := assign(awsec2.AssignPrivateIpAddressesInput{Ipv4PrefixCount: aws.Int32(1)}).AssignedIpv4Prefixes
	assign(awsec2.AssignPrivateIpAddressesInput{Ipv4Prefixes: []string{"10.0.2.32/28"}})

	e := r.describe(*id)
	var got []string
	for _, a := range e.PrivateIpAddresses {
		got = append(got, *a.PrivateIpAddress)
	}
	want := []string{"10.0.1.10", *byCount[0].PrivateIpAddress, *byCount[1].PrivateIpAddress, "10.0.1.20", "10.0.1.21"}
	if !slices.Equal(got, want) || *e.PrivateIpAddress != "10.0.1.10" || !*e.PrivateIpAddresses[0].Primary || *e.PrivateIpAddresses[1].Primary {
		t.Fatalf("IPv4 addresses = %v, want %v with the first one primary", got, want)
	}
	if len(e.Ipv4Prefixes) != 2 || *e.Ipv4Prefixes[0].Ipv4Prefix != *prefix[0].Ipv4Prefix || *e.Ipv4Prefixes[1].Ipv4Prefix != "10.0.2.32/28" {
		t.Fatalf("IPv4 prefixes = %+v, want one chosen by EC2 and 10.0.2.32/28", e.Ipv4Prefixes)
	}

	for _, in := range []awsec2.UnassignPrivateIpAddressesInput{
		{PrivateIpAddresses: []string{"10.0.1.20", want[1]}},
		{Ipv4Prefixes: []string{"10.0.2.32/28"}},
	} {
		in.NetworkInterfaceId = id
		r.does(t, &in)
	}
	if e := r.describe(*id); len(e.PrivateIpAddresses) != 3 || len(e.Ipv4Prefixes) != 1 {
		t.Fatalf("after unassignment: addresses %+v, prefixes %+v; want 3 and 1", e.PrivateIpAddresses, e.Ipv4Prefixes)
	}
}

func TestReassignment(t *testing.T) {
	r := newRig(t, instant())
	from := r.create(awsec2.CreateNetworkInterfaceInput{PrivateIpAddresses: []types.PrivateIpAddressSpecification{
		{PrivateIpAddress: aws.String("10.0.1.10"), Primary: aws.Bool(true)}, {PrivateIpAddress: aws.String("10.0.1.11")},
	}})
	to := r.create(awsec2.CreateNetworkInterfaceInput{})
	in := &awsec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: to.NetworkInterfaceId, PrivateIpAddresses: []string{"10.0.1.11"}}
	r.refuses(t, "InvalidParameterValue", in)

	in.AllowReassignment = aws.Bool(true)
	r.does(t, in)
	if a, b := r.describe(*from.NetworkInterfaceId), r.describe(*to.NetworkInterfaceId); len(a.PrivateIpAddresses) != 1 || len(b.PrivateIpAddresses) != 2 {
		t.Fatalf("after reassignment: addresses %+v on the old ENI, %+v on the new one; want 1 and 2", a.PrivateIpAddresses, b.PrivateIpAddresses)
	}
	in.PrivateIpAddresses = []string{"10.0.1.10"} // a primary address cannot move
	r.refuses(t, "InvalidParameterValue", in)
}

func TestIPv6Addresses(t *testing.T) {
	r := newRig(t, dual())
	e := r.create(awsec2.CreateNetworkInterfaceInput{Ipv6AddressCount: aws.Int32(1)})
	id := e.NetworkInterfaceId
	if len(e.Ipv6Addresses) != 1 {
		t.Fatalf("new ENI has IPv6 addresses %+v, want one", e.Ipv6Addresses)
	}
	const given, prefix = "2600:1f14:abc:de00::77", "2600:1f14:abc:de00:5::/80"
	for _, in := range []awsec2.AssignIpv6AddressesInput{
		{Ipv6AddressCount: aws.Int32(2)}, {Ipv6Addresses: []string{given}}, {Ipv6PrefixCount: aws.Int32(1)}, {Ipv6Prefixes: []string{prefix}},
	} {
		in.NetworkInterfaceId = id
		out, err := r.AssignIpv6Addresses(t.Context(), &in)
		if err != nil || len(out.AssignedIpv6Addresses)+len(out.AssignedIpv6Prefixes) == 0 {
			t.Fatalf("AssignIpv6Addresses() = %+v, %v; want an address or prefix", out, err)
		}
	}
	if e := r.describe(*id); len(e.Ipv6Addresses) != 4 || len(e.Ipv6Prefixes) != 2 {
		t.Fatalf("IPv6 addresses %+v, prefixes %+v; want 4 and 2", e.Ipv6Addresses, e.Ipv6Prefixes)
	}
	other := r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId
	r.refuses(t, "InvalidIPAddress.InUse", &awsec2.AssignIpv6AddressesInput{NetworkInterfaceId: other, Ipv6Addresses: []string{given}})

	for _, in := range []awsec2.UnassignIpv6AddressesInput{{Ipv6Addresses: []string{given}}, {Ipv6Prefixes: []string{prefix}}} {
		in.NetworkInterfaceId = id
		out, err := r.UnassignIpv6Addresses(t.Context(), &in)
		if err != nil || len(out.UnassignedIpv6Addresses)+len(out.UnassignedIpv6Prefixes) != 1 {
			t.Fatalf("UnassignIpv6Addresses() = %+v, %v; want one address or prefix", out, err)
		}
	}
	if e := r.describe(*id); len(e.Ipv6Addresses) != 3 || len(e.Ipv6Prefixes) != 1 {
		t.Fatalf("after unassignment: IPv6 addresses %+v, prefixes %+v; want 3 and 1", e.Ipv6Addresses, e.Ipv6Prefixes)
	}
}

// In a subnet that assigns IPv6 addresses on creation, a new ENI or instance gets one, unless the request
// specifies its IPv6 addresses.
func TestIPv6OnCreation(t *testing.T) {
	s := dual()
	s.VPCs[0].Subnets[0].AssignIPv6, s.VPCs[0].EgressOnlyIPv6 = true, true
	r := newRig(t, s)
	for _, tc := range []struct {
		name                string
		in                  awsec2.CreateNetworkInterfaceInput
		addresses, prefixes int
	}{
		{"no addresses requested", awsec2.CreateNetworkInterfaceInput{}, 1, 0},
		{"IPv4 count", awsec2.CreateNetworkInterfaceInput{SecondaryPrivateIpAddressCount: aws.Int32(2)}, 1, 0},
		{"none", awsec2.CreateNetworkInterfaceInput{Ipv6AddressCount: aws.Int32(0)}, 0, 0},
		{"IPv4 and IPv6 counts", awsec2.CreateNetworkInterfaceInput{SecondaryPrivateIpAddressCount: aws.Int32(2), Ipv6AddressCount: aws.Int32(3)}, 3, 0},
		{"IPv4 and IPv6 prefixes", awsec2.CreateNetworkInterfaceInput{Ipv4PrefixCount: aws.Int32(1), Ipv6PrefixCount: aws.Int32(1)}, 0, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := r.describe(*r.create(tc.in).NetworkInterfaceId)
			if len(e.Ipv6Addresses) != tc.addresses || len(e.Ipv6Prefixes) != tc.prefixes {
				t.Errorf("IPv6 addresses %+v, prefixes %+v; want %d and %d", e.Ipv6Addresses, e.Ipv6Prefixes, tc.addresses, tc.prefixes)
			}
		})
	}
	snapshot := r.cloud.Snapshot()
	node, _ := snapshot.Instance("node-a")
	if e := snapshot.InstanceENIs(node.ID)[0]; len(e.IPv6) != 1 {
		t.Errorf("instance has IPv6 addresses %v, want one", e.IPv6)
	}
	subnets, err := r.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{SubnetIds: []string{r.subnet("a")}})
	ok(t, err)
	if n := subnets.Subnets[0]; !*n.AssignIpv6AddressOnCreation || len(n.Ipv6CidrBlockAssociationSet) != 1 || n.Ipv6CidrBlockAssociationSet[0].Ipv6CidrBlockState.State != types.SubnetCidrBlockStateCodeAssociated {
		t.Errorf("subnet = %+v, want an associated IPv6 block and assignment on creation", n)
	}
	tables, err := r.DescribeRouteTables(t.Context(), &awsec2.DescribeRouteTablesInput{Filters: filters("route.egress-only-internet-gateway-id", "eigw-*")})
	ok(t, err)
	i := slices.IndexFunc(tables.RouteTables[0].Routes, func(o types.Route) bool { return aws.ToString(o.DestinationIpv6CidrBlock) == "::/0" })
	if o := tables.RouteTables[0].Routes[i]; o.EgressOnlyInternetGatewayId == nil || o.GatewayId != nil {
		t.Errorf("IPv6 default route = %+v, want an egress-only internet gateway", o)
	}
	if err := r.cloud.Snapshot().Check(); err != nil {
		t.Error(err)
	}
}

func TestAssignErrors(t *testing.T) {
	s := dual()
	s.VPCs[0].Subnets = append(s.VPCs[0].Subnets, spec.Subnet{Name: "tiny", Zone: "lab-1a", CIDR: netip.MustParsePrefix("10.0.8.0/28")})
	r := newRig(t, s)
	snapshot := r.cloud.Snapshot()
	primary := func(name string) string {
		i, _ := snapshot.Instance(name)
		return snapshot.InstanceENIs(i.ID)[0].ID
	}
	node, old := primary("node-a"), primary("old")
	tiny := *r.create(awsec2.CreateNetworkInterfaceInput{SubnetId: aws.String(r.subnet("tiny"))}).NetworkInterfaceId
	nodeB := primary("node-b") // in a subnet without IPv6

	for _, tc := range []struct {
		name, eni string
		in        awsec2.AssignPrivateIpAddressesInput
		code      string
	}{
		{"unknown ENI", "eni-0123456789abcdef0", awsec2.AssignPrivateIpAddressesInput{SecondaryPrivateIpAddressCount: aws.Int32(1)}, "InvalidNetworkInterfaceID.NotFound"},
		{"malformed ENI", "eni-x", awsec2.AssignPrivateIpAddressesInput{SecondaryPrivateIpAddressCount: aws.Int32(1)}, "InvalidNetworkInterfaceId.Malformed"},
		{"no address requested", node, awsec2.AssignPrivateIpAddressesInput{}, "MissingParameter"},
		{"address count and prefix count", node, awsec2.AssignPrivateIpAddressesInput{SecondaryPrivateIpAddressCount: aws.Int32(1), Ipv4PrefixCount: aws.Int32(1)}, "InvalidParameterCombination"},
		{"zero", node, awsec2.AssignPrivateIpAddressesInput{SecondaryPrivateIpAddressCount: aws.Int32(0)}, "InvalidParameterValue"},
		{"more addresses than the type supports", node, awsec2.AssignPrivateIpAddressesInput{SecondaryPrivateIpAddressCount: aws.Int32(10)}, "PrivateIpAddressLimitExceeded"},
		{"more prefixes than the type supports", node, awsec2.AssignPrivateIpAddressesInput{Ipv4PrefixCount: aws.Int32(10)}, "PrivateIpAddressLimitExceeded"},
		{"prefix on a Xen type", old, awsec2.AssignPrivateIpAddressesInput{Ipv4PrefixCount: aws.Int32(1)}, "UnsupportedOperation"},
		{"reserved", node, awsec2.AssignPrivateIpAddressesInput{PrivateIpAddresses: []string{"10.0.0.3"}}, "InvalidParameterValue"},
		{"broadcast", node, awsec2.AssignPrivateIpAddressesInput{PrivateIpAddresses: []string{"10.0.3.255"}}, "InvalidParameterValue"},
		{"address outside the subnet", node, awsec2.AssignPrivateIpAddressesInput{PrivateIpAddresses: []string{"10.0.4.9"}}, "InvalidParameterValue"},
		{"invalid address", node, awsec2.AssignPrivateIpAddressesInput{PrivateIpAddresses: []string{"ten"}}, "InvalidParameterValue"},
		{"unaligned prefix", node, awsec2.AssignPrivateIpAddressesInput{Ipv4Prefixes: []string{"10.0.1.8/28"}}, "InvalidParameterValue"},
		{"prefix of the wrong size", node, awsec2.AssignPrivateIpAddressesInput{Ipv4Prefixes: []string{"10.0.1.0/27"}}, "InvalidParameterValue"},
		{"prefix with reserved addresses", node, awsec2.AssignPrivateIpAddressesInput{Ipv4Prefixes: []string{"10.0.0.0/28"}}, "InvalidParameterValue"},
		{"full subnet", tiny, awsec2.AssignPrivateIpAddressesInput{SecondaryPrivateIpAddressCount: aws.Int32(11)}, "InsufficientFreeAddressesInSubnet"},
		{"no free prefix block", tiny, awsec2.AssignPrivateIpAddressesInput{Ipv4PrefixCount: aws.Int32(1)}, "InsufficientCidrBlocks"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.in.NetworkInterfaceId = &tc.eni
			r.refuses(t, tc.code, &tc.in)
		})
	}
	for _, tc := range []struct {
		name, eni string
		in        awsec2.UnassignPrivateIpAddressesInput
	}{
		{"address not assigned", node, awsec2.UnassignPrivateIpAddressesInput{PrivateIpAddresses: []string{"10.0.1.77"}}},
		{"prefix not assigned", node, awsec2.UnassignPrivateIpAddressesInput{Ipv4Prefixes: []string{"10.0.1.64/28"}}},
		{"address of another ENI", node, awsec2.UnassignPrivateIpAddressesInput{PrivateIpAddresses: []string{snapshot.InstanceENIs(snapshot.Instances[2].ID)[0].Primary.String()}}},
		{"primary", tiny, awsec2.UnassignPrivateIpAddressesInput{PrivateIpAddresses: []string{*r.describe(tiny).PrivateIpAddress}}},
	} {
		t.Run("unassign "+tc.name, func(t *testing.T) {
			tc.in.NetworkInterfaceId = &tc.eni
			r.refuses(t, "InvalidParameterValue", &tc.in)
		})
	}
	r.refuses(t, "InvalidParameterValue", &awsec2.AssignIpv6AddressesInput{NetworkInterfaceId: &nodeB, Ipv6AddressCount: aws.Int32(1)})
	r.refuses(t, "InvalidParameterValue", &awsec2.CreateNetworkInterfaceInput{SubnetId: aws.String(r.subnet("tiny")), Ipv6PrefixCount: aws.Int32(1)})
	r.refuses(t, "PrivateIpAddressLimitExceeded", &awsec2.AssignIpv6AddressesInput{NetworkInterfaceId: &node, Ipv6AddressCount: aws.Int32(11)})
	r.refuses(t, "UnsupportedOperation", &awsec2.AssignIpv6AddressesInput{NetworkInterfaceId: &old, Ipv6PrefixCount: aws.Int32(1)})
	r.refuses(t, "InvalidParameterValue", &awsec2.AssignIpv6AddressesInput{NetworkInterfaceId: &node, Ipv6Prefixes: []string{"2600:1f14:abc:de00:5::/96"}})
	r.refuses(t, "InvalidParameterValue", &awsec2.UnassignIpv6AddressesInput{NetworkInterfaceId: &node, Ipv6Addresses: []string{"2600:1f14:abc:de00::99"}})
	r.refuses(t, "MissingParameter", &awsec2.UnassignIpv6AddressesInput{NetworkInterfaceId: &node})
}

// A subnet with enough free addresses but no free aligned block cannot provide prefixes until a block
// becomes free.
func TestFragmentation(t *testing.T) {
	s := instant()
	s.VPCs[0].Subnets = append(s.VPCs[0].Subnets, spec.Subnet{Name: "small", Zone: "lab-1a", CIDR: netip.MustParsePrefix("10.0.8.0/26")})
	r := newRig(t, s)
	var enis []string
	for _, ip := range []string{"10.0.8.20", "10.0.8.40"} { // one address in each of the two free blocks
		e := r.create(awsec2.CreateNetworkInterfaceInput{SubnetId: aws.String(r.subnet("small")), PrivateIpAddress: aws.String(ip)})
		enis = append(enis, *e.NetworkInterfaceId)
	}
	free := func() int32 {
		out, err := r.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{SubnetIds: []string{r.subnet("small")}})
		ok(t, err)
		return *out.Subnets[0].AvailableIpAddressCount
	}
	if free() != 64-5-2 {
		t.Fatalf("%d free addresses, want %d", free(), 64-5-2)
	}
	ask := &awsec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: &enis[0], Ipv4PrefixCount: aws.Int32(1)}
	r.refuses(t, "InsufficientCidrBlocks", ask)
	if free() != 64-5-2 {
		t.Fatalf("%d free addresses after a refused call, want %d", free(), 64-5-2)
	}
	r.does(t, &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &enis[1]})
	out, err := r.AssignPrivateIpAddresses(t.Context(), ask)
	if err != nil || *out.AssignedIpv4Prefixes[0].Ipv4Prefix != "10.0.8.32/28" || free() != 64-5-1-16 {
		t.Fatalf("AssignPrivateIpAddresses() = %+v, %v with %d free addresses; want prefix 10.0.8.32/28 and %d", out, err, free(), 64-5-1-16)
	}
}

// A prefix counts as one address towards the limit of an ENI, which is ten on an m5.large.
func TestPrefixTakesOneSlot(t *testing.T) {
	r := newRig(t, instant())
	e := r.create(awsec2.CreateNetworkInterfaceInput{Ipv4PrefixCount: aws.Int32(5)})
	r.attach(*e.NetworkInterfaceId, "node-a", 1)
	for n, want := range []string{"", "PrivateIpAddressLimitExceeded"} {
		_, err := r.AssignPrivateIpAddresses(t.Context(), &awsec2.AssignPrivateIpAddressesInput{
			NetworkInterfaceId: e.NetworkInterfaceId, SecondaryPrivateIpAddressCount: aws.Int32(int32(4 - 3*n)),
		})
		if want != "" {
			wantCode(t, err, want, http.StatusBadRequest)
		} else if err != nil {
			t.Fatalf("assign four addresses to an ENI with five prefixes: %v", err)
		}
	}
}
