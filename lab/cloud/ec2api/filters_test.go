package ec2api_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/berthnet/berth/lab/cloud/spec"
)

// documented are the filters of each describe action in the API reference. The lab refuses those after
// the bar, because it does not model their properties.
var documented = map[string]string{
	"DescribeInstances": `affinity architecture availability-zone availability-zone-id block-device-mapping.attach-time
		block-device-mapping.delete-on-termination block-device-mapping.device-name block-device-mapping.status
		block-device-mapping.volume-id capacity-reservation-id client-token dns-name ebs-optimized host-id hypervisor
		iam-instance-profile.arn iam-instance-profile.id image-id instance-id instance-lifecycle instance-state-code
		instance-state-name instance-type instance.group-id instance.group-name ip-address ipv6-address kernel-id key-name
		launch-index launch-time metadata-options.http-endpoint metadata-options.http-tokens
		network-interface.addresses.association.allocation-id network-interface.addresses.association.association-id
		network-interface.addresses.association.carrier-ip network-interface.addresses.association.customer-owned-ip
		network-interface.addresses.association.ip-owner-id network-interface.addresses.association.public-dns-name
		network-interface.addresses.association.public-ip network-interface.addresses.primary
		network-interface.addresses.private-dns-name network-interface.addresses.private-ip-address
		network-interface.association.allocation-id network-interface.association.association-id
		network-interface.association.carrier-ip network-interface.association.customer-owned-ip
		network-interface.association.ip-owner-id network-interface.association.public-dns-name
		network-interface.association.public-ip network-interface.attachment.attach-time
		network-interface.attachment.attachment-id network-interface.attachment.delete-on-termination
		network-interface.attachment.device-index network-interface.attachment.instance-id
		network-interface.attachment.instance-owner-id network-interface.attachment.network-card-index
		network-interface.attachment.status network-interface.availability-zone network-interface.deny-all-igw-traffic
		network-interface.description network-interface.group-id network-interface.group-name
		network-interface.ipv4-prefixes.ipv4-prefix network-interface.ipv6-address network-interface.ipv6-addresses.ipv6-address
		network-interface.ipv6-addresses.is-primary-ipv6 network-interface.ipv6-native network-interface.ipv6-prefixes.ipv6-prefix
		network-interface.mac-address network-interface.network-interface-id network-interface.operator.managed
		network-interface.operator.principal network-interface.outpost-arn network-interface.owner-id
		network-interface.private-dns-name network-interface.private-ip-address network-interface.public-dns-name
		network-interface.requester-id network-interface.requester-managed network-interface.status
		network-interface.source-dest-check network-interface.subnet-id network-interface.tag-key network-interface.tag-value
		network-interface.vpc-id operator.managed operator.principal outpost-arn owner-id placement-group-name
		placement-partition-number platform private-dns-name private-ip-address product-code product-code.type ramdisk-id reason
		requester-id reservation-id source-dest-check spot-instance-request-id state-reason-code state-reason-message subnet-id
		tag:Name tag-key tenancy vpc-id
		| boot-mode capacity-reservation-specification.capacity-reservation-preference current-instance-boot-mode ena-support
		enclave-options.enabled hibernation-options.configured maintenance-options.auto-recovery
		metadata-options.http-protocol-ipv4 metadata-options.http-protocol-ipv6 metadata-options.http-put-response-hop-limit
		metadata-options.instance-metadata-tags metadata-options.state monitoring-state
		network-performance-options.bandwidth-weighting platform-details
		private-dns-name-options.enable-resource-name-dns-a-record private-dns-name-options.enable-resource-name-dns-aaaa-record
		private-dns-name-options.hostname-type root-device-name root-device-type tpm-support usage-operation
		usage-operation-update-time virtualization-type`,
	"DescribeSubnets": `availability-zone availabilityZone availability-zone-id availabilityZoneId available-ip-address-count
		cidr-block cidr cidrBlock customer-owned-ipv4-pool default-for-az defaultForAz enable-dns64 enable-lni-at-device-index
		ipv6-cidr-block-association.ipv6-cidr-block ipv6-cidr-block-association.association-id ipv6-cidr-block-association.state
		ipv6-native map-customer-owned-ip-on-launch map-public-ip-on-launch outpost-arn owner-id
		private-dns-name-options-on-launch.hostname-type private-dns-name-options-on-launch.enable-resource-name-dns-a-record
		private-dns-name-options-on-launch.enable-resource-name-dns-aaaa-record state subnet-arn subnet-id tag:Name tag-key vpc-id`,
	"DescribeVpcs": `cidr cidr-block-association.cidr-block cidr-block-association.association-id cidr-block-association.state
		dhcp-options-id ipv6-cidr-block-association.ipv6-cidr-block ipv6-cidr-block-association.ipv6-pool
		ipv6-cidr-block-association.association-id ipv6-cidr-block-association.state is-default owner-id state tag:Name tag-key vpc-id`,
	"DescribeSecurityGroups": `description egress.ip-permission.cidr egress.ip-permission.from-port egress.ip-permission.group-id
		egress.ip-permission.group-name egress.ip-permission.ipv6-cidr egress.ip-permission.prefix-list-id
		egress.ip-permission.protocol egress.ip-permission.to-port egress.ip-permission.user-id group-id group-name
		ip-permission.cidr ip-permission.from-port ip-permission.group-id ip-permission.group-name ip-permission.ipv6-cidr
		ip-permission.prefix-list-id ip-permission.protocol ip-permission.to-port ip-permission.user-id owner-id tag:Name tag-key vpc-id`,
	"DescribeRouteTables": `association.gateway-id association.route-table-association-id association.route-table-id
		association.subnet-id association.main owner-id route-table-id route.destination-cidr-block
		route.destination-ipv6-cidr-block route.destination-prefix-list-id route.egress-only-internet-gateway-id route.gateway-id
		route.instance-id route.nat-gateway-id route.transit-gateway-id route.origin route.state route.vpc-peering-connection-id
		tag:Name tag-key vpc-id`,
	"DescribeTrunkInterfaceAssociations": `gre-key interface-protocol`,
	"DescribeTags":                       `key resource-id resource-type tag:Name value`,
	"DescribeInstanceStatus": `application-status.status attached-ebs-status.status availability-zone availability-zone-id event.code
		event.description event.instance-event-id event.not-after event.not-before event.not-before-deadline instance-state-code
		instance-state-name instance-status.reachability instance-status.status operator.managed operator.principal
		system-status.reachability system-status.status`,
	"DescribeAvailabilityZones": `group-long-name group-name message opt-in-status parent-zone-id parent-zone-name region-name state
		zone-id zone-name zone-type`,
	"DescribeNetworkInterfaces": `association.allocation-id association.association-id addresses.association.owner-id
		addresses.association.public-ip addresses.primary addresses.private-ip-address association.ip-owner-id
		association.public-ip association.public-dns-name attachment.attach-time attachment.attachment-id
		attachment.delete-on-termination attachment.device-index attachment.instance-id attachment.instance-owner-id
		attachment.status availability-zone availability-zone-id description group-id ipv6-addresses.ipv6-address interface-type
		mac-address network-interface-id operator.managed operator.principal owner-id private-dns-name private-ip-address
		requester-id requester-managed source-dest-check status subnet-id tag:Name tag-key vpc-id`,
	"DescribeInstanceTypes": `bare-metal current-generation hypervisor instance-type network-info.ipv4-addresses-per-interface
		network-info.ipv6-addresses-per-interface network-info.ipv6-supported network-info.maximum-network-cards
		network-info.maximum-network-interfaces
		| auto-recovery-supported burstable-performance-supported dedicated-hosts-supported ebs-info.attachment-limit-type
		ebs-info.ebs-optimized-support ebs-info.encryption-support ebs-info.nvme-support free-tier-eligible hibernation-supported
		instance-storage-info.disk.count instance-storage-supported memory-info.size-in-mib
		network-info.efa-info.maximum-efa-interfaces network-info.efa-supported network-info.ena-support
		network-info.network-performance nitro-enclaves-support nitro-tpm-support processor-info.supported-architecture
		processor-info.sustained-clock-speed-in-ghz supported-boot-mode supported-root-device-type supported-usage-class
		supported-virtualization-type vcpu-info.default-cores vcpu-info.default-vcpus vcpu-info.valid-cores`,
}

