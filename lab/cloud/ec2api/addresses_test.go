package ec2api_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/berthnet/berth/lab/cloud/spec"
)

// dual is the default lab with IPv6 and a node of a type without prefixes.
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
		t.Fatalf("addresses %v, want %v", got, want)
	}
	if len(e.Ipv4Prefixes) != 2 || *e.Ipv4Prefixes[0].Ipv4Prefix != *prefix[0].Ipv4Prefix || *e.Ipv4Prefixes[1].Ipv4Prefix != "10.0.2.32/28" {
		t.Fatalf("prefixes %+v", e.Ipv4Prefixes)
	}

	for _, in := range []awsec2.UnassignPrivateIpAddressesInput{
		{PrivateIpAddresses: []string{"10.0.1.20", want[1]}},
		{Ipv4Prefixes: []string{"10.0.2.32/28"}},
	} {
		in.NetworkInterfaceId = id
		r.does(t, &in)
	}
	if e := r.describe(*id); len(e.PrivateIpAddresses) != 3 || len(e.Ipv4Prefixes) != 1 {
		t.Fatalf("left %+v %+v", e.PrivateIpAddresses, e.Ipv4Prefixes)
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
		t.Fatalf("moved from %+v to %+v", a.PrivateIpAddresses, b.PrivateIpAddresses)
	}
	in.PrivateIpAddresses = []string{"10.0.1.10"} // a primary address does not move
	r.refuses(t, "InvalidParameterValue", in)
}

func TestIPv6Addresses(t *testing.T) {
	r := newRig(t, dual())
	e := r.create(awsec2.CreateNetworkInterfaceInput{Ipv6AddressCount: aws.Int32(1)})
	id := e.NetworkInterfaceId
	if len(e.Ipv6Addresses) != 1 {
		t.Fatalf("created with %+v", e.Ipv6Addresses)
	}
	const given, prefix = "2600:1f14:abc:de00::77", "2600:1f14:abc:de00:5::/80"
	for _, in := range []awsec2.AssignIpv6AddressesInput{
		{Ipv6AddressCount: aws.Int32(2)}, {Ipv6Addresses: []string{given}}, {Ipv6PrefixCount: aws.Int32(1)}, {Ipv6Prefixes: []string{prefix}},
	} {
		in.NetworkInterfaceId = id
		out, err := r.AssignIpv6Addresses(t.Context(), &in)
		if err != nil || len(out.AssignedIpv6Addresses)+len(out.AssignedIpv6Prefixes) == 0 {
			t.Fatalf("assigned %+v, %v", out, err)
		}
	}
	if e := r.describe(*id); len(e.Ipv6Addresses) != 4 || len(e.Ipv6Prefixes) != 2 {
		t.Fatalf("addresses %+v, prefixes %+v", e.Ipv6Addresses, e.Ipv6Prefixes)
	}
	other := r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId
	r.refuses(t, "InvalidIPAddress.InUse", &awsec2.AssignIpv6AddressesInput{NetworkInterfaceId: other, Ipv6Addresses: []string{given}})

	for _, in := range []awsec2.UnassignIpv6AddressesInput{{Ipv6Addresses: []string{given}}, {Ipv6Prefixes: []string{prefix}}} {
		in.NetworkInterfaceId = id
		out, err := r.UnassignIpv6Addresses(t.Context(), &in)
		if err != nil || len(out.UnassignedIpv6Addresses)+len(out.UnassignedIpv6Prefixes) != 1 {
			t.Fatalf("unassigned %+v, %v", out, err)
		}
	}
	if e := r.describe(*id); len(e.Ipv6Addresses) != 3 || len(e.Ipv6Prefixes) != 1 {
		t.Fatalf("left %+v, %+v", e.Ipv6Addresses, e.Ipv6Prefixes)
	}
}

