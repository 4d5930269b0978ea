package aws

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthnet/berth/internal/cloud"
)

var sameValues = cmp.Options{cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})}

// fullENI has every field that is read, in the form of the examples of the
// EC2 API Reference.
const fullENI = `<item>
<networkInterfaceId>eni-0a</networkInterfaceId><subnetId>subnet-1</subnetId><vpcId>vpc-1</vpcId>
<availabilityZone>eu-west-1a</availabilityZone><description>made by Berth</description>
<status>in-use</status><macAddress>02:00:00:00:00:0a</macAddress><interfaceType>interface</interfaceType>
<privateIpAddress>10.0.0.10</privateIpAddress>
<groupSet><item><groupId>sg-1</groupId><groupName>a</groupName></item><item><groupId>sg-2</groupId></item></groupSet>
<attachment><attachmentId>eni-attach-1</attachmentId><instanceId>i-1</instanceId><deviceIndex>1</deviceIndex>
<networkCardIndex>0</networkCardIndex><status>attached</status><deleteOnTermination>true</deleteOnTermination></attachment>
<tagSet><item><key>berth.dev/created-at</key><value>2026-05-04T03:02:01Z</value></item><item><key>Name</key><value>x</value></item></tagSet>
<privateIpAddressesSet><item><privateIpAddress>10.0.0.10</privateIpAddress><primary>true</primary></item>
<item><privateIpAddress>10.0.0.12</privateIpAddress><primary>false</primary></item>
<item><privateIpAddress>10.0.0.11</privateIpAddress><primary>false</primary></item></privateIpAddressesSet>
<ipv4PrefixSet><item><ipv4Prefix>10.0.0.32/28</ipv4Prefix></item></ipv4PrefixSet>
<ipv6AddressesSet><item><ipv6Address>2001:db8::5</ipv6Address></item></ipv6AddressesSet>
<ipv6PrefixSet><item><ipv6Prefix>2001:db8:0:0:1::/80</ipv6Prefix></item></ipv6PrefixSet>
</item>`

func TestENIConversion(t *testing.T) {
	detached := `<item><networkInterfaceId>eni-0b</networkInterfaceId><status>available</status>
<tagSet><item><key>berth.dev/created-at</key><value>yesterday</value></item></tagSet></item>`
	s := serve(t, map[string][]answer{describeENIs: {ok(describeENIs, "<networkInterfaceSet>"+fullENI+detached+"</networkInterfaceSet>")}})
	got, err := client(t, s).ENIs(t.Context(), cloud.ENIFilter{})
	if err != nil {
		t.Fatal(err)
	}
	want := []cloud.ENI{{
		ID: "eni-0a", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 10}, Type: cloud.InterfaceOrdinary, Status: "in-use",
		Description: "made by Berth", VPCID: "vpc-1", SubnetID: "subnet-1", Zone: "eu-west-1a", Groups: []string{"sg-1", "sg-2"},
		Tags:         map[string]string{"berth.dev/created-at": "2026-05-04T03:02:01Z", "Name": "x"},
		CreatedAt:    time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC),
		Primary:      netip.MustParseAddr("10.0.0.10"),
		Addresses:    []netip.Addr{netip.MustParseAddr("10.0.0.12"), netip.MustParseAddr("10.0.0.11")},
		Prefixes:     []netip.Prefix{netip.MustParsePrefix("10.0.0.32/28")},
		IPv6:         []netip.Addr{netip.MustParseAddr("2001:db8::5")},
		IPv6Prefixes: []netip.Prefix{netip.MustParsePrefix("2001:db8:0:0:1::/80")},
		Attachment:   &cloud.Attachment{ID: "eni-attach-1", InstanceID: "i-1", DeviceIndex: 1, Status: "attached", DeleteOnTermination: true},
	}, {
		ID: "eni-0b", Status: "available", Tags: map[string]string{"berth.dev/created-at": "yesterday"},
	}}
	if d := cmp.Diff(want, got, sameValues); d != "" {
		t.Error(d)
	}
}

