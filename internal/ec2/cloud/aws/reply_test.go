package aws

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/test/harness/check"
)

const (
	describeSubnets   = "DescribeSubnets"
	describeInstances = "DescribeInstances"
	describeRoutes    = "DescribeRouteTables"
	create            = "CreateNetworkInterface"
	associate         = "AssociateTrunkInterface"
	disassociate      = "DisassociateTrunkInterface"
	modify            = "ModifyNetworkInterfaceAttribute"
)

// XML elements of replies, and the sets that contain them.

func items(set string, list ...string) string {
	return "<" + set + ">" + strings.Join(list, "") + "</" + set + ">"
}

func enis(list ...string) string        { return items("networkInterfaceSet", list...) }
func subnets(list ...string) string     { return items("subnetSet", list...) }
func instances(list ...string) string   { return items("reservationSet", list...) }
func routeTables(list ...string) string { return items("routeTableSet", list...) }

func assignedSet(addrs ...string) string {
	for i, a := range addrs {
		addrs[i] = "<item><privateIpAddress>" + a + "</privateIpAddress></item>"
	}
	return items("assignedPrivateIpAddressesSet", addrs...)
}

func elements(values []string) (out []string) {
	for _, v := range values {
		out = append(out, "<item>"+v+"</item>")
	}
	return out
}

func assignedIPv6(addrs ...string) string {
	return items("assignedIpv6Addresses", elements(addrs)...)
}

func assignedIPv6Prefixes(prefixes ...string) string {
	return items("assignedIpv6PrefixSet", elements(prefixes)...)
}

func eni(id, instance string) string {
	return "<item><networkInterfaceId>" + id + "</networkInterfaceId><vpcId>vpc-1</vpcId><attachment><attachmentId>a</attachmentId>" +
		"<instanceId>" + instance + "</instanceId><deviceIndex>1</deviceIndex></attachment></item>"
}

// branch is a branch ENI with a tag. Branches have no attachment.
func branch(id, tag string) string {
	return "<item><networkInterfaceId>" + id + "</networkInterfaceId><vpcId>vpc-1</vpcId><interfaceType>branch</interfaceType><status>in-use</status>" +
		"<tagSet><item><key>nic</key><value>" + tag + "</value></item></tagSet></item>"
}

func associated(id, trunk, branch, vlan string) string {
	return "<interfaceAssociation><associationId>" + id + "</associationId><branchInterfaceId>" + branch + "</branchInterfaceId><trunkInterfaceId>" + trunk +
		"</trunkInterfaceId><interfaceProtocol>VLAN</interfaceProtocol><vlanId>" + vlan + "</vlanId></interfaceAssociation>"
}

// created is the reply to CreateNetworkInterface.
func created(kind, addr string) string {
	return items("networkInterface", "<networkInterfaceId>eni-1</networkInterfaceId><interfaceType>"+kind+"</interfaceType><privateIpAddress>"+addr+"</privateIpAddress>")
}

// native is an IPv6-only subnet with more elements.
func native(more string) string {
	return "<item><subnetId>subnet-1</subnetId><vpcId>vpc-1</vpcId><availabilityZone>a</availabilityZone><ipv6Native>true</ipv6Native>" + more + "</item>"
}

func subnet(id, vpc, zone, cidr, free string) string {
	return "<item><subnetId>" + id + "</subnetId><vpcId>" + vpc + "</vpcId><availabilityZone>" + zone + "</availabilityZone><cidrBlock>" + cidr +
		"</cidrBlock><availableIpAddressCount>" + free + "</availableIpAddressCount></item>"
}

func instanceIn(id, state string) string {
	return "<item><instancesSet><item><instanceId>" + id + "</instanceId><instanceState><name>" + state + "</name></instanceState></item></instancesSet></item>"
}

func routeTable(id, vpc string, associations ...string) string {
	return "<item><routeTableId>" + id + "</routeTableId><vpcId>" + vpc + "</vpcId>" + items("associationSet", associations...) + "</item>"
}

func typeLimits(enis, addresses string) string {
	return typeElement("x", "<hypervisor>nitro</hypervisor>", "<maximumNetworkInterfaces>"+enis+
		"</maximumNetworkInterfaces><ipv4AddressesPerInterface>"+addresses+"</ipv4AddressesPerInterface>")
}