// Of a subnet that assigns IPv6 addresses a new ENI has one, and so has an instance, unless
// the call says what they get.
func TestIPv6OnCreation(t *testing.T) {
	s := dual()
	s.VPCs[0].Subnets[0].AssignIPv6, s.VPCs[0].EgressOnlyIPv6 = true, true
	r := newRig(t, s)
	for _, tc := range []struct {
		name                string
		in                  awsec2.CreateNetworkInterfaceInput
		addresses, prefixes int
	}{
		{"nothing said", awsec2.CreateNetworkInterfaceInput{}, 1, 0},
		{"IPv4 said", awsec2.CreateNetworkInterfaceInput{SecondaryPrivateIpAddressCount: aws.Int32(2)}, 1, 0},
		{"none", awsec2.CreateNetworkInterfaceInput{Ipv6AddressCount: aws.Int32(0)}, 0, 0},
		{"a count beside one of IPv4", awsec2.CreateNetworkInterfaceInput{SecondaryPrivateIpAddressCount: aws.Int32(2), Ipv6AddressCount: aws.Int32(3)}, 3, 0},
		{"a prefix beside one of IPv4", awsec2.CreateNetworkInterfaceInput{Ipv4PrefixCount: aws.Int32(1), Ipv6PrefixCount: aws.Int32(1)}, 0, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := r.describe(*r.create(tc.in).NetworkInterfaceId)
			if len(e.Ipv6Addresses) != tc.addresses || len(e.Ipv6Prefixes) != tc.prefixes {
				t.Errorf("addresses %+v, prefixes %+v", e.Ipv6Addresses, e.Ipv6Prefixes)
			}
		})
	}
	books := r.cloud.Snapshot()
	node, _ := books.Instance("node-a")
	if e := books.InstanceENIs(node.ID)[0]; len(e.IPv6) != 1 {
		t.Errorf("an instance has %v", e.IPv6)
	}
	subnets, err := r.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{SubnetIds: []string{r.subnet("a")}})
	ok(t, err)
	if n := subnets.Subnets[0]; !*n.AssignIpv6AddressOnCreation || len(n.Ipv6CidrBlockAssociationSet) != 1 || n.Ipv6CidrBlockAssociationSet[0].Ipv6CidrBlockState.State != types.SubnetCidrBlockStateCodeAssociated {
		t.Errorf("the subnet is %+v", n)
	}
	tables, err := r.DescribeRouteTables(t.Context(), &awsec2.DescribeRouteTablesInput{Filters: filters("route.egress-only-internet-gateway-id", "eigw-*")})
	ok(t, err)
	i := slices.IndexFunc(tables.RouteTables[0].Routes, func(o types.Route) bool { return aws.ToString(o.DestinationIpv6CidrBlock) == "::/0" })
	if o := tables.RouteTables[0].Routes[i]; o.EgressOnlyInternetGatewayId == nil || o.GatewayId != nil {
		t.Errorf("IPv6 leaves by %+v", o)
	}
	if err := r.cloud.Snapshot().Check(); err != nil {
		t.Error(err)
	}
}

