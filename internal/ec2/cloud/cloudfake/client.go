package cloudfake

import (
	"context"
	"net/netip"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

// Client makes calls to a Cloud, each of them by do, which may refuse it or end its context.
type Client struct {
	cloud *Cloud
	do    func(ctx context.Context, call func(context.Context) error) error
}

var _ pace.Calls = (*Client)(nil)

// Client returns a client of the cloud for one program.
func (c *Cloud) Client(do func(ctx context.Context, call func(context.Context) error) error) *Client {
	return &Client{c, do}
}

// get makes a call that returns a value.
func get[T any](ctx context.Context, c *Client, call func(context.Context) (T, error)) (out T, err error) {
	err = c.do(ctx, func(ctx context.Context) (err error) {
		out, err = call(ctx)
		return err
	})
	return out, err
}

// page makes a call that returns a page of a listing.
func page[T any](ctx context.Context, c *Client, call func(context.Context) ([]T, string, error)) (out []T, next string, err error) {
	err = c.do(ctx, func(ctx context.Context) (err error) {
		out, next, err = call(ctx)
		return err
	})
	return out, next, err
}

// InstancePage implements pace.Calls.
func (c *Client) InstancePage(ctx context.Context, ids []string, token string) ([]cloud.Instance, string, error) {
	return page(ctx, c, func(ctx context.Context) ([]cloud.Instance, string, error) {
		return c.cloud.InstancePage(ctx, ids, token)
	})
}

// ENIPage implements pace.Calls.
func (c *Client) ENIPage(ctx context.Context, f cloud.ENIFilter, token string) ([]cloud.ENI, string, error) {
	return page(ctx, c, func(ctx context.Context) ([]cloud.ENI, string, error) { return c.cloud.ENIPage(ctx, f, token) })
}

// SubnetPage implements pace.Calls.
func (c *Client) SubnetPage(ctx context.Context, f cloud.SubnetFilter, token string) ([]cloud.Subnet, string, error) {
	return page(ctx, c, func(ctx context.Context) ([]cloud.Subnet, string, error) { return c.cloud.SubnetPage(ctx, f, token) })
}

// SecurityGroupPage implements pace.Calls.
func (c *Client) SecurityGroupPage(ctx context.Context, vpcID string, tags map[string]string, token string) ([]string, string, error) {
	return page(ctx, c, func(ctx context.Context) ([]string, string, error) {
		return c.cloud.SecurityGroupPage(ctx, vpcID, tags, token)
	})
}

// RouteTablePage implements pace.Calls.
func (c *Client) RouteTablePage(ctx context.Context, vpcID, token string) ([]cloud.RouteTable, string, error) {
	return page(ctx, c, func(ctx context.Context) ([]cloud.RouteTable, string, error) {
		return c.cloud.RouteTablePage(ctx, vpcID, token)
	})
}

// Limits implements pace.Calls.
func (c *Client) Limits(ctx context.Context, instanceType string) (cloud.Limits, error) {
	return get(ctx, c, func(ctx context.Context) (cloud.Limits, error) { return c.cloud.Limits(ctx, instanceType) })
}

// CreateENI implements cloud.Changes.
func (c *Client) CreateENI(ctx context.Context, req cloud.CreateENI) (cloud.ENI, error) {
	return get(ctx, c, func(ctx context.Context) (cloud.ENI, error) { return c.cloud.CreateENI(ctx, req) })
}

// AttachENI implements cloud.Changes.
func (c *Client) AttachENI(ctx context.Context, eniID, instanceID string, deviceIndex int) (string, error) {
	return get(ctx, c, func(ctx context.Context) (string, error) {
		return c.cloud.AttachENI(ctx, eniID, instanceID, deviceIndex)
	})
}

// DetachENI implements cloud.Changes.
func (c *Client) DetachENI(ctx context.Context, attachmentID string) error {
	return c.do(ctx, func(ctx context.Context) error { return c.cloud.DetachENI(ctx, attachmentID) })
}

// DeleteENI implements cloud.Changes.
func (c *Client) DeleteENI(ctx context.Context, eniID string) error {
	return c.do(ctx, func(ctx context.Context) error { return c.cloud.DeleteENI(ctx, eniID) })
}

// SetDeleteOnTermination implements cloud.Changes.
func (c *Client) SetDeleteOnTermination(ctx context.Context, eniID, attachmentID string, on bool) error {
	return c.do(ctx, func(ctx context.Context) error { return c.cloud.SetDeleteOnTermination(ctx, eniID, attachmentID, on) })
}

// AssignAddresses implements cloud.Changes.
func (c *Client) AssignAddresses(ctx context.Context, eniID string, n cloud.Amount) ([]netip.Prefix, error) {
	return get(ctx, c, func(ctx context.Context) ([]netip.Prefix, error) { return c.cloud.AssignAddresses(ctx, eniID, n) })
}

// UnassignAddresses implements cloud.Changes.
func (c *Client) UnassignAddresses(ctx context.Context, eniID string, things []netip.Prefix) error {
	return c.do(ctx, func(ctx context.Context) error { return c.cloud.UnassignAddresses(ctx, eniID, things) })
}

// Tag implements cloud.Changes.
func (c *Client) Tag(ctx context.Context, resourceID string, tags map[string]string) error {
	return c.do(ctx, func(ctx context.Context) error { return c.cloud.Tag(ctx, resourceID, tags) })
}

// AssociateBranch implements cloud.Trunks.
func (c *Client) AssociateBranch(ctx context.Context, a cloud.Association, clientToken string) (cloud.Association, error) {
	return get(ctx, c, func(ctx context.Context) (cloud.Association, error) {
		return c.cloud.AssociateBranch(ctx, a, clientToken)
	})
}

// DisassociateBranch implements cloud.Trunks.
func (c *Client) DisassociateBranch(ctx context.Context, associationID string) error {
	return c.do(ctx, func(ctx context.Context) error { return c.cloud.DisassociateBranch(ctx, associationID) })
}

// SetGroups implements cloud.Trunks.
func (c *Client) SetGroups(ctx context.Context, eniID string, groups []string) error {
	return c.do(ctx, func(ctx context.Context) error { return c.cloud.SetGroups(ctx, eniID, groups) })
}