// TestMalformedAnswers spoils one field at a time.
func TestMalformedAnswers(t *testing.T) {
	tests := []struct{ old, new, want string }{
		{"<networkInterfaceId>eni-0a</networkInterfaceId>", "", "networkInterfaceId"},
		{"02:00:00:00:00:0a", "zz", "networkInterfaceSet[eni-0a].macAddress"},
		{"02:00:00:00:00:0a", "02:00:00:00:00:0a:00:00", "macAddress"},
		{"<privateIpAddress>10.0.0.10</privateIpAddress>\n<groupSet>", "<privateIpAddress>10.0.0</privateIpAddress><groupSet>", "privateIpAddress"},
		{"<privateIpAddress>10.0.0.12</privateIpAddress>", "<privateIpAddress>::1</privateIpAddress>", "privateIpAddressesSet"},
		{"<privateIpAddress>10.0.0.12</privateIpAddress>", "", "privateIpAddressesSet"},
		{"<privateIpAddress>10.0.0.12</privateIpAddress>", "<privateIpAddress>::ffff:10.0.0.12</privateIpAddress>", "privateIpAddressesSet"},
		{"10.0.0.32/28", "10.0.0.33/28", "ipv4PrefixSet"},
		{"10.0.0.32/28", "10.0.0.0/8", "ipv4PrefixSet"},
		{"10.0.0.32/28", "10.0.0.32", "ipv4PrefixSet"},
		{"2001:db8::5", "10.0.0.5", "ipv6AddressesSet"},
		{"2001:db8::5", "fe80::1%eth0", "ipv6AddressesSet"},
		{"2001:db8:0:0:1::/80", "2001:db8::/64", "ipv6PrefixSet"},
		{"<groupId>sg-2</groupId>", "", "groupId"},
		{"<attachmentId>eni-attach-1</attachmentId>", "", "attachment.attachmentId"},
		{"<deviceIndex>1</deviceIndex>", "", "attachment.deviceIndex"},
		{"<deviceIndex>1</deviceIndex>", "<deviceIndex>-1</deviceIndex>", "attachment.deviceIndex"},
		{"<deviceIndex>1</deviceIndex>", "<deviceIndex>many</deviceIndex>", "many"},
		{"<primary>false</primary>", "<primary>perhaps</primary>", "Boolean"},
	}
	for _, tt := range tests {
		body := strings.Replace(fullENI, tt.old, tt.new, 1)
		if body == fullENI {
			t.Fatalf("%q is not in the answer", tt.old)
		}
		s := serve(t, map[string][]answer{describeENIs: {ok(describeENIs, "<networkInterfaceSet>"+body+"</networkInterfaceSet>")}})
		_, err := client(t, s).ENIs(t.Context(), cloud.ENIFilter{})
		if err == nil || !strings.Contains(err.Error(), tt.want) || cloud.ClassOf(err) != cloud.Transient {
			t.Errorf("%q for %q: %v (class %v), want a transient error that names %s", tt.new, tt.old, err, cloud.ClassOf(err), tt.want)
		}
	}
}

func TestPagination(t *testing.T) {
	page := func(id, next string) answer {
		return ok(describeENIs, "<networkInterfaceSet><item><networkInterfaceId>"+id+"</networkInterfaceId></item></networkInterfaceSet>"+next)
	}
	s := serve(t, map[string][]answer{describeENIs: {page("eni-1", "<nextToken>a</nextToken>"), page("eni-2", "<nextToken>b</nextToken>"), page("eni-3", "<nextToken/>")}})
	got, err := client(t, s).ENIs(t.Context(), cloud.ENIFilter{VPCID: "vpc-1"})
	if err != nil || len(got) != 3 || got[2].ID != "eni-3" {
		t.Fatalf("got %v, %v", got, err)
	}
	for i, want := range []string{"", "a", "b"} {
		r := s.sent(describeENIs)[i]
		if r.Get("NextToken") != want || r.Get("MaxResults") != "1000" || r.Get("Filter.1.Value.1") != "vpc-1" {
			t.Errorf("request %d: %v", i, r)
		}
	}

	s = serve(t, map[string][]answer{describeENIs: {page("eni-1", "<nextToken>a</nextToken>")}})
	if _, err := client(t, s).ENIs(t.Context(), cloud.ENIFilter{}); err == nil || !strings.Contains(err.Error(), "nextToken") {
		t.Errorf("a listing that goes round in circles gave %v", err)
	}
}