// A reply that does not match its request, or is impossible, is treated as a lost reply. The error
// says why, and the call is not repeated.
func TestRepliesAreComparedWithTheirRequests(t *testing.T) {
	const main, one = "<item><main>true</main></item>", "<item><main>false</main><subnetId>subnet-1</subnetId></item>"
	home, atHome := subnet("subnet-1", "vpc-1", "a", "10.0.0.0/24", "251"), cloud.SubnetFilter{VPCID: "vpc-1", Zone: "a"}
	oneMore, twoMore, aPrefix := assigning(cloud.Amount{Addresses: 1}), assigning(cloud.Amount{Addresses: 2}), assigning(cloud.Amount{Prefixes: 1})
	oneSix, twoSix, aSixPrefix := assigning(cloud.Amount{IPv6: 1}), assigning(cloud.Amount{IPv6: 2}), assigning(cloud.Amount{IPv6Prefixes: 1})
	twoInstances, listGroups := listingInstances("i-1", "i-2"), listingGroups(nil)
	createTrunk := creating(cloud.CreateENI{SubnetID: "subnet-1", Type: cloud.InterfaceTrunk, Primary: netip.MustParseAddr("10.0.0.9")})
	createWithIPv6 := creating(cloud.CreateENI{SubnetID: "subnet-1", IPv6Address: netip.MustParseAddr("2001:db8::9")})
	associateOne, branches := associating(7), []cloud.InterfaceType{cloud.InterfaceBranch}
	for _, tt := range []struct {
		name, action, answer string
		call                 call
		says                 string // text of the error; empty: the reply is accepted
	}{
		{"as asked", pace.Assign.Action, "<networkInterfaceId>eni-1</networkInterfaceId>" + assignedSet("10.0.0.5", "10.0.0.6"), twoMore, ""},
		{"too many", pace.Assign.Action, assignedSet("10.0.0.5", "10.0.0.6", "10.0.0.7"), twoMore, "3 IPv4 addresses"},
		{"too few", pace.Assign.Action, assignedSet("10.0.0.5"), twoMore, "1 IPv4 addresses"},
		{"one twice", pace.Assign.Action, assignedSet("10.0.0.5", "10.0.0.5"), twoMore, "each once"},
		{"another ENI", pace.Assign.Action, "<networkInterfaceId>eni-9</networkInterfaceId>" + assignedSet("10.0.0.5", "10.0.0.6"), twoMore, "eni-9"},
		{"prefixes too", pace.Assign.Action, assignedSet("10.0.0.5", "10.0.0.6") + onePrefix, twoMore, "1 prefixes"},
		{"a prefix", pace.Assign.Action, onePrefix, aPrefix, ""},
		{"addresses for a prefix", pace.Assign.Action, assignedSet("10.0.0.5"), aPrefix, "1 IPv4 addresses and 0 prefixes\": expected 0 IPv4 addresses and 1 prefixes"},
		{"another ENI listed", describeENIs, enis(eni("eni-2", "i-2")), listing(cloud.ENIFilter{IDs: []string{"eni-1"}}), "eni-2"},
		{"another instance's ENI listed", describeENIs, enis(eni("eni-2", "i-2")), listing(cloud.ENIFilter{InstanceIDs: []string{"i-1", "i-3"}}), "i-2"},
		{"an ENI without the tag listed", describeENIs, enis(eni("eni-2", "i-2")), listing(cloud.ENIFilter{Tags: map[string]string{"a": "b"}}), "tagSet[a]"},
		{"an ENI with IPv4 addresses and none of its own", describeENIs, enis(strings.Replace(eni("eni-2", "i-2"), "<vpcId>", "<privateIpAddressesSet><item><privateIpAddress>10.0.0.5</privateIpAddress></item></privateIpAddressesSet><vpcId>", 1)),
			listing(cloud.ENIFilter{IDs: []string{"eni-2"}}), "privateIpAddress"},
		{"the ENI asked for", describeENIs, enis(eni("eni-2", "i-2")), listing(cloud.ENIFilter{IDs: []string{"eni-2"}, InstanceID: "i-2"}), ""},
		{"nothing assigned", pace.Assign.Action, "", oneMore, "0 IPv4 addresses"},
		{"an empty set assigned", pace.Assign.Action, assignedSet(), oneMore, "0 IPv4 addresses"},
		{"an element without an address", pace.Assign.Action, "<assignedPrivateIpAddressesSet><item/></assignedPrivateIpAddressesSet>", oneMore, "assignedPrivateIpAddressesSet"},
		{"an address that is none", pace.Assign.Action, assignedSet("x"), oneMore, "assignedPrivateIpAddressesSet"},

		{"IPv6 as asked", pace.AssignIPv6.Action, "<networkInterfaceId>eni-1</networkInterfaceId>" + assignedIPv6("2001:db8::5", "2001:db8::6"), twoSix, ""},
		{"too many of IPv6", pace.AssignIPv6.Action, assignedIPv6("2001:db8::5", "2001:db8::6", "2001:db8::7"), twoSix, "3 IPv6 addresses and 0 prefixes\": expected 2 IPv6 addresses and 0 prefixes"},
		{"too few of IPv6", pace.AssignIPv6.Action, assignedIPv6("2001:db8::5"), twoSix, "1 IPv6 addresses"},
		{"no IPv6 assigned", pace.AssignIPv6.Action, "", oneSix, "0 IPv6 addresses"},
		{"one IPv6 address twice", pace.AssignIPv6.Action, assignedIPv6("2001:db8::5", "2001:db8:0::5"), twoSix, "each once"},
		{"IPv6 of another ENI", pace.AssignIPv6.Action, "<networkInterfaceId>eni-9</networkInterfaceId>" + assignedIPv6("2001:db8::5"), oneSix, "networkInterfaceId \"eni-9\": expected eni-1"},
		{"IPv4 for IPv6", pace.AssignIPv6.Action, assignedIPv6("10.0.0.5"), oneSix, "assignedIpv6Addresses \"10.0.0.5\": expected an IPv6 address"},
		{"IPv4 mapped into IPv6", pace.AssignIPv6.Action, assignedIPv6("::ffff:10.0.0.5"), oneSix, "assignedIpv6Addresses"},
		{"IPv6 with a zone", pace.AssignIPv6.Action, assignedIPv6("2001:db8::5%eth0"), oneSix, "assignedIpv6Addresses"},
		{"an empty IPv6 element", pace.AssignIPv6.Action, assignedIPv6(""), oneSix, "assignedIpv6Addresses"},
		{"IPv6 for IPv4", pace.Assign.Action, assignedSet("2001:db8::5"), oneMore, "expected an IPv4 address"},
		{"an IPv6 prefix", pace.AssignIPv6.Action, assignedIPv6Prefixes("2001:db8:0:0:1::/80"), aSixPrefix, ""},
		{"an IPv6 prefix of another size", pace.AssignIPv6.Action, assignedIPv6Prefixes("2001:db8::/64"), aSixPrefix, "expected a /80"},
		{"an IPv6 prefix with host bits", pace.AssignIPv6.Action, assignedIPv6Prefixes("2001:db8:0:0:1::1/80"), aSixPrefix, "host bits"},
		{"an IPv4 prefix for one of IPv6", pace.AssignIPv6.Action, assignedIPv6Prefixes("10.0.0.16/28"), aSixPrefix, "expected an IPv6 prefix"},
		{"an IPv6 address for a prefix", pace.AssignIPv6.Action, assignedIPv6("2001:db8::5"), aSixPrefix, "1 IPv6 addresses and 0 prefixes"},
		{"IPv6 prefixes too", pace.AssignIPv6.Action, assignedIPv6("2001:db8::5") + assignedIPv6Prefixes("2001:db8:0:0:1::/80"), oneSix, "1 prefixes"},

		{"ENIs", describeENIs, enis(eni("eni-1", "i-1"), eni("eni-2", "i-2")), listing(cloud.ENIFilter{VPCID: "vpc-1"}), ""},
		{"an ENI twice, as it is", describeENIs, enis(eni("eni-1", "i-1"), eni("eni-1", "i-1")), listing(cloud.ENIFilter{}), ""},
		{"an ENI on two instances", describeENIs, enis(eni("eni-1", "i-1"), eni("eni-1", "i-2")), listing(cloud.ENIFilter{}), "eni-1"},
		{"an ENI of another VPC", describeENIs, enis(eni("eni-1", "i-1")), listing(cloud.ENIFilter{VPCID: "vpc-2"}), "vpcId"},
		{"an attached ENI for a detached one", describeENIs, enis(eni("eni-1", "i-1")), listing(cloud.ENIFilter{Status: "available"}), "attachment"},
		{"a branch, which is not attached", describeENIs, enis(branch("eni-1", "x")), listing(cloud.ENIFilter{Status: "in-use", Types: branches, Tagged: map[string][]string{"nic": {"y", "x"}}}), ""},
		{"a branch for a detached ENI", describeENIs, enis(branch("eni-1", "x")), listing(cloud.ENIFilter{Status: "available"}), "status \"in-use\""},
		{"a branch of an instance", describeENIs, enis(branch("eni-1", "x")), listing(cloud.ENIFilter{InstanceID: "i-1"}), "attachment.instanceId"},
		{"another type", describeENIs, enis(eni("eni-1", "i-1")), listing(cloud.ENIFilter{Types: branches}), "interfaceType"},
		{"another value of the tag", describeENIs, enis(branch("eni-1", "z")), listing(cloud.ENIFilter{Tagged: map[string][]string{"nic": {"y", "x"}}}), "tagSet[nic]"},
		{"no such tag", describeENIs, enis(eni("eni-1", "i-1")), listing(cloud.ENIFilter{Tagged: map[string][]string{"nic": {"y", "x"}}}), "tagSet[nic]"},

		{"another IPv6 address", "CreateNetworkInterface", items("networkInterface", "<networkInterfaceId>eni-1</networkInterfaceId><ipv6AddressesSet><item><ipv6Address>2001:db8::5</ipv6Address></item></ipv6AddressesSet>"), createWithIPv6, "2001:db8::5"},
		{"a trunk as asked for", create, created("trunk", "10.0.0.9"), createTrunk, ""},
		{"an ENI that is no trunk", create, created("interface", "10.0.0.9"), createTrunk, "interfaceType \"interface\": expected trunk"},
		{"another address", create, created("trunk", "10.0.0.8"), createTrunk, "privateIpAddress \"10.0.0.8\": expected 10.0.0.9"},
		{"no ENI", create, "", createTrunk, "networkInterface"},

		{"an association as asked for", associate, associated("trunk-assoc-1", "eni-1", "eni-2", "7"), associateOne, ""},
		{"no association", associate, "<clientToken>t</clientToken>", associateOne, "interfaceAssociation"},
		{"an association without an ID", associate, associated("", "eni-1", "eni-2", "7"), associateOne, "associationId"},
		{"an association with another trunk", associate, associated("trunk-assoc-1", "eni-3", "eni-2", "7"), associateOne, "trunkInterfaceId \"eni-3\": expected eni-1"},
		{"an association without a trunk", associate, associated("trunk-assoc-1", "", "eni-2", "7"), associateOne, "trunkInterfaceId"},
		{"an association of another branch", associate, associated("trunk-assoc-1", "eni-1", "eni-3", "7"), associateOne, "branchInterfaceId \"eni-3\": expected eni-2"},
		{"an association of trunk and branch in turn", associate, associated("trunk-assoc-1", "eni-2", "eni-1", "7"), associateOne, "trunkInterfaceId"},
		{"an association without a branch", associate, associated("trunk-assoc-1", "eni-1", "", "7"), associateOne, "branchInterfaceId"},
		{"an association with another VLAN", associate, associated("trunk-assoc-1", "eni-1", "eni-2", "8"), associateOne, "vlanId \"8\": expected 7"},
		{"an association with a VLAN below zero", associate, associated("trunk-assoc-1", "eni-1", "eni-2", "-7"), associateOne, "vlanId"},
		{"an association without a VLAN", associate, strings.ReplaceAll(associated("trunk-assoc-1", "eni-1", "eni-2", "7"), "vlanId", "greKey"), associateOne, "vlanId"},
		{"an association by GRE", associate, strings.Replace(associated("trunk-assoc-1", "eni-1", "eni-2", "7"), "VLAN", "GRE", 1), associateOne, "interfaceProtocol \"GRE\""},
		{"disassociated", disassociate, "<return>true</return>", disassociating, ""},
		{"not disassociated", disassociate, "<return>false</return>", disassociating, "return \"false\""},
		{"perhaps disassociated", disassociate, "", disassociating, "return"},

		{"subnets", describeSubnets, subnets(home), listingSubnets(atHome), ""},
		{"a free count below zero", describeSubnets, subnets(subnet("subnet-1", "vpc-1", "a", "10.0.0.0/24", "-1")), listingSubnets(atHome), "availableIpAddressCount"},
		{"a free count of 2^31", describeSubnets, subnets(subnet("subnet-1", "vpc-1", "a", "10.0.0.0/24", "2147483648")), listingSubnets(atHome), "availableIpAddressCount"},
		{"more free than there are", describeSubnets, subnets(subnet("subnet-1", "vpc-1", "a", "10.0.0.0/24", "257")), listingSubnets(atHome), "availableIpAddressCount"},
		{"a subnet of the world", describeSubnets, subnets(subnet("subnet-1", "vpc-1", "a", "0.0.0.0/0", "251")), listingSubnets(atHome), "cidrBlock"},
		{"an IPv6-only subnet", describeSubnets, subnets(native("<availableIpAddressCount>0</availableIpAddressCount>")), listingSubnets(atHome), ""},
		{"an IPv6-only subnet without a count", describeSubnets, subnets(native("")), listingSubnets(atHome), ""},
		{"an IPv6-only subnet with a block of IPv4", describeSubnets, subnets(native("<cidrBlock>10.0.0.0/24</cidrBlock>")), listingSubnets(atHome), "ipv6Native"},
		{"an IPv6-only subnet with IPv4 addresses", describeSubnets, subnets(native("<availableIpAddressCount>7</availableIpAddressCount>")), listingSubnets(atHome), "ipv6Native"},
		{"a subnet of no family", describeSubnets, subnets(strings.Replace(native("<availableIpAddressCount>0</availableIpAddressCount>"), "true", "false", 1)), listingSubnets(atHome), "cidrBlock"},
		{"a subnet of another VPC", describeSubnets, subnets(subnet("subnet-1", "vpc-2", "a", "10.0.0.0/24", "251")), listingSubnets(atHome), "vpcId"},
		{"a subnet of another zone", describeSubnets, subnets(subnet("subnet-1", "vpc-1", "b", "10.0.0.0/24", "251")), listingSubnets(atHome), "availabilityZone"},
		{"another subnet", describeSubnets, subnets(subnet("subnet-2", "vpc-1", "a", "10.0.0.0/24", "251")), listingSubnets(cloud.SubnetFilter{IDs: []string{"subnet-1"}}), "subnetId"},
		{"a subnet without the tag", describeSubnets, subnets(home), listingSubnets(cloud.SubnetFilter{Tags: map[string]string{"a": "b"}}), "tagSet"},
		{"a subnet twice", describeSubnets, subnets(home, subnet("subnet-1", "vpc-1", "a", "10.1.0.0/24", "2")), listingSubnets(atHome), "subnet-1"},

		{"instances", describeInstances, instances(instanceIn("i-1", "running"), instanceIn("i-2", "stopped")), twoInstances, ""},
		{"another instance", describeInstances, instances(instanceIn("i-1", "running"), instanceIn("i-3", "running")), twoInstances, "i-3"},
		{"an instance in two states", describeInstances, instances(instanceIn("i-1", "running"), instanceIn("i-1", "terminated")), twoInstances, "i-1"},

		{"route tables", describeRoutes, routeTables(routeTable("rtb-1", "vpc-1", main), routeTable("rtb-2", "vpc-1", one)), listingRoutes, ""},
		{"a route table of another VPC", describeRoutes, routeTables(routeTable("rtb-1", "vpc-2", main)), listingRoutes, "vpcId"},
		{"two main route tables", describeRoutes, routeTables(routeTable("rtb-1", "vpc-1", main), routeTable("rtb-2", "vpc-1", main)), listingRoutes, "main"},
		{"two route tables of a subnet", describeRoutes, routeTables(routeTable("rtb-1", "vpc-1", one), routeTable("rtb-2", "vpc-1", one)), listingRoutes, "subnet-1"},

		{"limits", describeTypes, typeLimits("4", "15"), limitsOf, ""},
		{"no ENIs", describeTypes, typeLimits("0", "15"), limitsOf, "at least one"},
		{"fewer than no addresses", describeTypes, typeLimits("4", "-1"), limitsOf, "not negative"},
		{"a million ENIs", describeTypes, typeLimits("1000000", "15"), limitsOf, "maximumNetworkInterfaces"},
		{"two billion addresses", describeTypes, typeLimits("4", "2147483647"), limitsOf, "ipv4AddressesPerInterface"},
		{"limits of another type", describeTypes, typeElement("other", "", ""), limitsOf, "instanceTypeSet"},
		{"limits without a network", describeTypes, "<instanceTypeSet><item><instanceType>x</instanceType></item></instanceTypeSet>", limitsOf, "networkInfo"},
		{"no limit of addresses", describeTypes, typeElement("x", "", "<maximumNetworkInterfaces>2</maximumNetworkInterfaces>"), limitsOf, "ipv4AddressesPerInterface"},
		{"no limit of ENIs", describeTypes, typeElement("x", "", "<ipv4AddressesPerInterface>2</ipv4AddressesPerInterface>"), limitsOf, "maximumNetworkInterfaces"},

		{"a route table without an ID", describeRoutes, routeTables(routeTable("", "vpc-1")), listingRoutes, "routeTableId"},
		{"a security group without an ID", pace.DescribeSecurityGroups.Action, "<securityGroupInfo><item><groupName>x</groupName></item></securityGroupInfo>", listGroups, "groupId"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, map[string][]answer{tt.action: {ok(tt.action, tt.answer)}})
			_, err := tt.call(t.Context(), client(t, s))
			if tt.says != "" {
				doubtful(t, err, tt.says)
			} else if err != nil {
				t.Error(err)
			}
			check.Equal(t, len(s.calls), 1, "requests")
		})
	}
}

