package aws

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/pace"
)

// wrong is an error for a request that makes no sense; nothing was sent.
func wrong(op, format string, args ...any) error {
	return &cloud.Error{Class: cloud.Bug, Op: op, Message: fmt.Sprintf(format, args...)}
}

// positive returns n for a field of a request that leaves out zero.
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

// CreateENI implements cloud.API. Without a client token in the request it
// makes one up, so that its own repetitions create one ENI only. A token that
// was used for a different request is an error of class Bug.
func (c *Client) CreateENI(ctx context.Context, req cloud.CreateENI) (cloud.ENI, error) {
	op := pace.CreateENI
	for _, n := range []struct {
		field string
		value int
	}{{"addresses", req.Addresses}, {"prefixes", req.Prefixes}} {
		if n.value < 0 || n.value > 1000 {
			return cloud.ENI{}, wrong(op.Action, "%d %s asked for: expected 0 to 1000", n.value, n.field)
		}
	}
	if req.Addresses > 0 && req.Prefixes > 0 {
		return cloud.ENI{}, wrong(op.Action, "addresses and prefixes asked for: EC2 gives one kind in a call")
	}
	if req.ClientToken == "" {
		req.ClientToken = rand.Text()
	}
	in := &ec2.CreateNetworkInterfaceInput{
		SubnetId:                       &req.SubnetID,
		Groups:                         req.Groups,
		ClientToken:                    &req.ClientToken,
		SecondaryPrivateIpAddressCount: positive(req.Addresses),
		Ipv4PrefixCount:                positive(req.Prefixes),
	}
	if req.Description != "" {
		in.Description = &req.Description
	}
	if len(req.Tags) > 0 {
		in.TagSpecifications = []types.TagSpecification{{
			ResourceType: types.ResourceTypeNetworkInterface, Tags: tagList(req.Tags),
		}}
	}
	got, err := invoke(ctx, c, op, c.api.CreateNetworkInterface, in)
	if err != nil {
		return cloud.ENI{}, err
	}
	if got.NetworkInterface == nil {
		return cloud.ENI{}, fail(op.Action, &badAnswer{fmt.Errorf("networkInterface is missing")})
	}
	var r reading
	e := r.eni(got.NetworkInterface)
	if r.err != nil {
		return cloud.ENI{}, fail(op.Action, r.err)
	}
	return e, nil
}

// AttachENI implements cloud.API. A taken device index is an error of class
// Conflict, an instance without room one of class LimitReached.
func (c *Client) AttachENI(ctx context.Context, eniID, instanceID string, deviceIndex int) (string, error) {
	op := pace.AttachENI
	got, err := invoke(ctx, c, op, c.api.AttachNetworkInterface, &ec2.AttachNetworkInterfaceInput{
		NetworkInterfaceId: &eniID,
		InstanceId:         &instanceID,
		DeviceIndex:        sdk.Int32(int32(deviceIndex)),
		// Without it, EC2 counts device indexes of other cards as taken
		// (cilium/cilium#42512).
		NetworkCardIndex: sdk.Int32(0),
	})
	if err != nil {
		return "", err
	}
	var r reading
	id := r.text("attachmentId", got.AttachmentId)
	if r.err != nil {
		return "", fail(op.Action, r.err)
	}
	return id, nil
}

// DetachENI implements cloud.API.
func (c *Client) DetachENI(ctx context.Context, attachmentID string) error {
	_, err := invoke(ctx, c, pace.DetachENI, c.api.DetachNetworkInterface,
		&ec2.DetachNetworkInterfaceInput{AttachmentId: &attachmentID})
	return err
}

// DeleteENI implements cloud.API. An ENI that is still attached or detaching
// is an error of class Conflict.
func (c *Client) DeleteENI(ctx context.Context, eniID string) error {
	_, err := invoke(ctx, c, pace.DeleteENI, c.api.DeleteNetworkInterface,
		&ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &eniID})
	return err
}