func TestDocumentedFilters(t *testing.T) {
	s := dual()
	s.Throttle = "none"
	r := newRig(t, s)
	for action, list := range documented {
		known, unknown, _ := strings.Cut(list, "|")
		for _, name := range strings.Fields(known) {
			if got := r.query(action, "Filter.1.Name", name, "Filter.1.Value.1", "*"); got.Status != http.StatusOK {
				t.Errorf("%s with filter %s: %+v, want success", action, name, got)
			}
		}
		for _, name := range append(strings.Fields(unknown), "colour") {
			if got := r.query(action, "Filter.1.Name", name, "Filter.1.Value.1", "*"); got.Code != "InvalidParameterValue" {
				t.Errorf("%s with unsupported filter %s: %+v, want InvalidParameterValue", action, name, got)
			}
		}
	}
}

// Filters on ENI properties find the one matching instance.
func TestFilterInstancesByENI(t *testing.T) {
	s := dual()
	s.Throttle = "none"
	s.Instances = []spec.Instance{
		{
			Name: "one", Type: "p4d.24xlarge", Subnet: "a", Role: "node", Secondary: 1, IPv6: 1,
			Interfaces: []spec.Interface{{DeviceIndex: 1, NetworkCard: 1, Prefixes: 1, Description: "second", Tags: map[string]string{"for": "pods"}}},
		},
		{Name: "two", Type: "t2.medium", Subnet: "b"},
	}
	r := newRig(t, s)
	snapshot := r.cloud.Snapshot()
	id := r.cloud.Instances.ID("one")
	enis := snapshot.InstanceENIs(id)
	zone := r.cloud.ZoneIDs()["lab-1a"]
	if zone != "lab1-az1" {
		t.Fatalf("zone ID of lab-1a = %s, want lab1-az1", zone)
	}
	for _, f := range [][2]string{
		{"availability-zone-id", zone}, {"hypervisor", "nitro"}, {"iam-instance-profile.arn", "*:instance-profile/node"}, {"ipv6-address", enis[0].IPv6[0].String()},
		{"instance-type", "p4d.*"}, {"private-ip-address", enis[0].Primary.String()}, {"tag:Name", "one"},
		{"network-interface.addresses.private-ip-address", enis[0].Secondary[0].String()},
		{"network-interface.attachment.network-card-index", "1"}, {"network-interface.ipv4-prefixes.ipv4-prefix", enis[1].Prefixes[0].String()},
		{"network-interface.description", "second"}, {"network-interface.tag-key", "for"}, {"network-interface.tag-value", "pods"},
		{"network-interface.network-interface-id", enis[1].ID}, {"network-interface.ipv6-address", enis[0].IPv6[0].String()},
	} {
		if got, err := r.find("DescribeInstances", filters(f[0], f[1])); err != nil || !slices.Equal(got, []string{id}) {
			t.Errorf("instances with %s=%s: %v, %v; want %s", f[0], f[1], got, err, id)
		}
		if got, err := r.find("DescribeInstances", filters(f[0], f[1]+"-not")); err != nil || len(got) != 0 {
			t.Errorf("instances with another %s: %v, %v; want none", f[0], got, err)
		}
	}
	// For instances, private-ip-address covers only the primary address; for ENIs, all addresses.
	second := enis[0].Secondary[0].String()
	if got, err := r.find("DescribeInstances", filters("private-ip-address", second)); err != nil || len(got) != 0 {
		t.Errorf("instances with a secondary address: %v, %v; want none", got, err)
	}
	one, err := r.DescribeNetworkInterfaces(t.Context(), &awsec2.DescribeNetworkInterfacesInput{Filters: filters("private-ip-address", second)})
	if err != nil || len(one.NetworkInterfaces) != 1 || *one.NetworkInterfaces[0].AvailabilityZoneId != zone {
		t.Errorf("ENIs with a secondary address: %+v, %v; want one in zone %s", one, err, zone)
	}
}

