package aws

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/test/harness/check"
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

const instance = `<item><instanceId>%[1]s</instanceId><instanceType>m5.large</instanceType><instanceState><name>running</name></instanceState>
<placement><availabilityZone>z</availabilityZone></placement><privateIpAddress>10.0.0.10</privateIpAddress><subnetId>subnet-1</subnetId><vpcId>vpc-1</vpcId></item>`

// TestListings holds what is made of the elements of a listing, on all its pages,
// and what the last page was asked for by.
func TestListings(t *testing.T) {
	associated := "<associationState><state>associated</state></associationState>"
	for _, tt := range []struct {
		name, action string
		pages        []string
		call         call
		want         any
		asked        string // name=value pairs
	}{
		{
			"ENIs", describeENIs, []string{"<networkInterfaceSet>" + fullENI + `<item><networkInterfaceId>eni-0b</networkInterfaceId><status>available</status>
<tagSet><item><key>berth.dev/created-at</key><value>yesterday</value></item></tagSet></item>` + branch("eni-0c", "x") + "</networkInterfaceSet>"},
			listing(cloud.ENIFilter{}),
			[]cloud.ENI{{
				ID: "eni-0a", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 10}, Type: cloud.InterfaceOrdinary, Status: "in-use",
				Description: "made by Berth", VPCID: "vpc-1", SubnetID: "subnet-1", Zone: "eu-west-1a", Groups: []string{"sg-1", "sg-2"},
				Tags:         map[string]string{"berth.dev/created-at": "2026-05-04T03:02:01Z", "Name": "x"},
				Primary:      netip.MustParseAddr("10.0.0.10"),
				Addresses:    []netip.Addr{netip.MustParseAddr("10.0.0.12"), netip.MustParseAddr("10.0.0.11")},
				Prefixes:     []netip.Prefix{netip.MustParsePrefix("10.0.0.32/28")},
				IPv6:         []netip.Addr{netip.MustParseAddr("2001:db8::5")},
				IPv6Prefixes: []netip.Prefix{netip.MustParsePrefix("2001:db8:0:0:1::/80")},
				Attachment:   &cloud.Attachment{ID: "eni-attach-1", InstanceID: "i-1", DeviceIndex: 1, Status: "attached", DeleteOnTermination: true},
			}, {
				ID: "eni-0b", Status: "available", Tags: map[string]string{"berth.dev/created-at": "yesterday"},
			}, {
				ID: "eni-0c", Status: "in-use", Type: cloud.InterfaceBranch, VPCID: "vpc-1", Tags: map[string]string{"nic": "x"},
			}}, "MaxResults=1000",
		},
		{
			"ENIs on three pages", describeENIs, []string{
				"<networkInterfaceSet><item><networkInterfaceId>eni-1</networkInterfaceId></item></networkInterfaceSet><nextToken>a</nextToken>",
				"<networkInterfaceSet><item><networkInterfaceId>eni-2</networkInterfaceId></item></networkInterfaceSet><nextToken>b</nextToken>",
				"<networkInterfaceSet><item><networkInterfaceId>eni-3</networkInterfaceId></item></networkInterfaceSet><nextToken/>",
			},
			listing(cloud.ENIFilter{VPCID: "vpc-1"}),
			[]cloud.ENI{{ID: "eni-1"}, {ID: "eni-2"}, {ID: "eni-3"}}, "Filter.1.Value.1=vpc-1 NextToken=b MaxResults=1000",
		},
		{
			"security groups, in order", "DescribeSecurityGroups", []string{
				"<securityGroupInfo><item><groupId>sg-2</groupId></item></securityGroupInfo><nextToken>a</nextToken>",
				"<securityGroupInfo><item><groupId>sg-1</groupId></item></securityGroupInfo>",
			},
			listingGroups(map[string]string{"for": "pods"}),
			[]string{"sg-1", "sg-2"}, "Filter.1.Value.1=vpc-1 Filter.2.Name=tag:for NextToken=a",
		},
		{
			"route tables", "DescribeRouteTables", []string{
				routeTables(routeTable("rtb-1", "", "<item><main>true</main>"+associated+"</item>")) + "<nextToken>a</nextToken>",
				routeTables(routeTable("rtb-2", "", "<item><main>false</main><subnetId>subnet-1</subnetId>"+associated+"</item>",
					"<item><subnetId>subnet-2</subnetId><associationState><state>disassociated</state></associationState></item>",
					"<item><gatewayId>igw-1</gatewayId>"+associated+"</item>")),
			},
			listingRoutes,
			[]cloud.RouteTable{{ID: "rtb-1", Main: true}, {ID: "rtb-2", Subnets: []string{"subnet-1"}}},
			"Filter.1.Name=vpc-id Filter.1.Value.1=vpc-1 NextToken=a",
		},
		{
			"subnets", "DescribeSubnets", []string{`<subnetSet><item><subnetId>subnet-1</subnetId><vpcId>vpc-1</vpcId><cidrBlock>10.0.1.0/24</cidrBlock>
<ipv6CidrBlockAssociationSet><item><ipv6CidrBlock>2001:db8::/64</ipv6CidrBlock><ipv6CidrBlockState><state>associated</state></ipv6CidrBlockState></item>
<item><ipv6CidrBlock>2001:db8:1::/64</ipv6CidrBlock><ipv6CidrBlockState><state>disassociated</state></ipv6CidrBlockState></item></ipv6CidrBlockAssociationSet>
<availableIpAddressCount>251</availableIpAddressCount><availabilityZone>z</availabilityZone></item></subnetSet>`},
			listingSubnets(cloud.SubnetFilter{IDs: []string{"subnet-1"}, VPCID: "vpc-1", Zone: "z"}),
			[]cloud.Subnet{{
				ID: "subnet-1", VPCID: "vpc-1", Zone: "z", CIDR: netip.MustParsePrefix("10.0.1.0/24"),
				IPv6: []netip.Prefix{netip.MustParsePrefix("2001:db8::/64")}, Free: 251,
			}}, "Filter.2.Value.1=z Filter.3.Name=subnet-id Filter.3.Value.1=subnet-1",
		},
		{
			"instances, one of which EC2 does not know", "DescribeInstances", []string{
				"<reservationSet><item><instancesSet>" + fmt.Sprintf(instance, "i-1") + "</instancesSet></item><item><instancesSet>" +
					"<item><instanceId>i-2</instanceId><instanceState><name>terminated</name></instanceState></item></instancesSet></item></reservationSet>",
			},
			listingInstances("i-1", "i-2", "i-3"),
			[]cloud.Instance{
				{ID: "i-1", Type: "m5.large", State: "running", Zone: "z", VPCID: "vpc-1", SubnetID: "subnet-1", Primary: netip.MustParseAddr("10.0.0.10")},
				{ID: "i-2", State: "terminated"},
			}, "Filter.1.Name=instance-id Filter.1.Value.3=i-3",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var script []answer
			for _, p := range tt.pages {
				script = append(script, ok(tt.action, p))
			}
			s := serve(t, map[string][]answer{tt.action: script})
			got, err := tt.call(t.Context(), client(t, s))
			if d := cmp.Diff(tt.want, got, sameValues); d != "" || err != nil {
				t.Errorf("%v %s", err, d)
			}
			if len(s.calls) != len(tt.pages) {
				t.Fatalf("%d requests for %d pages", len(s.calls), len(tt.pages))
			}
			for _, pair := range strings.Fields(tt.asked) {
				name, value, _ := strings.Cut(pair, "=")
				check.Equal(t, s.calls[len(s.calls)-1].Get(name), value, "asked for %s", pair)
			}
		})
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

