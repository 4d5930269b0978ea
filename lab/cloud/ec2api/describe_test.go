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

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/lab/cloud/spec"
)

func filters(nameValues ...string) (out []types.Filter) {
	for i := 0; i < len(nameValues); i += 2 {
		out = append(out, types.Filter{Name: &nameValues[i], Values: []string{nameValues[i+1]}})
	}
	return out
}

func TestFilterENIs(t *testing.T) {
	r := newRig(t, instant())
	snapshot := r.cloud.Snapshot()
	a, b := r.cloud.Instances.ID("node-a"), r.cloud.Instances.ID("node-b")
	aENI, bENI := snapshot.InstanceENIs(a)[0], snapshot.InstanceENIs(b)[0]
	spare := r.create(awsec2.CreateNetworkInterfaceInput{
		Description: aws.String("berth spare"), PrivateIpAddress: aws.String("10.0.1.10"), SecondaryPrivateIpAddressCount: aws.Int32(1),
		TagSpecifications: tagSpec(types.ResourceTypeNetworkInterface, "node.berth.dev/instance_id", a),
	})
	second := *spare.PrivateIpAddresses[1].PrivateIpAddress
	id := *spare.NetworkInterfaceId
	for _, tc := range []struct {
		name string
		fs   []types.Filter
		want []string
	}{
		{"instance", filters("attachment.instance-id", a), []string{aENI.ID}},
		{"instance and device index", filters("attachment.instance-id", a, "attachment.device-index", "1"), nil},
		{"tag", filters("tag:node.berth.dev/instance_id", a), []string{id}},
		{"tag with wildcard", filters("tag:node.berth.dev/instance_id", "i-*"), []string{id}},
		{"tag with another value", filters("tag:node.berth.dev/instance_id", b), nil},
		{"tag key", filters("tag-key", "node.berth.dev/*"), []string{id}},
		{"status", filters("status", "available"), []string{id}},
		{"status of other ENIs", filters("status", "in-use"), []string{aENI.ID, bENI.ID}},
		{"VPC", filters("vpc-id", aENI.VPCID), []string{aENI.ID, bENI.ID, id}},
		{"subnet", filters("subnet-id", bENI.SubnetID), []string{bENI.ID}},
		{"ID", filters("network-interface-id", id), []string{id}},
		{"zone", filters("availability-zone", "lab-1b"), []string{bENI.ID}},
		{"group", filters("group-id", aENI.Groups[0], "status", "available"), []string{id}},
		{"primary address", filters("addresses.private-ip-address", "10.0.1.10"), []string{id}},
		{"secondary address", filters("addresses.private-ip-address", second), []string{id}},
		{"description", filters("description", "berth ????e"), []string{id}},
		{"escaped wildcard", filters("description", `berth \*`), nil},
		{"MAC", filters("mac-address", aENI.MAC.String()), []string{aENI.ID}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := r.find("DescribeNetworkInterfaces", tc.fs)
			ok(t, err)
			slices.Sort(tc.want)
			if !slices.Equal(got, tc.want) {
				t.Errorf("ENIs = %v, want %v", got, tc.want)
			}
		})
	}
	r.refuses(t, "InvalidParameterValue", &awsec2.DescribeNetworkInterfacesInput{Filters: filters("colour", "blue")})
}

// Interfaces of special types report their type.
func TestInterfaceTypes(t *testing.T) {
	s := instant()
	s.Instances[0].Type = "c5n.18xlarge"
	s.Instances[0].Interfaces = []spec.Interface{{DeviceIndex: 1, Type: "efa"}, {DeviceIndex: 2, Type: "trunk"}}
	r := newRig(t, s)
	for want, device := range map[string]int32{"interface": 0, "efa": 1, "trunk": 2} {
		fs := filters("attachment.instance-id", r.cloud.Instances.ID("node-a"), "interface-type", want)
		out, err := r.DescribeNetworkInterfaces(t.Context(), &awsec2.DescribeNetworkInterfacesInput{Filters: fs})
		if err != nil || len(out.NetworkInterfaces) != 1 || string(out.NetworkInterfaces[0].InterfaceType) != want ||
			*out.NetworkInterfaces[0].Attachment.DeviceIndex != device {
			t.Errorf("interface of type %s: %+v, %v; want one with device index %d", want, out, err, device)
		}
	}
}