// TestErrorClasses sends every error code through the SDK and checks its class.
func TestErrorClasses(t *testing.T) {
	tests := []struct {
		status        int
		code, message string
		want          cloud.Class
	}{
		{503, "RequestLimitExceeded", "Request limit exceeded.", cloud.Throttled},
		{503, "Client.RequestLimitExceeded", "Request limit exceeded.", cloud.Throttled},
		{400, "Throttling", "Rate exceeded", cloud.Throttled},
		{400, "ThrottlingException", "Rate exceeded", cloud.Throttled},
		{400, "RequestThrottled", "", cloud.Throttled},
		{503, "SlowDown", "", cloud.Throttled},
		{400, "EC2ThrottledException", "", cloud.Throttled},
		{429, "SomethingNew", "", cloud.Throttled},

		{400, "InsufficientFreeAddressesInSubnet", "The specified subnet does not have enough free addresses to satisfy the request.", cloud.SubnetFull},
		{400, "InsufficientCidrBlocks", "The specified subnet does not have enough free cidr blocks to satisfy the request.", cloud.SubnetFull},
		{400, "InvalidParameterValue", "There aren't sufficient free Ipv4 addresses or prefixes", cloud.SubnetFull},

		{400, "InvalidParameterValue", "There aren't sufficient free Ipv6 addresses or prefixes", cloud.SubnetFull},
		{400, "InvalidParameterValue", "Subnet does not contain any IPv6 CIDR block ranges", cloud.SubnetFull},

		{400, "PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.", cloud.LimitReached},
		{400, "AttachmentLimitExceeded", "Interface count 4 exceeds the limit for t3.small", cloud.LimitReached},
		{400, "AttachmentLimitExceeded", "Branch interface count 10 exceeds the limit for m5.large", cloud.LimitReached},
		{400, "NetworkInterfaceLimitExceeded", "", cloud.LimitReached},
		{400, "SecurityGroupsPerInterfaceLimitExceeded", "", cloud.LimitReached},
		{400, "SomethingNewLimitExceeded", "", cloud.LimitReached},

		{400, "InvalidNetworkInterfaceID.NotFound", "The networkInterface ID 'eni-1' does not exist", cloud.Gone},
		{400, "InvalidInstanceID.NotFound", "The instance ID 'i-1' does not exist", cloud.Gone},
		{400, "InvalidAttachmentID.NotFound", "", cloud.Gone},
		{400, "InvalidSubnetID.NotFound", "", cloud.Gone},
		{400, "InvalidGroup.NotFound", "", cloud.Gone},
		{400, "InvalidVpcID.NotFound", "", cloud.Gone},
		{400, "InvalidSecurityGroupID.NotFound", "", cloud.Gone},
		{400, "InvalidAssociationID.NotFound", "", cloud.Gone},
		{400, "InvalidParameterValue", "Some of the specified addresses are not assigned to interface eni-1", cloud.Gone},

		{400, "InvalidNetworkInterface.InUse", "Interface: [eni-1] in use.", cloud.Conflict},
		{400, "InvalidParameterValue", "Network interface 'eni-1' is currently in use.", cloud.Conflict},
		{400, "InvalidParameterValue", "Instance 'i-1' already has an interface attached at device index '1'.", cloud.Conflict},
		{400, "IncorrectState", "", cloud.Conflict},
		{400, "IncorrectInstanceState", "", cloud.Conflict},
		{400, "InvalidIPAddress.InUse", "", cloud.Conflict},
		{400, "Resource.AlreadyAssigned", "", cloud.Conflict},
		{400, "DependencyViolation", "", cloud.Conflict},
		{400, "InvalidVlanId.Duplicate", "VlanId '7' is in use", cloud.Conflict},

		{403, "UnauthorizedOperation", "You are not authorized to perform this operation.", cloud.Permission},
		{401, "AuthFailure", "AWS was not able to validate the provided access credentials", cloud.Permission},
		{403, "SignatureDoesNotMatch", "", cloud.Permission},
		{400, "MissingAuthenticationToken", "", cloud.Permission},
		{400, "OptInRequired", "", cloud.Permission},
		{400, "PendingVerification", "", cloud.Permission},
		{400, "Blocked", "", cloud.Permission},
		{400, "ExpiredToken", "", cloud.Permission},
		{400, "RequestExpired", "", cloud.Permission},
		{403, "InvalidClientTokenId", "", cloud.Permission},

		{500, "InternalError", "An internal error has occurred", cloud.Transient},
		{500, "InternalFailure", "", cloud.Transient},
		{503, "Unavailable", "", cloud.Transient},
		{503, "ServiceUnavailable", "", cloud.Transient},
		{503, "Server.Unavailable", "", cloud.Transient},
		{500, "SomethingNew", "", cloud.Transient},

		{400, "IdempotentParameterMismatch", "", cloud.Bug},
		{400, "InvalidParameterValue", "Value (x) for parameter y is invalid.", cloud.Bug},
		{400, "InvalidParameterCombination", "", cloud.Bug},
		{400, "MissingParameter", "", cloud.Bug},
		{400, "UnsupportedOperation", "", cloud.Bug},
		{400, "OperationNotPermitted", "The network interface at device index 0 and networkCard index 0 cannot be detached.", cloud.Bug},
		{400, "InvalidNetworkInterfaceId.Malformed", "", cloud.Bug},
		{400, "SomethingNew", "", cloud.Bug},
	}
	for _, tt := range tests {
		t.Run(tt.code, func(t *testing.T) {
			s := serve(t, map[string][]answer{"AttachNetworkInterface": {refusal(tt.status, tt.code, tt.message)}})
			_, err := client(t, s).AttachENI(t.Context(), "eni-1", "i-1", 1)
			e, ok := errors.AsType[*cloud.Error](err)
			if !ok {
				t.Fatalf("error %v is no *cloud.Error", err)
			}
			if e.Class != tt.want || e.Op != "AttachNetworkInterface" || e.Code != tt.code {
				t.Errorf("got class %v, op %s, code %s; want class %v (%v)", e.Class, e.Op, e.Code, tt.want, err)
			}
			if tt.message != "" && e.Message != tt.message {
				t.Errorf("message %q, want %q", e.Message, tt.message)
			}
		})
	}
}

