package aws

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/pace"
)

const (
	pageSize     = 1000 // the most that the describe calls allow
	filterValues = 200  // the most values that a filter may have (EC2 API Reference, "Filter")
)

// filters builds the Filters of a describe call.
type filters []types.Filter

// add narrows by a property of the things listed; an empty value does not.
func (f *filters) add(name, value string) {
	if value != "" {
		*f = append(*f, types.Filter{Name: sdk.String(name), Values: []string{literal(value)}})
	}
}

// tags narrows by tags, in a stable order.
func (f *filters) tags(tags map[string]string) {
	keys := make([]string, 0, len(tags))
	for k := range tags {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		*f = append(*f, types.Filter{Name: sdk.String("tag:" + k), Values: []string{literal(tags[k])}})
	}
}

// literal takes the meaning of wildcards from what a person may have put
// into a tag (EC2 User Guide, "List and filter your resources").
func literal(v string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`).Replace(v)
}

// chunks splits ids into filters of a size that EC2 accepts. Without ids it
// yields the filters alone, once.
func (f filters) chunks(name string, ids []string) []filters {
	if len(ids) == 0 {
		return []filters{f}
	}
	var out []filters
	for chunk := range slices.Chunk(ids, filterValues) {
		out = append(out, append(slices.Clone(f), types.Filter{Name: sdk.String(name), Values: chunk}))
	}
	return out
}

// pages follows the pages of a listing, of which there are no more than maxPages.
// Page makes the call for a token and returns the next one.
func pages(op string, page func(token *string) (next *string, err error)) error {
	var token *string
	before := map[string]bool{}
	for range maxPages {
		next, err := page(token)
		if err != nil {
			return err
		}
		if sdk.ToString(next) == "" {
			return nil
		}
		if before[*next] {
			return fail(op, &badAnswer{fmt.Errorf("nextToken %q: expected another than those of the pages before", *next)})
		}
		before[*next] = true
		token = next
	}
	return fail(op, &badAnswer{fmt.Errorf("nextToken: more than %d pages", maxPages)})
}

// ENIs implements cloud.API. Interfaces in f.IDs that do not exist are left out.
func (c *Client) ENIs(ctx context.Context, f cloud.ENIFilter) ([]cloud.ENI, error) {
	var base filters
	base.add("attachment.instance-id", f.InstanceID)
	base.add("vpc-id", f.VPCID)
	base.add("status", f.Status)
	base.tags(f.Tags)
	var all []filters
	for _, part := range base.chunks("network-interface-id", f.IDs) {
		all = append(all, part.chunks("attachment.instance-id", f.InstanceIDs)...)
	}
	return c.enis(ctx, newScope(f), all)
}

func (c *Client) enis(ctx context.Context, asked scope, chunks []filters) ([]cloud.ENI, error) {
	op := pace.DescribeENIs
	var out []cloud.ENI
	seen := map[string]int{}
	for _, f := range chunks {
		err := pages(op.Action, func(token *string) (*string, error) {
			got, err := invoke(ctx, c, op, c.api.DescribeNetworkInterfaces, &ec2.DescribeNetworkInterfacesInput{
				Filters: f, MaxResults: sdk.Int32(pageSize), NextToken: token,
			})
			if err != nil {
				return nil, err
			}
			var r reading
			for i := range got.NetworkInterfaces {
				e := r.eni(&got.NetworkInterfaces[i])
				r.listed(asked, e)
				if at, ok := seen[e.ID]; !ok {
					seen[e.ID] = len(out)
					out = append(out, e)
				} else if !reflect.DeepEqual(out[at], e) {
					r.twice("networkInterfaceSet", e.ID)
				}
			}
			if r.err != nil {
				return nil, fail(op.Action, r.err)
			}
			return got.NextToken, nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Subnets implements cloud.API. Subnets in f.IDs that do not exist are left out.
func (c *Client) Subnets(ctx context.Context, f cloud.SubnetFilter) ([]cloud.Subnet, error) {
	op := pace.DescribeSubnets
	var base filters
	base.add("vpc-id", f.VPCID)
	base.add("availability-zone", f.Zone)
	base.tags(f.Tags)
	var out []cloud.Subnet
	asked, seen := f, map[string]bool{}
	for _, f := range base.chunks("subnet-id", f.IDs) {
		err := pages(op.Action, func(token *string) (*string, error) {
			got, err := invoke(ctx, c, op, c.api.DescribeSubnets, &ec2.DescribeSubnetsInput{
				Filters: f, MaxResults: sdk.Int32(pageSize), NextToken: token,
			})
			if err != nil {
				return nil, err
			}
			var r reading
			for i := range got.Subnets {
				s := r.subnet(&got.Subnets[i])
				r.listedSubnet(asked, s)
				if seen[s.ID] {
					r.twice("subnetSet", s.ID)
				}
				seen[s.ID] = true
				out = append(out, s)
			}
			if r.err != nil {
				return nil, fail(op.Action, r.err)
			}
			return got.NextToken, nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// one is a page for the one thing that a filter names. Describe calls with
// neither a filter nor a page draw from a smaller bucket at EC2 (EC2 Developer
// Guide, "Request throttling"), which the limiter could not tell apart; so
// single things are asked for by filter too.
func one(name, id string) (f filters, page *int32) {
	f.add(name, id)
	return f, sdk.Int32(100)
}

// gone is EC2's answer for an ID that does not exist, where a filter was used.
func gone(op, code, what, id string) error {
	return &cloud.Error{Class: cloud.Gone, Op: op, Code: code, Message: fmt.Sprintf("The %s '%s' does not exist", what, id)}
}

// SecurityGroups implements cloud.API. Without tags it lists all groups of the VPC.
func (c *Client) SecurityGroups(ctx context.Context, vpcID string, tags map[string]string) ([]string, error) {
	op := pace.DescribeSecurityGroups
	var f filters
	f.add("vpc-id", vpcID)
	f.tags(tags)
	var out []string
	err := pages(op.Action, func(token *string) (*string, error) {
		got, err := invoke(ctx, c, op, c.api.DescribeSecurityGroups, &ec2.DescribeSecurityGroupsInput{
			Filters: f, MaxResults: sdk.Int32(pageSize), NextToken: token,
		})
		if err != nil {
			return nil, err
		}
		var r reading
		for _, g := range got.SecurityGroups {
			out = append(out, r.text("groupId", g.GroupId))
		}
		if r.err != nil {
			return nil, fail(op.Action, r.err)
		}
		return got.NextToken, nil
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(out)
	return out, nil
}

// VPCCIDRs implements cloud.API. A VPC that does not exist is an error of class Gone.
func (c *Client) VPCCIDRs(ctx context.Context, vpcID string) ([]netip.Prefix, error) {
	op := pace.DescribeVPCs
	f, page := one("vpc-id", vpcID)
	got, err := invoke(ctx, c, op, c.api.DescribeVpcs, &ec2.DescribeVpcsInput{Filters: f, MaxResults: page})
	if err != nil {
		return nil, err
	}
	switch {
	case len(got.Vpcs) == 0:
		return nil, gone(op.Action, "InvalidVpcID.NotFound", "vpc ID", vpcID)
	case len(got.Vpcs) > 1 || sdk.ToString(got.Vpcs[0].VpcId) != vpcID:
		return nil, fail(op.Action, &badAnswer{fmt.Errorf("vpcSet: expected %s alone", vpcID)})
	}
	var r reading
	out := r.vpcCIDRs(&got.Vpcs[0])
	if r.err == nil && len(out) == 0 {
		r.bad("cidrBlockAssociationSet", "", "at least one associated block")
	}
	if r.err != nil {
		return nil, fail(op.Action, r.err)
	}
	return out, nil
}

// Instance implements cloud.API. Two calls make it up, since only the listing
// of interfaces has their tags.
func (c *Client) Instance(ctx context.Context, id string) (cloud.Instance, error) {
	op := pace.DescribeInstances
	f, page := one("instance-id", id)
	got, err := invoke(ctx, c, op, c.api.DescribeInstances, &ec2.DescribeInstancesInput{Filters: f, MaxResults: page})
	if err != nil {
		return cloud.Instance{}, err
	}
	list, err := instancesIn(op.Action, got)
	switch {
	case err != nil:
		return cloud.Instance{}, err
	case len(list) == 0:
		return cloud.Instance{}, gone(op.Action, "InvalidInstanceID.NotFound", "instance ID", id)
	case len(list) > 1 || list[0].ID != id:
		return cloud.Instance{}, fail(op.Action, &badAnswer{fmt.Errorf("instancesSet: expected %s alone", id)})
	}
	if list[0].ENIs, err = c.ENIs(ctx, cloud.ENIFilter{InstanceID: id}); err != nil {
		return cloud.Instance{}, err
	}
	return list[0], nil
}

// Instances implements cloud.API.
func (c *Client) Instances(ctx context.Context, ids []string) ([]cloud.Instance, error) {
	op := pace.DescribeInstances
	if len(ids) == 0 {
		return nil, nil
	}
	var out []cloud.Instance
	asked, seen := set(ids), map[string]bool{}
	for _, f := range filters(nil).chunks("instance-id", ids) {
		err := pages(op.Action, func(token *string) (*string, error) {
			got, err := invoke(ctx, c, op, c.api.DescribeInstances, &ec2.DescribeInstancesInput{
				Filters: f, MaxResults: sdk.Int32(pageSize), NextToken: token,
			})
			if err != nil {
				return nil, err
			}
			list, err := instancesIn(op.Action, got)
			if err != nil {
				return nil, err
			}
			var r reading
			for _, in := range list {
				if !asked[in.ID] {
					r.bad("instancesSet", in.ID, "one of those asked for")
				}
				if seen[in.ID] {
					r.twice("instancesSet", in.ID)
				}
				seen[in.ID] = true
			}
			if r.err != nil {
				return nil, fail(op.Action, r.err)
			}
			out = append(out, list...)
			return got.NextToken, nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func instancesIn(op string, got *ec2.DescribeInstancesOutput) ([]cloud.Instance, error) {
	var r reading
	var out []cloud.Instance
	for _, res := range got.Reservations {
		for i := range res.Instances {
			out = append(out, r.instance(&res.Instances[i]))
		}
	}
	if r.err != nil {
		return nil, fail(op, r.err)
	}
	return out, nil
}