func TestPages(t *testing.T) {
	r := newRig(t, instant())
	for range 11 {
		r.create(awsec2.CreateNetworkInterfaceInput{TagSpecifications: tagSpec(types.ResourceTypeNetworkInterface, "paged", "yes")})
	}
	in := &awsec2.DescribeNetworkInterfacesInput{Filters: filters("tag:paged", "yes"), MaxResults: aws.Int32(5)}
	seen := map[string]bool{}
	var sizes []int
	for p := awsec2.NewDescribeNetworkInterfacesPaginator(r.Client, in); p.HasMorePages(); {
		out, err := p.NextPage(t.Context())
		ok(t, err)
		sizes = append(sizes, len(out.NetworkInterfaces))
		for _, e := range out.NetworkInterfaces {
			seen[*e.NetworkInterfaceId] = true
		}
		if len(sizes) == 1 { // a deletion between pages does not shift the other rows
			r.does(t, &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: out.NetworkInterfaces[0].NetworkInterfaceId})
		}
	}
	if len(seen) != 11 || !slices.Equal(sizes, []int{5, 5, 1}) {
		t.Fatalf("%d ENIs in pages of sizes %v, want 11 in 5, 5 and 1", len(seen), sizes)
	}
	for _, tc := range []struct {
		in   awsec2.DescribeNetworkInterfacesInput
		code string
	}{
		{awsec2.DescribeNetworkInterfacesInput{MaxResults: aws.Int32(4)}, "InvalidParameterValue"},
		{awsec2.DescribeNetworkInterfacesInput{MaxResults: aws.Int32(1001)}, "InvalidParameterValue"},
		{awsec2.DescribeNetworkInterfacesInput{MaxResults: aws.Int32(5), NextToken: aws.String("no token")}, "InvalidNextToken"},
		{awsec2.DescribeNetworkInterfacesInput{MaxResults: aws.Int32(5), NetworkInterfaceIds: []string{"eni-0123456789abcdef0"}}, "InvalidParameterCombination"},
	} {
		r.refuses(t, tc.code, &tc.in)
	}
}