func TestInstanceStatus(t *testing.T) {
	r := newRig(t, instant())
	a := r.cloud.Instances.ID("node-a")
	ok(t, r.cloud.Instances.Stop("node-b"))
	out, err := r.DescribeInstanceStatus(t.Context(), &awsec2.DescribeInstanceStatusInput{})
	if err != nil || len(out.InstanceStatuses) != 1 {
		t.Fatalf("DescribeInstanceStatus() = %+v, %v; want only the running instance", out, err)
	}
	if s := out.InstanceStatuses[0]; *s.InstanceId != a || s.InstanceStatus.Status != "ok" || s.SystemStatus.Details[0].Status != "passed" ||
		*s.AvailabilityZoneId != "lab1-az1" || s.InstanceState.Name != "running" {
		t.Errorf("status = %+v, want passed checks of a running instance", s)
	}
	out, err = r.DescribeInstanceStatus(t.Context(), &awsec2.DescribeInstanceStatusInput{
		IncludeAllInstances: aws.Bool(true), Filters: filters("instance-status.status", "not-applicable"),
	})
	if err != nil || len(out.InstanceStatuses) != 1 || out.InstanceStatuses[0].InstanceState.Name != "stopped" {
		t.Errorf("DescribeInstanceStatus() with filters = %+v, %v; want the stopped instance", out, err)
	}
	r.refuses(t, "InvalidInstanceID.NotFound", &awsec2.DescribeInstanceStatusInput{InstanceIds: []string{"i-0123456789abcdef0"}})
}