func TestENIFilters(t *testing.T) {
	var ids []string
	for i := range 450 {
		ids = append(ids, fmt.Sprintf("eni-%d", i))
	}
	s := serve(t, map[string][]answer{describeENIs: {ok(describeENIs, noENIs)}})
	_, err := client(t, s).ENIs(t.Context(), cloud.ENIFilter{
		IDs: ids, InstanceID: "i-1", Status: "available", Tags: map[string]string{"b": `a*b?c\d`, "a": "1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	sent := s.sent(describeENIs)
	if len(sent) != 3 {
		t.Fatalf("%d requests for 450 IDs, want 3 of at most 200", len(sent))
	}
	for key, want := range map[string]string{
		"Filter.1.Name": "attachment.instance-id", "Filter.1.Value.1": "i-1",
		"Filter.2.Name": "status", "Filter.2.Value.1": "available",
		"Filter.3.Name": "tag:a", "Filter.3.Value.1": "1",
		"Filter.4.Name": "tag:b", "Filter.4.Value.1": `a\*b\?c\\d`,
		"Filter.5.Name": "network-interface-id", "Filter.5.Value.50": "eni-449", "Filter.5.Value.51": "",
	} {
		if got := sent[2].Get(key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
}

// TestENIsOfManyInstances: the instances are split as IDs are, and every part is
// narrowed by the rest of the filter.
func TestENIsOfManyInstances(t *testing.T) {
	var ids []string
	for i := range 401 {
		ids = append(ids, fmt.Sprintf("i-%d", i))
	}
	s := serve(t, map[string][]answer{describeENIs: {ok(describeENIs, noENIs)}})
	if _, err := client(t, s).ENIs(t.Context(), cloud.ENIFilter{InstanceIDs: ids, VPCID: "vpc-1"}); err != nil {
		t.Fatal(err)
	}
	sent := s.sent(describeENIs)
	if len(sent) != 3 {
		t.Fatalf("%d requests for 401 instances, want 3 of at most 200", len(sent))
	}
	for i, last := range []string{"i-199", "i-399", "i-400"} {
		n := len(ids[i*200 : min(401, i*200+200)])
		if r := sent[i]; r.Get("Filter.1.Value.1") != "vpc-1" || r.Get("Filter.2.Name") != "attachment.instance-id" || r.Get(fmt.Sprintf("Filter.2.Value.%d", n)) != last {
			t.Errorf("request %d: %v", i, r)
		}
	}
}

// TestSecurityGroups follows pages and puts the groups in order.
func TestSecurityGroups(t *testing.T) {
	const op = "DescribeSecurityGroups"
	s := serve(t, map[string][]answer{op: {
		ok(op, "<securityGroupInfo><item><groupId>sg-2</groupId></item></securityGroupInfo><nextToken>a</nextToken>"),
		ok(op, "<securityGroupInfo><item><groupId>sg-1</groupId></item></securityGroupInfo>"),
		ok(op, "<securityGroupInfo><item><groupName>x</groupName></item></securityGroupInfo>"),
	}})
	c := client(t, s)
	got, err := c.SecurityGroups(t.Context(), "vpc-1", map[string]string{"for": "pods"})
	if err != nil || !slices.Equal(got, []string{"sg-1", "sg-2"}) {
		t.Errorf("got %v, %v", got, err)
	}
	if r := s.sent(op)[1]; r.Get("Filter.1.Value.1") != "vpc-1" || r.Get("Filter.2.Name") != "tag:for" || r.Get("NextToken") != "a" {
		t.Errorf("asked for %v", r)
	}
	if _, err := c.SecurityGroups(t.Context(), "vpc-1", nil); cloud.ClassOf(err) != cloud.Transient {
		t.Errorf("a group without an ID: %v", err)
	}
}

func TestSubnets(t *testing.T) {
	const op = "DescribeSubnets"
	item := `<item><subnetId>subnet-1</subnetId><vpcId>vpc-1</vpcId><cidrBlock>10.0.1.0/24</cidrBlock>
<ipv6CidrBlockAssociationSet><item><ipv6CidrBlock>2001:db8::/64</ipv6CidrBlock><ipv6CidrBlockState><state>associated</state></ipv6CidrBlockState></item>
<item><ipv6CidrBlock>2001:db8:1::/64</ipv6CidrBlock><ipv6CidrBlockState><state>disassociated</state></ipv6CidrBlockState></item></ipv6CidrBlockAssociationSet>
<availableIpAddressCount>251</availableIpAddressCount><availabilityZone>z</availabilityZone></item>`
	s := serve(t, map[string][]answer{op: {ok(op, "<subnetSet>"+item+"</subnetSet>"), ok(op, "<subnetSet>"+strings.Replace(item, "251", "-1", 1)+"</subnetSet>")}})
	c := client(t, s)
	got, err := c.Subnets(t.Context(), cloud.SubnetFilter{IDs: []string{"subnet-1"}, VPCID: "vpc-1", Zone: "z"})
	want := []cloud.Subnet{{
		ID: "subnet-1", VPCID: "vpc-1", Zone: "z", CIDR: netip.MustParsePrefix("10.0.1.0/24"),
		IPv6: []netip.Prefix{netip.MustParsePrefix("2001:db8::/64")}, Free: 251,
	}}
	if d := cmp.Diff(want, got, sameValues); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	if _, err := c.Subnets(t.Context(), cloud.SubnetFilter{}); err == nil || !strings.Contains(err.Error(), "subnetSet[subnet-1].availableIpAddressCount") {
		t.Errorf("got %v", err)
	}
}

const instance = `<item><instanceId>%[1]s</instanceId><instanceType>m5.large</instanceType><instanceState><name>running</name></instanceState>
<placement><availabilityZone>z</availabilityZone></placement><privateIpAddress>10.0.0.10</privateIpAddress><subnetId>subnet-1</subnetId><vpcId>vpc-1</vpcId></item>`

func TestInstance(t *testing.T) {
	const op = "DescribeInstances"
	one := "<reservationSet><item><instancesSet>" + fmt.Sprintf(instance, "i-1") + "</instancesSet></item></reservationSet>"
	s := serve(t, map[string][]answer{
		op:           {ok(op, one), ok(op, "<reservationSet/>"), ok(op, one)},
		describeENIs: {ok(describeENIs, "<networkInterfaceSet>"+fullENI+"</networkInterfaceSet>")},
	})
	c := client(t, s)
	got, err := c.Instance(t.Context(), "i-1")
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != "i-1" || got.Type != "m5.large" || got.State != "running" || got.Zone != "z" || got.Primary.String() != "10.0.0.10" ||
		len(got.ENIs) != 1 || got.ENIs[0].Tags["Name"] != "x" {
		t.Errorf("got %+v", got)
	}
	if f := s.sent(describeENIs)[0]; f.Get("Filter.1.Name") != "attachment.instance-id" || f.Get("Filter.1.Value.1") != "i-1" {
		t.Errorf("interfaces asked for by %v", f)
	}
	if _, err := c.Instance(t.Context(), "i-9"); cloud.ClassOf(err) != cloud.Gone {
		t.Errorf("got %v, want class gone", err)
	}
	if _, err := c.Instance(t.Context(), "i-9"); cloud.ClassOf(err) != cloud.Transient {
		t.Errorf("an answer with another instance: %v, want class transient", err)
	}
}

func TestInstances(t *testing.T) {
	const op = "DescribeInstances"
	terminated := "<item><instanceId>i-2</instanceId><instanceState><name>terminated</name></instanceState></item>"
	list := "<reservationSet><item><instancesSet>" + fmt.Sprintf(instance, "i-1") + "</instancesSet></item><item><instancesSet>" + terminated + "</instancesSet></item></reservationSet>"
	s := serve(t, map[string][]answer{
		op:           {ok(op, list)},
		describeENIs: {ok(describeENIs, "<networkInterfaceSet>"+fullENI+"</networkInterfaceSet>")},
	})
	c := client(t, s)
	got, err := c.Instances(t.Context(), []string{"i-1", "i-2", "i-3"})
	if err != nil || len(got) != 2 || got[0].ID != "i-1" || got[1].State != "terminated" || len(s.sent(describeENIs)) != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := c.Instances(t.Context(), nil); err != nil || len(got) != 0 || len(s.sent(op)) != 1 {
		t.Errorf("for no IDs: %v, %v after %d requests; want nothing, asked nobody", got, err, len(s.sent(op)))
	}
}
