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
	addrs := []netip.Prefix{netip.MustParsePrefix("10.0.0.5/32"), netip.MustParsePrefix("10.0.0.6/32")}
	tests := []struct {
		action string
		answer string
		call   func(context.Context, cloud.API) (any, error)
		want   string // the parameters without Action, Version and generated ones
		out    string
	}{
		{
			"CreateNetworkInterface", "<networkInterface><networkInterfaceId>eni-1</networkInterfaceId></networkInterface>",
			func(ctx context.Context, c cloud.API) (any, error) {
				e, err := c.CreateENI(ctx, cloud.CreateENI{
					SubnetID: "subnet-1", Groups: []string{"sg-1"}, Description: "d", ClientToken: "t",
					Tags: map[string]string{"b": "2", "a": "1"}, Amount: cloud.Amount{Addresses: 9},
				})
				return e.ID, err
			},
			"ClientToken=t Description=d SecondaryPrivateIpAddressCount=9 SecurityGroupId.1=sg-1 SubnetId=subnet-1 " +
				"TagSpecification.1.ResourceType=network-interface TagSpecification.1.Tag.1.Key=a TagSpecification.1.Tag.1.Value=1 " +
				"TagSpecification.1.Tag.2.Key=b TagSpecification.1.Tag.2.Value=2", "eni-1",
		},
		{
			"CreateNetworkInterface", "<networkInterface><networkInterfaceId>eni-1</networkInterfaceId></networkInterface>",
			func(ctx context.Context, c cloud.API) (any, error) {
				e, err := c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1", ClientToken: "t", Amount: cloud.Amount{Prefixes: 2}})
				return e.ID, err
			},
			"ClientToken=t Ipv4PrefixCount=2 SubnetId=subnet-1", "eni-1",
		},
		{
			"CreateNetworkInterface", "<networkInterface><networkInterfaceId>eni-1</networkInterfaceId></networkInterface>",
			func(ctx context.Context, c cloud.API) (any, error) {
				e, err := c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1", ClientToken: "t", Amount: cloud.Amount{Addresses: 3, IPv6Prefixes: 1}})
				return e.ID, err
			},
			"ClientToken=t Ipv6PrefixCount=1 SecondaryPrivateIpAddressCount=3 SubnetId=subnet-1", "eni-1",
		},
		{
			"CreateNetworkInterface", "<networkInterface><networkInterfaceId>eni-1</networkInterfaceId></networkInterface>",
			func(ctx context.Context, c cloud.API) (any, error) {
				e, err := c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1", ClientToken: "t", Amount: cloud.Amount{Prefixes: 2, IPv6: 4}})
				return e.ID, err
			},
			"ClientToken=t Ipv4PrefixCount=2 Ipv6AddressCount=4 SubnetId=subnet-1", "eni-1",
		},
		{
			"CreateNetworkInterface", items("networkInterface", "<networkInterfaceId>eni-1</networkInterfaceId><interfaceType>trunk</interfaceType>"),
			func(ctx context.Context, c cloud.API) (any, error) {
				e, err := c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1", ClientToken: "t", Type: cloud.InterfaceTrunk})
				return e.Type, err
			},
			"ClientToken=t InterfaceType=trunk SubnetId=subnet-1", "trunk",
		},
		{
			"CreateNetworkInterface", items("networkInterface", "<networkInterfaceId>eni-1</networkInterfaceId><privateIpAddress>10.0.0.9</privateIpAddress>"),
			func(ctx context.Context, c cloud.API) (any, error) {
				e, err := c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1", ClientToken: "t", Type: cloud.InterfaceOrdinary, Primary: netip.MustParseAddr("10.0.0.9")})
				return e.Primary, err
			},
			"ClientToken=t PrivateIpAddress=10.0.0.9 SubnetId=subnet-1", "10.0.0.9",
		},
		{
			"CreateNetworkInterface", items("networkInterface", "<networkInterfaceId>eni-1</networkInterfaceId><ipv6AddressesSet><item><ipv6Address>2001:db8::9</ipv6Address></item></ipv6AddressesSet>"),
			func(ctx context.Context, c cloud.API) (any, error) {
				e, err := c.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1", ClientToken: "t", IPv6Address: netip.MustParseAddr("2001:db8::9")})
				return e.IPv6[0], err
			},
			"ClientToken=t Ipv6Addresses.1.Ipv6Address=2001:db8::9 SubnetId=subnet-1", "2001:db8::9",
		},
		{
			associate, associated("trunk-assoc-1", "eni-1", "eni-2", "7"),
			func(ctx context.Context, c cloud.API) (any, error) {
				return c.AssociateBranch(ctx, cloud.Association{TrunkID: "eni-1", BranchID: "eni-2", VLAN: 7}, "t")
			},
			"BranchInterfaceId=eni-2 ClientToken=t TrunkInterfaceId=eni-1 VlanId=7", "{trunk-assoc-1 eni-1 eni-2 7}",
		},
		{
			disassociate, "<return>true</return>",
			func(ctx context.Context, c cloud.API) (any, error) {
				return nil, c.DisassociateBranch(ctx, "trunk-assoc-1")
			},
			"AssociationId=trunk-assoc-1", "<nil>",
		},
		{
			"ModifyNetworkInterfaceAttribute", "<return>true</return>",
			func(ctx context.Context, c cloud.API) (any, error) {
				return nil, c.SetGroups(ctx, "eni-1", []string{"sg-2", "sg-1"})
			},
			"NetworkInterfaceId=eni-1 SecurityGroupId.1=sg-2 SecurityGroupId.2=sg-1", "<nil>",
		},
		{
			attach, "<attachmentId>eni-attach-1</attachmentId>",
			func(ctx context.Context, c cloud.API) (any, error) { return c.AttachENI(ctx, "eni-1", "i-1", 2) },
			"DeviceIndex=2 InstanceId=i-1 NetworkCardIndex=0 NetworkInterfaceId=eni-1", "eni-attach-1",
		},
		{
			"DetachNetworkInterface", "<return>true</return>",
			func(ctx context.Context, c cloud.API) (any, error) { return nil, c.DetachENI(ctx, "eni-attach-1") },
			"AttachmentId=eni-attach-1", "<nil>",
		},
		{
			"DeleteNetworkInterface", "<return>true</return>",
			func(ctx context.Context, c cloud.API) (any, error) { return nil, c.DeleteENI(ctx, "eni-1") },
			"NetworkInterfaceId=eni-1", "<nil>",
		},
		{
			"ModifyNetworkInterfaceAttribute", "<return>true</return>",
			func(ctx context.Context, c cloud.API) (any, error) {
				return nil, c.SetDeleteOnTermination(ctx, "eni-1", "eni-attach-1", true)
			},
			"Attachment.AttachmentId=eni-attach-1 Attachment.DeleteOnTermination=true NetworkInterfaceId=eni-1", "<nil>",
		},
		{
			pace.Assign.Action, "<assignedPrivateIpAddressesSet><item><privateIpAddress>10.0.0.9</privateIpAddress></item><item><privateIpAddress>10.0.0.8</privateIpAddress></item></assignedPrivateIpAddressesSet>",
			func(ctx context.Context, c cloud.API) (any, error) {
				return c.AssignAddresses(ctx, "eni-1", cloud.Amount{Addresses: 2})
			},
			"NetworkInterfaceId=eni-1 SecondaryPrivateIpAddressCount=2", "[10.0.0.9/32 10.0.0.8/32]",
		},
		{
			pace.Assign.Action, "<assignedIpv4PrefixSet><item><ipv4Prefix>10.0.0.16/28</ipv4Prefix></item></assignedIpv4PrefixSet>",
			func(ctx context.Context, c cloud.API) (any, error) {
				return c.AssignAddresses(ctx, "eni-1", cloud.Amount{Prefixes: 1})
			},
			"Ipv4PrefixCount=1 NetworkInterfaceId=eni-1", "[10.0.0.16/28]",
		},
		{
			"UnassignPrivateIpAddresses", "<return>true</return>",
			func(ctx context.Context, c cloud.API) (any, error) {
				return nil, c.UnassignAddresses(ctx, "eni-1", addrs)
			},
			"NetworkInterfaceId=eni-1 PrivateIpAddress.1=10.0.0.5 PrivateIpAddress.2=10.0.0.6", "<nil>",
		},
		{
			"UnassignPrivateIpAddresses", "<return>true</return>",
			func(ctx context.Context, c cloud.API) (any, error) {
				return nil, c.UnassignAddresses(ctx, "eni-1", []netip.Prefix{netip.MustParsePrefix("10.0.0.16/28")})
			},
			"Ipv4Prefix.1=10.0.0.16/28 NetworkInterfaceId=eni-1", "<nil>",
		},
		{
			"AssignIpv6Addresses", items("assignedIpv6Addresses", "<item>2001:db8::5</item>", "<item>2001:db8::6</item>"),
			func(ctx context.Context, c cloud.API) (any, error) {
				return c.AssignAddresses(ctx, "eni-1", cloud.Amount{IPv6: 2})
			},
			"Ipv6AddressCount=2 NetworkInterfaceId=eni-1", "[2001:db8::5/128 2001:db8::6/128]",
		},
		{
			"AssignIpv6Addresses", items("assignedIpv6PrefixSet", "<item>2001:db8::1:0:0:0/80</item>"),
			func(ctx context.Context, c cloud.API) (any, error) {
				return c.AssignAddresses(ctx, "eni-1", cloud.Amount{IPv6Prefixes: 1})
			},
			"Ipv6PrefixCount=1 NetworkInterfaceId=eni-1", "[2001:db8:0:0:1::/80]",
		},
		{
			"UnassignIpv6Addresses", "<networkInterfaceId>eni-1</networkInterfaceId>",
			func(ctx context.Context, c cloud.API) (any, error) {
				return nil, c.UnassignAddresses(ctx, "eni-1", []netip.Prefix{netip.MustParsePrefix("2001:db8::5/128"), netip.MustParsePrefix("2001:db8::6/128")})
			},
			"Ipv6Addresses.1=2001:db8::5 Ipv6Addresses.2=2001:db8::6 NetworkInterfaceId=eni-1", "<nil>",
		},
		{
			"UnassignIpv6Addresses", "<networkInterfaceId>eni-1</networkInterfaceId>",
			func(ctx context.Context, c cloud.API) (any, error) {
				return nil, c.UnassignAddresses(ctx, "eni-1", []netip.Prefix{netip.MustParsePrefix("2001:db8:0:0:1::/80")})
			},
			"Ipv6Prefix.1=2001:db8:0:0:1::/80 NetworkInterfaceId=eni-1", "<nil>",
		},
		{
			"CreateTags", "<return>true</return>",
			func(ctx context.Context, c cloud.API) (any, error) {
				return nil, c.Tag(ctx, "eni-1", map[string]string{"k": "v"})
			},
			"ResourceId.1=eni-1 Tag.1.Key=k Tag.1.Value=v", "<nil>",
		},
	}
	for _, tt := range tests {
		t.Run(tt.action, func(t *testing.T) {
			s := serve(t, map[string][]answer{tt.action: {ok(tt.action, tt.answer)}})
			out, err := tt.call(t.Context(), client(t, s))
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

// TestNonsense: requests that make no sense are refused before they are sent,
// and those for nothing need no call.
func TestNonsense(t *testing.T) {
	s := serve(t, nil)
	c := client(t, s)
	ctx := t.Context()
	bugs := map[string]func() error{
		"no addresses":  func() error { _, err := c.AssignAddresses(ctx, "eni-1", cloud.Amount{Addresses: 0}); return err },
		"fewer than no": func() error { _, err := c.AssignAddresses(ctx, "eni-1", cloud.Amount{Prefixes: -1}); return err },
		"too many": func() error {
			_, err := c.AssignAddresses(ctx, "eni-1", cloud.Amount{Addresses: 1<<33 + 1})
			return err
		},
		"both kinds": func() error {
			_, err := c.CreateENI(ctx, cloud.CreateENI{SubnetID: "s", Amount: cloud.Amount{Addresses: 1, Prefixes: 1}})
			return err
		},
		"both families": func() error {
			_, err := c.AssignAddresses(ctx, "eni-1", cloud.Amount{Addresses: 1, IPv6: 1})
			return err
		},
		"both kinds of IPv6": func() error {
			_, err := c.CreateENI(ctx, cloud.CreateENI{SubnetID: "s", Amount: cloud.Amount{Addresses: 1, IPv6: 1, IPv6Prefixes: 1}})
			return err
		},
		"fewer than no IPv6": func() error { _, err := c.AssignAddresses(ctx, "eni-1", cloud.Amount{IPv6: -1}); return err },
		"too many IPv6 prefixes": func() error {
			_, err := c.AssignAddresses(ctx, "eni-1", cloud.Amount{IPv6Prefixes: 1001})
			return err
		},
		"unassign both families": func() error {
			return c.UnassignAddresses(ctx, "eni-1", []netip.Prefix{netip.MustParsePrefix("10.0.0.5/32"), netip.MustParsePrefix("2001:db8::5/128")})
		},
		"unassign both kinds of IPv6": func() error {
			return c.UnassignAddresses(ctx, "eni-1", []netip.Prefix{netip.MustParsePrefix("2001:db8:0:0:1::/80"), netip.MustParsePrefix("2001:db8::5/128")})
		},
		"unassign both kinds": func() error {
			return c.UnassignAddresses(ctx, "eni-1", []netip.Prefix{netip.MustParsePrefix("10.0.0.5/32"), netip.MustParsePrefix("10.0.0.16/28")})
		},
		"a branch from the beginning": func() error {
			_, err := c.CreateENI(ctx, cloud.CreateENI{SubnetID: "s", Type: cloud.InterfaceBranch})
			return err
		},
		"a primary IPv6 address": func() error {
			_, err := c.CreateENI(ctx, cloud.CreateENI{SubnetID: "s", Primary: netip.MustParseAddr("2001:db8::5")})
			return err
		},
		"an IPv6 address of IPv4": func() error {
			_, err := c.CreateENI(ctx, cloud.CreateENI{SubnetID: "s", IPv6Address: netip.MustParseAddr("10.0.0.5")})
			return err
		},
		"an IPv6 address and a number": func() error {
			_, err := c.CreateENI(ctx, cloud.CreateENI{SubnetID: "s", IPv6Address: netip.MustParseAddr("2001:db8::5"), Amount: cloud.Amount{IPv6: 1}})
			return err
		},
		"VLAN 0": func() error {
			_, err := c.AssociateBranch(ctx, cloud.Association{TrunkID: "eni-1", BranchID: "eni-2"}, "t")
			return err
		},
		"VLAN 4095": func() error {
			_, err := c.AssociateBranch(ctx, cloud.Association{TrunkID: "eni-1", BranchID: "eni-2", VLAN: 4095}, "t")
			return err
		},
		"no groups": func() error { return c.SetGroups(ctx, "eni-1", nil) },
		"negative": func() error {
			_, err := c.CreateENI(ctx, cloud.CreateENI{SubnetID: "s", Amount: cloud.Amount{Prefixes: -1}})
			return err
		},
	}
	for name, call := range bugs {
		if err := call(); cloud.ClassOf(err) != cloud.Bug {
			t.Errorf("%s: got %v, want class bug", name, err)
		}
	}
	nothing := map[string]func() error{
		"no instances":     func() error { _, err := c.Instances(ctx, nil); return err },
		"unassign nothing": func() error { return c.UnassignAddresses(ctx, "eni-1", nil) },
		"no tags":          func() error { return c.Tag(ctx, "eni-1", nil) },
	}
	for name, call := range nothing {
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(s.calls) != 0 {
		t.Errorf("sent %v", s.calls)
	}
}
