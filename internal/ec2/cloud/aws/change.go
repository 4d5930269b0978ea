package aws

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ipfamily"
)

// positive returns n as a parameter that is omitted for zero.
func positive(n int) *int32 {
	if n == 0 {
		return nil
	}
	return sdk.Int32(int32(n))
}

func tagList(tags map[string]string) []types.Tag {
	var out []types.Tag
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		out = append(out, types.Tag{Key: sdk.String(k), Value: sdk.String(tags[k])})
	}
	return out
}

// CreateENI implements pace.Calls.
func (c *Client) CreateENI(ctx context.Context, req cloud.CreateENI) (cloud.ENI, error) {
	in := &ec2.CreateNetworkInterfaceInput{
		SubnetId:                       &req.SubnetID,
		Groups:                         req.Groups,
		ClientToken:                    &req.ClientToken,
		SecondaryPrivateIpAddressCount: positive(req.Addresses),
		Ipv4PrefixCount:                positive(req.Prefixes),
		Ipv6AddressCount:               positive(req.IPv6),
		Ipv6PrefixCount:                positive(req.IPv6Prefixes),
	}
	if req.Description != "" {
		in.Description = &req.Description
	}
	if req.Type != cloud.InterfaceOrdinary { // the request omits the type for ordinary ENIs
		in.InterfaceType = types.NetworkInterfaceCreationType(req.Type)
	}
	if req.Primary.IsValid() {
		in.PrivateIpAddress = sdk.String(req.Primary.String())
	}
	if req.IPv6Address.IsValid() {
		in.Ipv6Addresses = []types.InstanceIpv6Address{{Ipv6Address: sdk.String(req.IPv6Address.String())}}
	}
	if len(req.Tags) > 0 {
		in.TagSpecifications = []types.TagSpecification{{
			ResourceType: types.ResourceTypeNetworkInterface, Tags: tagList(req.Tags),
		}}
	}
	return ask(ctx, c, pace.CreateENI, c.api.CreateNetworkInterface, in, func(r *reading, got *ec2.CreateNetworkInterfaceOutput) cloud.ENI {
		if got.NetworkInterface == nil {
			r.bad("networkInterface", "", "a value")
			return cloud.ENI{}
		}
		e := r.eni(got.NetworkInterface)
		r.created(req, e)
		return e
	})
}

// AttachENI implements pace.Calls.
func (c *Client) AttachENI(ctx context.Context, eniID, instanceID string, deviceIndex int) (string, error) {
	in := &ec2.AttachNetworkInterfaceInput{
		NetworkInterfaceId: &eniID,
		InstanceId:         &instanceID,
		DeviceIndex:        sdk.Int32(int32(deviceIndex)),
		// Without the card, EC2 treats device indexes in use on other cards as taken (cilium/cilium#42512).
		NetworkCardIndex: sdk.Int32(0),
	}
	return ask(ctx, c, pace.AttachENI, c.api.AttachNetworkInterface, in, func(r *reading, got *ec2.AttachNetworkInterfaceOutput) string {
		return r.text("attachmentId", got.AttachmentId)
	})
}

// DetachENI implements pace.Calls.
func (c *Client) DetachENI(ctx context.Context, attachmentID string) error {
	_, err := invoke(ctx, c, pace.DetachENI, c.api.DetachNetworkInterface,
		&ec2.DetachNetworkInterfaceInput{AttachmentId: &attachmentID})
	return err
}

// DeleteENI implements pace.Calls.
func (c *Client) DeleteENI(ctx context.Context, eniID string) error {
	_, err := invoke(ctx, c, pace.DeleteENI, c.api.DeleteNetworkInterface,
		&ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &eniID})
	return err
}

// SetDeleteOnTermination implements pace.Calls.
func (c *Client) SetDeleteOnTermination(ctx context.Context, eniID, attachmentID string, on bool) error {
	_, err := invoke(ctx, c, pace.ModifyENI, c.api.ModifyNetworkInterfaceAttribute,
		&ec2.ModifyNetworkInterfaceAttributeInput{
			NetworkInterfaceId: &eniID,
			Attachment:         &types.NetworkInterfaceAttachmentChanges{AttachmentId: &attachmentID, DeleteOnTermination: &on},
		})
	return err
}