func TestDescribeNetworks(t *testing.T) {
	s := dual()
	s.VPCs[0].CIDRs = append(s.VPCs[0].CIDRs, netip.MustParsePrefix("100.64.0.0/16"))
	s.VPCs[0].Subnets[0].Tags = map[string]string{"berth.dev/pods": "true"}
	s.VPCs[0].SecurityGroups[0].Ingress = []spec.Rule{
		{Protocol: "tcp", FromPort: 443, ToPort: 443, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}},
		{Protocol: "-1", Groups: []string{"default"}},
	}
	r := newRig(t, s)
	subnets, err := r.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{Filters: filters("tag:berth.dev/pods", "true")})
	if err != nil || len(subnets.Subnets) != 1 {
		t.Fatalf("DescribeSubnets() = %+v, %v; want one subnet", subnets, err)
	}
	a := subnets.Subnets[0]
	if *a.CidrBlock != "10.0.0.0/22" || *a.AvailabilityZone != "lab-1a" || *a.AvailableIpAddressCount != 1024-5-2 ||
		*a.Ipv6CidrBlockAssociationSet[0].Ipv6CidrBlock != "2600:1f14:abc:de00::/64" {
		t.Errorf("subnet = %+v, want the pod subnet with its zone, blocks and free addresses", a)
	}
	vpcs, err := r.DescribeVpcs(t.Context(), &awsec2.DescribeVpcsInput{VpcIds: []string{*a.VpcId}})
	if err != nil || len(vpcs.Vpcs[0].CidrBlockAssociationSet) != 2 || vpcs.Vpcs[0].CidrBlockAssociationSet[1].CidrBlockState.State != "associated" ||
		*vpcs.Vpcs[0].Ipv6CidrBlockAssociationSet[0].Ipv6CidrBlock != "2600:1f14:abc:de00::/56" || *vpcs.Vpcs[0].CidrBlock != "10.0.0.0/16" {
		t.Errorf("DescribeVpcs() = %+v, %v; want both IPv4 blocks and the IPv6 block", vpcs, err)
	}
	groups, err := r.DescribeSecurityGroups(t.Context(), &awsec2.DescribeSecurityGroupsInput{Filters: filters("vpc-id", *a.VpcId, "group-name", "default")})
	if err != nil || len(groups.SecurityGroups) != 1 {
		t.Fatalf("DescribeSecurityGroups() = %+v, %v; want one group", groups, err)
	}
	in := groups.SecurityGroups[0].IpPermissions
	if len(in) != 2 || *in[0].FromPort != 443 || len(in[0].IpRanges) != 1 || len(in[0].Ipv6Ranges) != 1 || in[1].FromPort != nil ||
		*in[1].UserIdGroupPairs[0].GroupId != *groups.SecurityGroups[0].GroupId || len(groups.SecurityGroups[0].IpPermissionsEgress) != 1 {
		t.Errorf("security group = %+v, want two ingress rules and one egress rule", groups.SecurityGroups[0])
	}
	tables, err := r.DescribeRouteTables(t.Context(), &awsec2.DescribeRouteTablesInput{Filters: filters("association.main", "true")})
	if err != nil || len(tables.RouteTables) != 1 || len(tables.RouteTables[0].Routes) != 5 || *tables.RouteTables[0].Routes[0].GatewayId != "local" {
		t.Errorf("DescribeRouteTables() = %+v, %v; want the main table with five routes", tables, err)
	}
	for code, in := range map[string]any{
		"InvalidSubnetID.NotFound":     &awsec2.DescribeSubnetsInput{SubnetIds: []string{"subnet-0123456789abcdef0"}},
		"InvalidVpcID.NotFound":        &awsec2.DescribeVpcsInput{VpcIds: []string{"vpc-0123456789abcdef0"}},
		"InvalidGroup.NotFound":        &awsec2.DescribeSecurityGroupsInput{GroupIds: []string{"sg-0123456789abcdef0"}},
		"InvalidRouteTableID.NotFound": &awsec2.DescribeRouteTablesInput{RouteTableIds: []string{"rtb-0123456789abcdef0"}},
	} {
		r.refuses(t, code, in)
	}
}