func TestAvailabilityZones(t *testing.T) {
	r := newRig(t, instant())
	out, err := r.DescribeAvailabilityZones(t.Context(), &awsec2.DescribeAvailabilityZonesInput{})
	if err != nil || len(out.AvailabilityZones) != 2 {
		t.Fatalf("DescribeAvailabilityZones() = %+v, %v; want two zones", out, err)
	}
	if z := out.AvailabilityZones[1]; *z.ZoneName != "lab-1b" || *z.ZoneId != "lab1-az2" || z.State != "available" || *z.RegionName != "lab-1" || *z.ZoneType != "availability-zone" {
		t.Errorf("zone = %+v, want lab-1b", z)
	}
	out, err = r.DescribeAvailabilityZones(t.Context(), &awsec2.DescribeAvailabilityZonesInput{ZoneIds: []string{"lab1-az1"}, Filters: filters("state", "available")})
	if err != nil || len(out.AvailabilityZones) != 1 || *out.AvailabilityZones[0].ZoneName != "lab-1a" {
		t.Errorf("DescribeAvailabilityZones(lab1-az1) = %+v, %v; want lab-1a", out, err)
	}
	r.refuses(t, "InvalidParameterValue", &awsec2.DescribeAvailabilityZonesInput{ZoneNames: []string{"lab-1z"}})
	subnets, err := r.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{Filters: filters("availability-zone-id", "lab1-az2")})
	if err != nil || len(subnets.Subnets) != 1 || *subnets.Subnets[0].AvailabilityZoneId != "lab1-az2" {
		t.Errorf("subnets in lab1-az2 = %+v, %v; want one", subnets, err)
	}
}

func TestNetworkInterfaceAttribute(t *testing.T) {
	r := newRig(t, instant())
	e := r.create(awsec2.CreateNetworkInterfaceInput{Description: aws.String("spare")})
	r.attach(*e.NetworkInterfaceId, "node-a", 1)
	get := func(a types.NetworkInterfaceAttribute) *awsec2.DescribeNetworkInterfaceAttributeOutput {
		t.Helper()
		out, err := r.DescribeNetworkInterfaceAttribute(t.Context(), &awsec2.DescribeNetworkInterfaceAttributeInput{NetworkInterfaceId: e.NetworkInterfaceId, Attribute: a})
		ok(t, err)
		return out
	}
	if o := get("description"); *o.Description.Value != "spare" || o.SourceDestCheck != nil || o.Attachment != nil || *o.NetworkInterfaceId != *e.NetworkInterfaceId {
		t.Errorf("attribute description = %+v, want spare and no other attribute", o)
	}
	if o := get("sourceDestCheck"); !*o.SourceDestCheck.Value || o.Description != nil {
		t.Errorf("attribute sourceDestCheck = %+v, want true and no other attribute", o)
	}
	if o := get("groupSet"); len(o.Groups) != 1 || *o.Groups[0].GroupName != "default" {
		t.Errorf("attribute groupSet = %+v, want the default group", o)
	}
	if o := get("attachment"); *o.Attachment.DeviceIndex != 1 || *o.Attachment.InstanceId != r.cloud.Instances.ID("node-a") {
		t.Errorf("attribute attachment = %+v, want device index 1 of node-a", o)
	}
	r.wantRefusal(r.query("DescribeNetworkInterfaceAttribute", "NetworkInterfaceId", *e.NetworkInterfaceId, "Attribute", "colour"), "InvalidParameterValue", http.StatusBadRequest)
	r.wantRefusal(r.query("DescribeNetworkInterfaceAttribute", "NetworkInterfaceId", *e.NetworkInterfaceId), "MissingParameter", http.StatusBadRequest)
	r.wantRefusal(r.query("DescribeNetworkInterfaceAttribute", "NetworkInterfaceId", "eni-0123456789abcdef0", "Attribute", "description"), "InvalidNetworkInterfaceID.NotFound", http.StatusBadRequest)
}