// A request has 200 values at most, of all filters together.
func TestENIFilters(t *testing.T) {
	var ids, names []string
	for i := range 450 {
		ids, names = append(ids, fmt.Sprintf("eni-%d", i)), append(names, fmt.Sprintf("name-%d*", i))
	}
	for name, tt := range map[string]struct {
		f    cloud.ENIFilter
		sent int
		last map[string]string // parameters of the last request
	}{
		"IDs": {
			cloud.ENIFilter{IDs: ids, InstanceID: "i-1", Status: "available", Tags: map[string]string{"b": `a*b?c\d`, "a": "1"}}, 3,
			map[string]string{
				"Filter.1.Name": "attachment.instance-id", "Filter.1.Value.1": "i-1",
				"Filter.2.Name": "status", "Filter.2.Value.1": "available",
				"Filter.3.Name": "tag:a", "Filter.3.Value.1": "1",
				"Filter.4.Name": "tag:b", "Filter.4.Value.1": `a\*b\?c\\d`,
				"Filter.5.Name": "network-interface-id", "Filter.5.Value.58": "eni-449", "Filter.5.Value.59": "", // 196, 196 and 58
			},
		},
		"types and one of many values": {
			cloud.ENIFilter{VPCID: "vpc-1", Types: []cloud.InterfaceType{cloud.InterfaceTrunk, cloud.InterfaceBranch}, Tagged: map[string][]string{"nic": names}}, 3,
			map[string]string{
				"Filter.1.Name": "vpc-id", "Filter.1.Value.1": "vpc-1",
				"Filter.2.Name": "interface-type", "Filter.2.Value.1": "trunk", "Filter.2.Value.2": "branch",
				"Filter.3.Name": "tag:nic", "Filter.3.Value.56": `name-449\*`, "Filter.3.Value.57": "", "Filter.4.Name": "", // 197, 197 and 56
			},
		},
		"few of two kinds": {
			cloud.ENIFilter{IDs: ids[:50], Tagged: map[string][]string{"nic": names[:150], "of": nil}}, 1,
			map[string]string{
				"Filter.1.Name": "tag:nic", "Filter.1.Value.150": `name-149\*`,
				"Filter.2.Name": "network-interface-id", "Filter.2.Value.50": "eni-49", "Filter.3.Name": "",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, map[string][]answer{describeENIs: {ok(describeENIs, noENIs)}})
			if _, err := client(t, s).ENIs(t.Context(), tt.f); err != nil {
				t.Fatal(err)
			}
			sent := s.sent(describeENIs)
			if len(sent) != tt.sent {
				t.Fatalf("%d requests, want %d", len(sent), tt.sent)
			}
			for key, want := range tt.last {
				check.Equal(t, sent[len(sent)-1].Get(key), want, "%s is", key)
			}
			for _, r := range sent {
				n := 0
				for key := range r {
					if strings.Contains(key, ".Value.") {
						n++
					}
				}
				check.AtMost(t, n, 200, "values in a request")
			}
		})
	}
}

