package ec2api

import (
	"strings"

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// eniFilters are the filters of DescribeNetworkInterfaces.
var eniFilters = filterSet{
	named: `addresses.primary addresses.private-ip-address attachment.attach-time attachment.attachment-id
		attachment.delete-on-termination attachment.device-index attachment.instance-id attachment.instance-owner-id attachment.status
		availability-zone availability-zone-id description interface-type ipv6-addresses.ipv6-address mac-address network-interface-id
		owner-id private-dns-name requester-id requester-managed source-dest-check status subnet-id vpc-id`,
	within: map[string]string{"addresses": "privateIpAddressesSet>item", "ipv6-addresses": "ipv6AddressesSet>item"},
	at: map[string]string{
		"group-id": "groupSet>item>groupId", "group-name": "groupSet>item>groupName",
		"private-ip-address": "privateIpAddressesSet>item>privateIpAddress",
	},
	fixed: map[string]string{"operator.managed": "false"},
	absent: `addresses.association.owner-id addresses.association.public-ip association.allocation-id association.association-id
		association.ip-owner-id association.public-dns-name association.public-ip operator.principal`,
}

// instanceENIFilters are the filters of DescribeInstances on the ENIs of an instance that
// DescribeNetworkInterfaces lacks, without the prefix "network-interface.".
var instanceENIFilters = filterSet{
	named: `addresses.private-dns-name attachment.network-card-index ipv4-prefixes.ipv4-prefix ipv6-prefixes.ipv6-prefix`,
	within: map[string]string{
		"addresses": "privateIpAddressesSet>item", "ipv4-prefixes": "ipv4PrefixSet>item", "ipv6-prefixes": "ipv6PrefixSet>item",
	},
	at: map[string]string{
		"ipv6-native": "ipv6Native", "ipv6-address": "ipv6AddressesSet>item>ipv6Address", "ipv6-addresses.is-primary-ipv6": "ipv6AddressesSet>item>isPrimaryIpv6",
	},
	fixed: map[string]string{"deny-all-igw-traffic": "false"},
	absent: `addresses.association.allocation-id addresses.association.association-id addresses.association.carrier-ip
		addresses.association.customer-owned-ip addresses.association.ip-owner-id addresses.association.public-dns-name
		association.carrier-ip association.customer-owned-ip outpost-arn public-dns-name`,
}

// instanceFilters are the filters of DescribeInstances on an instance, its primary ENI and its IPv6
// addresses. As in EC2, they see only the primary private address.
var instanceFilters = filterSet{
	named: `architecture client-token hypervisor iam-instance-profile.arn iam-instance-profile.id image-id instance-id instance-type
		launch-time metadata-options.http-endpoint metadata-options.http-tokens owner-id private-dns-name private-ip-address
		reservation-id`,
	at: map[string]string{
		"availability-zone": "placement>availabilityZone", "availability-zone-id": "placement>availabilityZoneId", "tenancy": "placement>tenancy",
		"instance-state-code": "instanceState>code", "instance-state-name": "instanceState>name", "launch-index": "amiLaunchIndex",
		"instance.group-id": "groupSet>item>groupId", "instance.group-name": "groupSet>item>groupName",
		"ipv6-address":      "networkInterfaceSet>item>ipv6AddressesSet>item>ipv6Address",
		"source-dest-check": "checked", "subnet-id": "launchedIn", "vpc-id": "launchedInVpc",
	},
	fixed: map[string]string{"ebs-optimized": "false", "operator.managed": "false"},
	absent: `affinity block-device-mapping.attach-time block-device-mapping.delete-on-termination block-device-mapping.device-name
		block-device-mapping.status block-device-mapping.volume-id capacity-reservation-id dns-name host-id
		instance-lifecycle ip-address kernel-id key-name operator.principal outpost-arn placement-group-name
		placement-partition-number platform product-code product-code.type ramdisk-id reason requester-id
		spot-instance-request-id state-reason-code state-reason-message`,
}

// instanceFiltering returns the attributes for DescribeInstances. enis lists the ENIs of an instance; v1
// is set if the metadata service accepts requests without a token.
func (n names) instanceFiltering(enis func(instanceID string) []*vpc.ENI, v1 bool) attributes[vpc.Instance] {
	row := func(i *vpc.Instance) instanceXML { return n.instance(i, enis(i.ID), v1) }
	ofInstance := filtering(instanceFilters, row, func(i *vpc.Instance) vpc.Tags { return i.Tags })
	ofENI, ofInstanceENI := n.eniFiltering(), filtering(instanceENIFilters, n.eni, nil)
	return func(name string) (values[vpc.Instance], bool) {
		name, isOfENI := strings.CutPrefix(name, "network-interface.")
		if !isOfENI {
			return ofInstance(name)
		}
		v, ok := ofENI(name)
		if !ok {
			v, ok = ofInstanceENI(name)
		}
		if !ok || strings.HasPrefix(name, "tag:") {
			return nil, false
		}
		return func(i *vpc.Instance) (out []string) {
			for _, e := range enis(i.ID) {
				out = append(out, v(e)...)
			}
			return out
		}, true
	}
}

func (n names) eniFiltering() attributes[vpc.ENI] {
	return filtering(eniFilters, n.eni, func(e *vpc.ENI) vpc.Tags { return e.Tags })
}

// hypervisor returns the hypervisor of a type in DescribeInstances, which reports Nitro for bare metal.
func hypervisor(instanceType string) string {
	e, ok := limits.Find(instanceType)
	if ok && e.Hypervisor == limits.BareMetal {
		return limits.HypervisorNitro
	}
	return e.Hypervisor
}

// typeFilters are the filters of DescribeInstanceTypes on network properties, the only ones that the lab
// models.
var typeFilters = filterSet{
	named: `bare-metal current-generation hypervisor instance-type network-info.ipv4-addresses-per-interface
		network-info.ipv6-addresses-per-interface network-info.ipv6-supported network-info.maximum-network-cards
		network-info.maximum-network-interfaces`,
}

// trunkFilters are the filters of DescribeTrunkInterfaceAssociations. The API reference does not document
// the filter on the trunk, but the Amazon VPC resource controller and Titus use it.
var trunkFilters = filterSet{
	named:  `interface-protocol`,
	at:     map[string]string{"trunk-interface-association.trunk-interface-id": "trunkInterfaceId"},
	absent: `gre-key`,
}

// statusFilters are the filters of DescribeInstanceStatus.
var statusFilters = filterSet{
	named: `attached-ebs-status.status availability-zone availability-zone-id instance-status.status system-status.status`,
	at: map[string]string{
		"instance-state-code": "instanceState>code", "instance-state-name": "instanceState>name",
		"instance-status.reachability": "instanceStatus>details>item>status", "system-status.reachability": "systemStatus>details>item>status",
	},
	fixed: map[string]string{"operator.managed": "false"},
	absent: `application-status.status event.code event.description event.instance-event-id event.not-after event.not-before
		event.not-before-deadline operator.principal`,
}

// zoneFilters are the filters of DescribeAvailabilityZones.
var zoneFilters = filterSet{
	named:  `group-name opt-in-status region-name zone-id zone-name zone-type`,
	at:     map[string]string{"state": "zoneState"},
	absent: `group-long-name message parent-zone-id parent-zone-name`,
}

// subnetFilters are the filters of DescribeSubnets.
var subnetFilters = filterSet{
	named: `availability-zone availability-zone-id available-ip-address-count cidr-block default-for-az
		ipv6-cidr-block-association.association-id ipv6-cidr-block-association.ipv6-cidr-block map-public-ip-on-launch owner-id state
		subnet-arn subnet-id vpc-id`,
	within: map[string]string{"ipv6-cidr-block-association": "ipv6CidrBlockAssociationSet>item"},
	at: map[string]string{
		"availabilityZone": "availabilityZone", "availabilityZoneId": "availabilityZoneId", "cidr": "cidrBlock", "cidrBlock": "cidrBlock",
		"defaultForAz": "defaultForAz", "ipv6-native": "ipv6Native",
		"private-dns-name-options-on-launch.hostname-type": "privateDnsNameOptionsOnLaunch>hostnameType",
		"ipv6-cidr-block-association.state":                "ipv6CidrBlockAssociationSet>item>ipv6CidrBlockState>state",
	},
	fixed: map[string]string{
		"enable-dns64": "false", "map-customer-owned-ip-on-launch": "false",
		"private-dns-name-options-on-launch.enable-resource-name-dns-a-record":    "false",
		"private-dns-name-options-on-launch.enable-resource-name-dns-aaaa-record": "false",
	},
	absent: `customer-owned-ipv4-pool enable-lni-at-device-index outpost-arn`,
}

// vpcFilters are the filters of DescribeVpcs.
var vpcFilters = filterSet{
	named: `cidr-block cidr-block-association.association-id cidr-block-association.cidr-block ipv6-cidr-block-association.association-id
		ipv6-cidr-block-association.ipv6-cidr-block is-default owner-id state vpc-id`,
	within: map[string]string{
		"cidr-block-association": "cidrBlockAssociationSet>item", "ipv6-cidr-block-association": "ipv6CidrBlockAssociationSet>item",
	},
	at: map[string]string{
		"cidr": "cidrBlock", "cidrBlock": "cidrBlock", "isDefault": "isDefault",
		"cidr-block-association.state":      "cidrBlockAssociationSet>item>cidrBlockState>state",
		"ipv6-cidr-block-association.state": "ipv6CidrBlockAssociationSet>item>ipv6CidrBlockState>state",
	},
	absent: `dhcp-options-id ipv6-cidr-block-association.ipv6-pool`,
}

// tableFilters are the filters of DescribeRouteTables.
var tableFilters = filterSet{
	named: `association.main association.route-table-association-id association.route-table-id association.subnet-id owner-id
		route-table-id route.destination-cidr-block route.destination-ipv6-cidr-block route.egress-only-internet-gateway-id route.gateway-id route.origin
		route.state vpc-id`,
	within: map[string]string{"association": "associationSet>item", "route": "routeSet>item"},
	absent: `association.gateway-id route.destination-prefix-list-id route.instance-id
		route.nat-gateway-id route.transit-gateway-id route.vpc-peering-connection-id`,
}

// groupFilters are the filters of DescribeSecurityGroups.
var groupFilters = filterSet{
	named: `egress.ip-permission.from-port egress.ip-permission.to-port group-id group-name ip-permission.from-port
		ip-permission.to-port owner-id vpc-id`,
	within: map[string]string{"egress.ip-permission": "ipPermissionsEgress>item", "ip-permission": "ipPermissions>item"},
	at: map[string]string{
		"description":                     "groupDescription",
		"ip-permission.cidr":              "ipPermissions>item>ipRanges>item>cidrIp",
		"ip-permission.group-id":          "ipPermissions>item>groups>item>groupId",
		"ip-permission.group-name":        "ipPermissions>item>groups>item>groupName",
		"ip-permission.ipv6-cidr":         "ipPermissions>item>ipv6Ranges>item>cidrIpv6",
		"ip-permission.protocol":          "ipPermissions>item>ipProtocol",
		"ip-permission.user-id":           "ipPermissions>item>groups>item>userId",
		"egress.ip-permission.cidr":       "ipPermissionsEgress>item>ipRanges>item>cidrIp",
		"egress.ip-permission.group-id":   "ipPermissionsEgress>item>groups>item>groupId",
		"egress.ip-permission.group-name": "ipPermissionsEgress>item>groups>item>groupName",
		"egress.ip-permission.ipv6-cidr":  "ipPermissionsEgress>item>ipv6Ranges>item>cidrIpv6",
		"egress.ip-permission.protocol":   "ipPermissionsEgress>item>ipProtocol",
		"egress.ip-permission.user-id":    "ipPermissionsEgress>item>groups>item>userId",
	},
	absent: `egress.ip-permission.prefix-list-id ip-permission.prefix-list-id`,
}

// tagFiltering returns the attributes for DescribeTags.
func tagFiltering(name string) (values[tagRow], bool) {
	switch name {
	case "key":
		name = "tag-key"
	case "value":
		name = "tag-value"
	}
	set := filterSet{named: `resource-id resource-type`}
	row := func(t *tagRow) *tagRow { return t }
	return filtering(set, row, func(t *tagRow) vpc.Tags { return vpc.Tags{t.Key: t.Value} })(name)
}