// Each filter of VPC resources finds exactly the matching resource.
func TestFilterNetworks(t *testing.T) {
	s := dual()
	s.VPCs[0].Tags = map[string]string{"team": "network"}
	s.VPCs = append(s.VPCs, spec.VPC{
		Name: "other", CIDRs: []netip.Prefix{netip.MustParsePrefix("172.16.0.0/16")},
		Subnets: []spec.Subnet{{Name: "far", Zone: "lab-1c", CIDR: netip.MustParsePrefix("172.16.0.0/24"), Public: true}},
	})
	r := newRig(t, s)
	snapshot := r.cloud.Snapshot()
	home, _ := snapshot.VPC("lab")
	far, _ := snapshot.Subnet("far")
	actions := map[string]string{
		"VPC": "DescribeVpcs", "subnet": "DescribeSubnets", "group": "DescribeSecurityGroups", "route table": "DescribeRouteTables", "tag": "DescribeTags",
	}
	for _, tc := range []struct {
		kind, filter, value string
	}{
		{"VPC", "vpc-id", home.ID}, {"VPC", "cidr", "172.16.0.0/16"}, {"VPC", "cidr-block-association.cidr-block", "10.0.0.0/16"},
		{"VPC", "ipv6-cidr-block-association.ipv6-cidr-block", "2600:1f14:abc:de00::/56"}, {"VPC", "tag:team", "network"}, {"VPC", "tag-key", "team"},
		{"subnet", "subnet-id", far.ID}, {"subnet", "vpc-id", far.VPCID}, {"subnet", "availability-zone", "lab-1c"}, {"subnet", "cidr-block", "172.16.0.0/24"},
		{"subnet", "available-ip-address-count", "251"}, {"subnet", "map-public-ip-on-launch", "true"}, {"subnet", "tag:Name", "fa?"},
		{"subnet", "ipv6-cidr-block-association.ipv6-cidr-block", "2600:1f14:abc:de00::/64"},
		{"group", "group-id", snapshot.Groups[0].ID}, {"group", "vpc-id", home.ID}, {"group", "description", "traffic within*"},
		{"route table", "vpc-id", home.ID}, {"route table", "route.destination-cidr-block", "172.16.0.0/16"}, {"route table", "route-table-id", snapshot.RouteTables[0].ID},
		{"tag", "key", "team"}, {"tag", "value", "network"}, {"tag", "tag:team", "network"}, {"tag", "resource-id", far.ID},
	} {
		if ids, err := r.find(actions[tc.kind], filters(tc.filter, tc.value)); len(ids) != 1 || err != nil {
			t.Errorf("%ss with %s=%s: %v, %v; want one", tc.kind, tc.filter, tc.value, ids, err)
		}
		if ids, err := r.find(actions[tc.kind], filters(tc.filter, tc.value+"-not")); len(ids) != 0 || err != nil {
			t.Errorf("%ss with another %s: %v, %v; want none", tc.kind, tc.filter, ids, err)
		}
	}
	many := []types.Filter{{Name: aws.String("vpc-id")}}
	for i := range 201 {
		many[0].Values = append(many[0].Values, fmt.Sprintf("vpc-%08x", i))
	}
	r.refuses(t, "FilterLimitExceeded", &awsec2.DescribeVpcsInput{Filters: many})
	for kind, action := range actions {
		if _, err := r.find(action, filters("colour", "blue")); err == nil {
			t.Errorf("%s: unknown filter is accepted", kind)
		}
	}
}

func TestDescribeInstanceTypes(t *testing.T) {
	r := newRig(t, instant())
	out, err := r.DescribeInstanceTypes(t.Context(), &awsec2.DescribeInstanceTypesInput{InstanceTypes: []types.InstanceType{"m5.large", "m4.large"}})
	if err != nil || len(out.InstanceTypes) != 2 {
		t.Fatalf("DescribeInstanceTypes() = %+v, %v; want two types", out, err)
	}
	for _, got := range out.InstanceTypes {
		want, _ := limits.Lookup(string(got.InstanceType))
		n := got.NetworkInfo
		if int(*n.MaximumNetworkInterfaces) != want.MaxENIs || int(*n.Ipv4AddressesPerInterface) != want.IPv4PerENI ||
			int(*n.Ipv6AddressesPerInterface) != want.IPv6PerENI || (got.Hypervisor == types.InstanceTypeHypervisorNitro) != want.Prefixes {
			t.Errorf("network info of %s = %+v, want %+v", got.InstanceType, n, want)
		}
	}
	// A type's limit of ENIs is the sum over its network cards; each card has its own limit.
	out, err = r.DescribeInstanceTypes(t.Context(), &awsec2.DescribeInstanceTypesInput{InstanceTypes: []types.InstanceType{"p4d.24xlarge"}})
	ok(t, err)
	if n := out.InstanceTypes[0].NetworkInfo; *n.MaximumNetworkInterfaces != 60 || *n.MaximumNetworkCards != 4 || len(n.NetworkCards) != 4 || *n.NetworkCards[3].MaximumNetworkInterfaces != 15 {
		t.Errorf("network info of p4d.24xlarge = %+v, want 60 ENIs on 4 cards", n)
	}
	r.refuses(t, "InvalidInstanceType", &awsec2.DescribeInstanceTypesInput{InstanceTypes: []types.InstanceType{"m5.lorge"}})
	n := 0
	for p := awsec2.NewDescribeInstanceTypesPaginator(r.Client, &awsec2.DescribeInstanceTypesInput{}); p.HasMorePages(); {
		page, err := p.NextPage(t.Context())
		ok(t, err)
		n += len(page.InstanceTypes)
	}
	for range limits.All() {
		n--
	}
	if n != 0 {
		t.Errorf("pages hold %d more types than exist", n)
	}
}