func TestAssignErrors(t *testing.T) {
	s := dual()
	s.VPCs[0].Subnets = append(s.VPCs[0].Subnets, spec.Subnet{Name: "tiny", Zone: "lab-1a", CIDR: netip.MustParsePrefix("10.0.8.0/28")})
	r := newRig(t, s)
	books := r.cloud.Snapshot()
	primary := func(name string) string {
		i, _ := books.Instance(name)
		return books.InstanceENIs(i.ID)[0].ID
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
		{"nothing asked for", node, awsec2.AssignPrivateIpAddressesInput{}, "MissingParameter"},
		{"two ways", node, awsec2.AssignPrivateIpAddressesInput{SecondaryPrivateIpAddressCount: aws.Int32(1), Ipv4PrefixCount: aws.Int32(1)}, "InvalidParameterCombination"},
		{"zero", node, awsec2.AssignPrivateIpAddressesInput{SecondaryPrivateIpAddressCount: aws.Int32(0)}, "InvalidParameterValue"},
		{"more than the type takes", node, awsec2.AssignPrivateIpAddressesInput{SecondaryPrivateIpAddressCount: aws.Int32(10)}, "PrivateIpAddressLimitExceeded"},
		{"more prefixes than the type takes", node, awsec2.AssignPrivateIpAddressesInput{Ipv4PrefixCount: aws.Int32(10)}, "PrivateIpAddressLimitExceeded"},
		{"prefix on Xen", old, awsec2.AssignPrivateIpAddressesInput{Ipv4PrefixCount: aws.Int32(1)}, "UnsupportedOperation"},
		{"reserved", node, awsec2.AssignPrivateIpAddressesInput{PrivateIpAddresses: []string{"10.0.0.3"}}, "InvalidParameterValue"},
		{"broadcast", node, awsec2.AssignPrivateIpAddressesInput{PrivateIpAddresses: []string{"10.0.3.255"}}, "InvalidParameterValue"},
		{"out of the subnet", node, awsec2.AssignPrivateIpAddressesInput{PrivateIpAddresses: []string{"10.0.4.9"}}, "InvalidParameterValue"},
		{"no address", node, awsec2.AssignPrivateIpAddressesInput{PrivateIpAddresses: []string{"ten"}}, "InvalidParameterValue"},
		{"prefix unaligned", node, awsec2.AssignPrivateIpAddressesInput{Ipv4Prefixes: []string{"10.0.1.8/28"}}, "InvalidParameterValue"},
		{"prefix of another size", node, awsec2.AssignPrivateIpAddressesInput{Ipv4Prefixes: []string{"10.0.1.0/27"}}, "InvalidParameterValue"},
		{"prefix with reserved addresses", node, awsec2.AssignPrivateIpAddressesInput{Ipv4Prefixes: []string{"10.0.0.0/28"}}, "InvalidParameterValue"},
		{"subnet full", tiny, awsec2.AssignPrivateIpAddressesInput{SecondaryPrivateIpAddressCount: aws.Int32(11)}, "InsufficientFreeAddressesInSubnet"},
		{"no block", tiny, awsec2.AssignPrivateIpAddressesInput{Ipv4PrefixCount: aws.Int32(1)}, "InsufficientCidrBlocks"},
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
		{"not there", node, awsec2.UnassignPrivateIpAddressesInput{PrivateIpAddresses: []string{"10.0.1.77"}}},
		{"prefix not there", node, awsec2.UnassignPrivateIpAddressesInput{Ipv4Prefixes: []string{"10.0.1.64/28"}}},
		{"of another ENI", node, awsec2.UnassignPrivateIpAddressesInput{PrivateIpAddresses: []string{books.InstanceENIs(books.Instances[2].ID)[0].Primary.String()}}},
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

// A subnet with room enough but no free aligned block refuses prefixes, and
// recovers when one block empties.
func TestFragmentation(t *testing.T) {
	s := instant()
	s.VPCs[0].Subnets = append(s.VPCs[0].Subnets, spec.Subnet{Name: "small", Zone: "lab-1a", CIDR: netip.MustParsePrefix("10.0.8.0/26")})
	r := newRig(t, s)
	var enis []string
	for _, ip := range []string{"10.0.8.20", "10.0.8.40"} { // one address in each of the two whole blocks
		e := r.create(awsec2.CreateNetworkInterfaceInput{SubnetId: aws.String(r.subnet("small")), PrivateIpAddress: aws.String(ip)})
		enis = append(enis, *e.NetworkInterfaceId)
	}
	free := func() int32 {
		out, err := r.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{SubnetIds: []string{r.subnet("small")}})
		ok(t, err)
		return *out.Subnets[0].AvailableIpAddressCount
	}
	if free() != 64-5-2 {
		t.Fatalf("%d free", free())
	}
	ask := &awsec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: &enis[0], Ipv4PrefixCount: aws.Int32(1)}
	r.refuses(t, "InsufficientCidrBlocks", ask)
	if free() != 64-5-2 {
		t.Fatalf("a refused call took addresses: %d free", free())
	}
	r.does(t, &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &enis[1]})
	out, err := r.AssignPrivateIpAddresses(t.Context(), ask)
	if err != nil || *out.AssignedIpv4Prefixes[0].Ipv4Prefix != "10.0.8.32/28" || free() != 64-5-1-16 {
		t.Fatalf("%+v, %v, %d free", out, err, free())
	}
}

// A prefix takes one slot of the ENI's addresses: an m5.large ENI has ten.
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
			t.Fatal(fmt.Errorf("four addresses beside five prefixes: %w", err))
		}
	}
}