// Tag implements pace.Calls.
func (c *Client) Tag(ctx context.Context, resourceID string, tags map[string]string) error {
	_, err := invoke(ctx, c, pace.Tag, c.api.CreateTags,
		&ec2.CreateTagsInput{Resources: []string{resourceID}, Tags: tagList(tags)})
	return err
}

// AssignAddresses implements pace.Calls.
func (c *Client) AssignAddresses(ctx context.Context, eniID string, n cloud.Amount) ([]netip.Prefix, error) {
	if n.Family() == ipfamily.IPv6 {
		return c.assignIPv6(ctx, eniID, n)
	}
	in := &ec2.AssignPrivateIpAddressesInput{
		NetworkInterfaceId:             &eniID,
		SecondaryPrivateIpAddressCount: positive(n.Addresses),
		Ipv4PrefixCount:                positive(n.Prefixes),
	}
	return ask(ctx, c, pace.Assign, c.api.AssignPrivateIpAddresses, in, func(r *reading, got *ec2.AssignPrivateIpAddressesOutput) (out []netip.Prefix) {
		for _, a := range got.AssignedPrivateIpAddresses {
			out = append(out, cloud.HostPrefix(r.addr(ipv4, "assignedPrivateIpAddressesSet", a.PrivateIpAddress)))
		}
		for _, p := range got.AssignedIpv4Prefixes {
			out = append(out, r.delegated(ipv4, "assignedIpv4PrefixSet", p.Ipv4Prefix))
		}
		r.assigned(eniID, n, got.NetworkInterfaceId, out)
		return out
	})
}

// assignIPv6 is AssignAddresses for IPv6, which is a separate EC2 action.
func (c *Client) assignIPv6(ctx context.Context, eniID string, n cloud.Amount) ([]netip.Prefix, error) {
	in := &ec2.AssignIpv6AddressesInput{
		NetworkInterfaceId: &eniID,
		Ipv6AddressCount:   positive(n.IPv6),
		Ipv6PrefixCount:    positive(n.IPv6Prefixes),
	}
	return ask(ctx, c, pace.AssignIPv6, c.api.AssignIpv6Addresses, in, func(r *reading, got *ec2.AssignIpv6AddressesOutput) (out []netip.Prefix) {
		for _, a := range got.AssignedIpv6Addresses {
			out = append(out, cloud.HostPrefix(r.addr(ipv6, "assignedIpv6Addresses", &a)))
		}
		for _, p := range got.AssignedIpv6Prefixes {
			out = append(out, r.delegated(ipv6, "assignedIpv6PrefixSet", &p))
		}
		r.assigned(eniID, n, got.NetworkInterfaceId, out)
		return out
	})
}

func texts[T fmt.Stringer](values []T) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = v.String()
	}
	return out
}

// UnassignAddresses implements pace.Calls.
func (c *Client) UnassignAddresses(ctx context.Context, eniID string, things []netip.Prefix) error {
	addrs, prefixes := cloud.Split(things)
	if cloud.AmountOf(things).Family() == ipfamily.IPv6 {
		_, err := invoke(ctx, c, pace.UnassignIPv6, c.api.UnassignIpv6Addresses, &ec2.UnassignIpv6AddressesInput{
			NetworkInterfaceId: &eniID, Ipv6Addresses: texts(addrs), Ipv6Prefixes: texts(prefixes),
		})
		return err
	}
	_, err := invoke(ctx, c, pace.Unassign, c.api.UnassignPrivateIpAddresses, &ec2.UnassignPrivateIpAddressesInput{
		NetworkInterfaceId: &eniID, PrivateIpAddresses: texts(addrs), Ipv4Prefixes: texts(prefixes),
	})
	return err
}