// SetDeleteOnTermination implements cloud.API.
func (c *Client) SetDeleteOnTermination(ctx context.Context, eniID, attachmentID string, on bool) error {
	_, err := invoke(ctx, c, pace.ModifyENI, c.api.ModifyNetworkInterfaceAttribute,
		&ec2.ModifyNetworkInterfaceAttributeInput{
			NetworkInterfaceId: &eniID,
			Attachment:         &types.NetworkInterfaceAttachmentChanges{AttachmentId: &attachmentID, DeleteOnTermination: &on},
		})
	return err
}

// Tag implements cloud.API.
func (c *Client) Tag(ctx context.Context, resourceID string, tags map[string]string) error {
	if len(tags) == 0 {
		return nil
	}
	_, err := invoke(ctx, c, pace.Tag, c.api.CreateTags,
		&ec2.CreateTagsInput{Resources: []string{resourceID}, Tags: tagList(tags)})
	return err
}

// count refuses a number of addresses that EC2 would take for something else.
func count(op string, n int) error {
	if n < 1 || n > 1000 {
		return wrong(op, "%d addresses or prefixes asked for: expected 1 to 1000", n)
	}
	return nil
}

// AssignAddresses implements cloud.API.
func (c *Client) AssignAddresses(ctx context.Context, eniID string, n int) ([]netip.Addr, error) {
	got, err := c.assign(ctx, n, &ec2.AssignPrivateIpAddressesInput{
		NetworkInterfaceId: &eniID, SecondaryPrivateIpAddressCount: sdk.Int32(int32(n)),
	})
	if err != nil {
		return nil, err
	}
	var r reading
	var out []netip.Addr
	for _, a := range got.AssignedPrivateIpAddresses {
		out = append(out, r.ipv4("assignedPrivateIpAddressesSet", a.PrivateIpAddress))
	}
	return assigned(pace.Assign.Action, asked{eniID, n}, reply[netip.Addr]{got.NetworkInterfaceId, out, len(got.AssignedIpv4Prefixes)}, r.err)
}

// AssignPrefixes implements cloud.API.
func (c *Client) AssignPrefixes(ctx context.Context, eniID string, n int) ([]netip.Prefix, error) {
	got, err := c.assign(ctx, n, &ec2.AssignPrivateIpAddressesInput{
		NetworkInterfaceId: &eniID, Ipv4PrefixCount: sdk.Int32(int32(n)),
	})
	if err != nil {
		return nil, err
	}
	var r reading
	var out []netip.Prefix
	for _, p := range got.AssignedIpv4Prefixes {
		out = append(out, r.delegated("assignedIpv4PrefixSet", p.Ipv4Prefix))
	}
	return assigned(pace.Assign.Action, asked{eniID, n}, reply[netip.Prefix]{got.NetworkInterfaceId, out, len(got.AssignedPrivateIpAddresses)}, r.err)
}

func (c *Client) assign(ctx context.Context, n int, in *ec2.AssignPrivateIpAddressesInput) (*ec2.AssignPrivateIpAddressesOutput, error) {
	if err := count(pace.Assign.Action, n); err != nil {
		return nil, err
	}
	got, err := invoke(ctx, c, pace.Assign, c.api.AssignPrivateIpAddresses, in)
	return got, err
}

func texts[T fmt.Stringer](values []T) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = v.String()
	}
	return out
}

// UnassignAddresses implements cloud.API. An address that is not on the ENI is
// an error of class Gone, and none is taken off then.
func (c *Client) UnassignAddresses(ctx context.Context, eniID string, addrs []netip.Addr) error {
	if len(addrs) == 0 {
		return nil
	}
	return c.unassign(ctx, &ec2.UnassignPrivateIpAddressesInput{NetworkInterfaceId: &eniID, PrivateIpAddresses: texts(addrs)})
}

// UnassignPrefixes is UnassignAddresses for prefixes.
func (c *Client) UnassignPrefixes(ctx context.Context, eniID string, prefixes []netip.Prefix) error {
	if len(prefixes) == 0 {
		return nil
	}
	return c.unassign(ctx, &ec2.UnassignPrivateIpAddressesInput{NetworkInterfaceId: &eniID, Ipv4Prefixes: texts(prefixes)})
}

func (c *Client) unassign(ctx context.Context, in *ec2.UnassignPrivateIpAddressesInput) error {
	_, err := invoke(ctx, c, pace.Unassign, c.api.UnassignPrivateIpAddresses, in)
	return err
}