const describeTypes = "DescribeInstanceTypes"

func typeElement(name, head, network string) string {
	return "<instanceTypeSet><item><instanceType>" + name + "</instanceType>" + head + "<networkInfo>" + network + "</networkInfo></item></instanceTypeSet>"
}

func typeInfo(name, head, network string) answer {
	return ok(describeTypes, typeElement(name, head, network))
}

func TestLimits(t *testing.T) {
	network := `<maximumNetworkInterfaces>4</maximumNetworkInterfaces><ipv4AddressesPerInterface>15</ipv4AddressesPerInterface>
<ipv6AddressesPerInterface>15</ipv6AddressesPerInterface><ipv6Supported>true</ipv6Supported>`
	cards := `<maximumNetworkInterfaces>60</maximumNetworkInterfaces><ipv4AddressesPerInterface>50</ipv4AddressesPerInterface><ipv6Supported>false</ipv6Supported>
<networkCards><item><networkCardIndex>1</networkCardIndex><maximumNetworkInterfaces>14</maximumNetworkInterfaces></item>
<item><networkCardIndex>0</networkCardIndex><maximumNetworkInterfaces>15</maximumNetworkInterfaces></item></networkCards>`
	for _, tt := range []struct {
		name, head, network string
		want                cloud.Limits
	}{
		{"nitro", "<hypervisor>nitro</hypervisor>", network, cloud.Limits{MaxENIs: 4, IPv4PerENI: 15, IPv6PerENI: 15, Prefixes: true}},
		{"xen", "<hypervisor>xen</hypervisor>", network, cloud.Limits{MaxENIs: 4, IPv4PerENI: 15, IPv6PerENI: 15}},
		{"metal", "<bareMetal>true</bareMetal>", network, cloud.Limits{MaxENIs: 4, IPv4PerENI: 15, IPv6PerENI: 15, Prefixes: true}},
		{"several cards", "<hypervisor>nitro</hypervisor>", cards, cloud.Limits{MaxENIs: 15, IPv4PerENI: 50, Prefixes: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, map[string][]answer{describeTypes: {typeInfo("x.large", tt.head, tt.network)}})
			c := client(t, s)
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					if got, err := c.Limits(t.Context(), "x.large"); err != nil || got != tt.want {
						t.Errorf("got %+v, %v; want %+v", got, err, tt.want)
					}
				})
			}
			wg.Wait()
			check.Equal(t, len(s.calls), 1, "requests")
		})
	}
}