// TestForeignReplies: error pages of proxies and load balancers are not errors of EC2.
func TestForeignReplies(t *testing.T) {
	tests := []struct {
		name string
		a    answer
		want cloud.Class
	}{
		{"empty success", answer{status: 200}, cloud.Transient},
		{"only white space", answer{status: 200, body: " \n"}, cloud.Transient},
		{"log-in page", answer{status: 200, body: "<html><body>Log in</body></html>"}, cloud.Transient},
		{"another action's answer", ok("DescribeVpcs", ""), cloud.Transient},
		{"cut short", answer{status: 200, body: ok("DescribeNetworkInterfaces", "").body[:150]}, cloud.Transient},
		{"not XML", answer{status: 200, body: `{"ok":true}`}, cloud.Transient},
		{"bad gateway page", answer{status: 502, body: "<html>Bad Gateway</html>"}, cloud.Transient},
		{"bad gateway, empty", answer{status: 502}, cloud.Transient},
		{"forbidden page", answer{status: 403, body: "<html>no</html>"}, cloud.Bug},
		{"moved", answer{status: 301}, cloud.Transient},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, map[string][]answer{"DescribeNetworkInterfaces": {tt.a}})
			list, err := client(t, s).ENIs(t.Context(), cloud.ENIFilter{})
			if err == nil {
				t.Fatalf("taken for a listing of %d interfaces", len(list))
			}
			check.Equal(t, cloud.ClassOf(err), tt.want, "class")
		})
	}
}