func TestTags(t *testing.T) {
	r := newRig(t, instant())
	id, subnet := *r.create(awsec2.CreateNetworkInterfaceInput{}).NetworkInterfaceId, r.subnet("a")
	put := func(ids []string, tags ...types.Tag) error {
		_, err := r.CreateTags(t.Context(), &awsec2.CreateTagsInput{Resources: ids, Tags: tags})
		return err
	}
	tag := func(k, v string) types.Tag { return types.Tag{Key: &k, Value: &v} }
	ok(t, put([]string{id, subnet}, tag("a", "1"), tag("b", "2")))
	ok(t, put([]string{id}, tag("a", "replaced")))
	read := func() (got []string) {
		t.Helper()
		out, err := r.DescribeTags(t.Context(), &awsec2.DescribeTagsInput{Filters: filters("resource-id", id)})
		ok(t, err)
		for _, x := range out.Tags {
			got = append(got, *x.Key+"="+*x.Value+" "+string(x.ResourceType))
		}
		return got
	}
	if got := read(); !slices.Equal(got, []string{"a=replaced network-interface", "b=2 network-interface"}) {
		t.Fatalf("tags = %v, want a=replaced and b=2", got)
	}
	_, err := r.DeleteTags(t.Context(), &awsec2.DeleteTagsInput{Resources: []string{id}, Tags: []types.Tag{tag("a", "another value"), {Key: aws.String("b")}}})
	if got := read(); err != nil || !slices.Equal(got, []string{"a=replaced network-interface"}) {
		t.Fatalf("tags after deletion = %v, %v; want a=replaced", got, err)
	}
	wantCode(t, put([]string{id, "eni-0123456789abcdef0"}, tag("c", "3")), "InvalidNetworkInterfaceID.NotFound", http.StatusBadRequest)
	wantCode(t, put([]string{id}, tag("aws:c", "3")), "InvalidParameterValue", http.StatusBadRequest)
	var many []types.Tag
	for i := range 50 {
		many = append(many, tag("k"+string(rune('A'+i)), ""))
	}
	wantCode(t, put([]string{id}, many...), "TagLimitExceeded", http.StatusBadRequest)
	if got := read(); len(got) != 1 {
		t.Fatalf("tags after a refused call = %v, want one", got)
	}
}

// A filter on a property that a resource lacks does not match the resource.
func TestFilterOnAbsentProperty(t *testing.T) {
	s := instant()
	s.VPCs[0].IPv6 = []netip.Prefix{netip.MustParsePrefix("2001:db8::/56")}
	s.VPCs[0].Subnets[1].IPv6 = netip.MustParsePrefix("2001:db8:0:1::/64")
	r := newRig(t, s)
	out, err := r.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{Filters: filters("ipv6-cidr-block-association.ipv6-cidr-block", "*")})
	if err != nil || len(out.Subnets) != 1 || *out.Subnets[0].SubnetId != r.subnet("b") {
		t.Errorf("subnets with an IPv6 block = %+v, %v; want only subnet b", out.Subnets, err)
	}
}