// TestLimitsFallback: the table answers while EC2 cannot be asked, and EC2 is
// asked again later; a type that EC2 does not know is an error.
func TestLimitsFallback(t *testing.T) {
	s := serve(t, map[string][]answer{describeTypes: {
		refusal(403, "UnauthorizedOperation", "no"),
		typeInfo("m5.large", "<hypervisor>nitro</hypervisor>", "<maximumNetworkInterfaces>7</maximumNetworkInterfaces><ipv4AddressesPerInterface>8</ipv4AddressesPerInterface>"),
	}})
	clk := newHasty()
	c := client(t, s, func(o *setup) { o.Pace.Clock = clk })
	for range 2 {
		got, err := c.Limits(t.Context(), "m5.large")
		if want := (cloud.Limits{MaxENIs: 3, IPv4PerENI: 10, IPv6PerENI: 10, Prefixes: true}); err != nil || got != want {
			t.Fatalf("got %+v, %v; want the table's %+v", got, err, want)
		}
	}
	check.Equal(t, len(s.calls), 1, "requests within the time of the fallback")
	clk.advance(10 * time.Minute)
	if got, err := c.Limits(t.Context(), "m5.large"); err != nil || got.MaxENIs != 7 {
		t.Errorf("after the time of the fallback: %+v, %v", got, err)
	}

	unlisted := client(t, serve(t, map[string][]answer{describeTypes: {ok(describeTypes, "<instanceTypeSet/>")}}))
	if got, err := unlisted.Limits(t.Context(), "m5.large"); err != nil || got.MaxENIs != 3 {
		t.Errorf("a type that EC2 does not list and the table knows: %+v, %v", got, err)
	}

	for name, a := range map[string]answer{
		"type unknown to EC2":       ok(describeTypes, "<instanceTypeSet/>"),
		"type unknown to the table": refusal(403, "UnauthorizedOperation", "no"),
	} {
		c := client(t, serve(t, map[string][]answer{describeTypes: {a}}))
		got, err := c.Limits(t.Context(), "no.such")
		if err == nil || cloud.ClassOf(err) == cloud.Unknown || name == "type unknown to EC2" && !strings.Contains(err.Error(), "does not exist in this region") ||
			!strings.Contains(err.Error(), `"no.such" either: allow ec2:DescribeInstanceTypes`) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}
