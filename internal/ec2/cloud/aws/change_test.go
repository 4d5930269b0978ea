package aws

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

// TestRequests holds the parameters of every changing call.
func TestRequests(t *testing.T) {
	const eni1 = "<networkInterfaceId>eni-1</networkInterfaceId>"
	of := func(q cloud.CreateENI) call {
		q.SubnetID, q.ClientToken = "subnet-1", "t"
		return creating(q)
	}
	for _, tt := range []struct {
		action, answer string
		call           call
		want           string // the parameters without Action, Version and generated ones
		out            string
	}{
		{create, items("networkInterface", eni1), of(cloud.CreateENI{
			Groups: []string{"sg-1"}, Description: "d", Tags: map[string]string{"b": "2", "a": "1"}, Amount: cloud.Amount{Addresses: 9},
		}), "ClientToken=t Description=d SecondaryPrivateIpAddressCount=9 SecurityGroupId.1=sg-1 SubnetId=subnet-1 " +
			"TagSpecification.1.ResourceType=network-interface TagSpecification.1.Tag.1.Key=a TagSpecification.1.Tag.1.Value=1 " +
			"TagSpecification.1.Tag.2.Key=b TagSpecification.1.Tag.2.Value=2", "eni-1"},
		{create, items("networkInterface", eni1), of(cloud.CreateENI{Amount: cloud.Amount{Prefixes: 2}}), "ClientToken=t Ipv4PrefixCount=2 SubnetId=subnet-1", "eni-1"},
		{create, items("networkInterface", eni1), of(cloud.CreateENI{Amount: cloud.Amount{Addresses: 3, IPv6Prefixes: 1}}),
			"ClientToken=t Ipv6PrefixCount=1 SecondaryPrivateIpAddressCount=3 SubnetId=subnet-1", "eni-1"},
		{create, items("networkInterface", eni1), of(cloud.CreateENI{Amount: cloud.Amount{Prefixes: 2, IPv6: 4}}),
			"ClientToken=t Ipv4PrefixCount=2 Ipv6AddressCount=4 SubnetId=subnet-1", "eni-1"},
		{create, items("networkInterface", eni1+"<interfaceType>trunk</interfaceType>"), of(cloud.CreateENI{Type: cloud.InterfaceTrunk}),
			"ClientToken=t InterfaceType=trunk SubnetId=subnet-1", "eni-1"},
		{create, items("networkInterface", eni1+"<privateIpAddress>10.0.0.9</privateIpAddress>"),
			of(cloud.CreateENI{Type: cloud.InterfaceOrdinary, Primary: netip.MustParseAddr("10.0.0.9")}), "ClientToken=t PrivateIpAddress=10.0.0.9 SubnetId=subnet-1", "eni-1"},
		{create, items("networkInterface", eni1+"<ipv6AddressesSet><item><ipv6Address>2001:db8::9</ipv6Address></item></ipv6AddressesSet>"),
			of(cloud.CreateENI{IPv6Address: netip.MustParseAddr("2001:db8::9")}), "ClientToken=t Ipv6Addresses.1.Ipv6Address=2001:db8::9 SubnetId=subnet-1", "eni-1"},
		{associate, associated("trunk-assoc-1", "eni-1", "eni-2", "7"), associating(7), "BranchInterfaceId=eni-2 ClientToken=t TrunkInterfaceId=eni-1 VlanId=7", "{trunk-assoc-1 eni-1 eni-2 7}"},
		{disassociate, "<return>true</return>", disassociating, "AssociationId=trunk-assoc-1", "<nil>"},
		{modify, "<return>true</return>", settingGroups("sg-2", "sg-1"), "NetworkInterfaceId=eni-1 SecurityGroupId.1=sg-2 SecurityGroupId.2=sg-1", "<nil>"},
		{modify, "<return>true</return>", func(ctx context.Context, c cloud.API) (any, error) {
			return nil, c.SetDeleteOnTermination(ctx, "eni-1", "eni-attach-1", true)
		}, "Attachment.AttachmentId=eni-attach-1 Attachment.DeleteOnTermination=true NetworkInterfaceId=eni-1", "<nil>"},
		{attach, "<attachmentId>eni-attach-1</attachmentId>", attaching, "DeviceIndex=2 InstanceId=i-1 NetworkCardIndex=0 NetworkInterfaceId=eni-1", "eni-attach-1"},
		{"DetachNetworkInterface", "<return>true</return>", detaching, "AttachmentId=eni-attach-1", "<nil>"},
		{"DeleteNetworkInterface", "<return>true</return>", deleting, "NetworkInterfaceId=eni-1", "<nil>"},
		{pace.Assign.Action, assignedSet("10.0.0.9", "10.0.0.8"), assigning(cloud.Amount{Addresses: 2}), "NetworkInterfaceId=eni-1 SecondaryPrivateIpAddressCount=2", "[10.0.0.9/32 10.0.0.8/32]"},
		{pace.Assign.Action, onePrefix, assigning(cloud.Amount{Prefixes: 1}), "Ipv4PrefixCount=1 NetworkInterfaceId=eni-1", "[10.0.0.16/28]"},
		{pace.Unassign.Action, "<return>true</return>", unassigning("10.0.0.5/32", "10.0.0.6/32"), "NetworkInterfaceId=eni-1 PrivateIpAddress.1=10.0.0.5 PrivateIpAddress.2=10.0.0.6", "<nil>"},
		{pace.Unassign.Action, "<return>true</return>", unassigning("10.0.0.16/28"), "Ipv4Prefix.1=10.0.0.16/28 NetworkInterfaceId=eni-1", "<nil>"},
		{pace.AssignIPv6.Action, assignedIPv6("2001:db8::5", "2001:db8::6"), assigning(cloud.Amount{IPv6: 2}), "Ipv6AddressCount=2 NetworkInterfaceId=eni-1", "[2001:db8::5/128 2001:db8::6/128]"},
		{pace.AssignIPv6.Action, assignedIPv6Prefixes("2001:db8::1:0:0:0/80"), assigning(cloud.Amount{IPv6Prefixes: 1}), "Ipv6PrefixCount=1 NetworkInterfaceId=eni-1", "[2001:db8:0:0:1::/80]"},
		{pace.UnassignIPv6.Action, eni1, unassigning("2001:db8::5/128", "2001:db8::6/128"), "Ipv6Addresses.1=2001:db8::5 Ipv6Addresses.2=2001:db8::6 NetworkInterfaceId=eni-1", "<nil>"},
		{pace.UnassignIPv6.Action, eni1, unassigning("2001:db8:0:0:1::/80"), "Ipv6Prefix.1=2001:db8:0:0:1::/80 NetworkInterfaceId=eni-1", "<nil>"},
		{"CreateTags", "<return>true</return>", tagging(map[string]string{"k": "v"}), "ResourceId.1=eni-1 Tag.1.Key=k Tag.1.Value=v", "<nil>"},
	} {
		t.Run(tt.action, func(t *testing.T) {
			s := serve(t, map[string][]answer{tt.action: {ok(tt.action, tt.answer)}})
			out, err := tt.call(t.Context(), client(t, s))
			if e, ok := out.(cloud.ENI); ok {
				out = e.ID
			}
			if err != nil || fmt.Sprint(out) != tt.out {
				t.Errorf("got %v, %v; want %s", out, err, tt.out)
			}
			if len(s.calls) != 1 {
				t.Fatalf("%d requests, want 1", len(s.calls))
			}
			form := s.calls[0]
			form.Del("Action")
			form.Del("Version")
			if tt.action == disassociate {
				form.Del("ClientToken") // which the SDK makes up
			}
			var got []string
			for _, pair := range strings.Split(form.Encode(), "&") {
				got = append(got, strings.NewReplacer("%3A", ":", "%2F", "/").Replace(pair))
			}
			if g := strings.Join(got, " "); g != tt.want {
				t.Errorf("sent\n%s\nwant\n%s", g, tt.want)
			}
		})
	}
}
