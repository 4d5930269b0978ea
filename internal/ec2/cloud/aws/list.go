package aws

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

// The maximum page sizes of describe calls (EC2 API Reference). Calls with neither a filter nor a page
// draw from a smaller bucket at EC2 (EC2 Developer Guide, "Request throttling"), which the limiter does
// not distinguish; so calls for single resources have a filter and a page too.
const (
	pageSize  = 1000
	smallPage = 100 // for instance types and route tables
)

// filters builds the Filters of a describe call.
type filters []types.Filter

// add filters by a property; an empty value adds no filter.
func (f *filters) add(name, value string) {
	if value != "" {
		f.anyOf(name, []string{value})
	}
}

// tags filters by tags, in a stable order.
func (f *filters) tags(tags map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		f.anyOf("tag:"+k, []string{tags[k]})
	}
}

// tagged filters by tags with one of several values each, in a stable order.
func (f *filters) tagged(tags map[string][]string) {
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		f.anyOf("tag:"+k, tags[k])
	}
}

// literal escapes wildcards in a value (EC2 User Guide, "List and filter your resources").
func literal(v string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`).Replace(v)
}

// anyOf filters by a property with one of several values; no values add no filter.
func (f *filters) anyOf(name string, values []string) {
	if len(values) == 0 {
		return
	}
	literals := make([]string, len(values))
	for i, v := range values {
		literals[i] = literal(v)
	}
	*f = append(*f, types.Filter{Name: sdk.String(name), Values: literals})
}

// from is a page token as a parameter.
func from(token string) *string {
	if token == "" {
		return nil
	}
	return &token
}

// typeNames converts types of ENIs to strings.
func typeNames(list []cloud.InterfaceType) []string {
	out := make([]string, len(list))
	for i, t := range list {
		out[i] = string(t)
	}
	return out
}

// ENIPage implements pace.Calls. IDs that do not exist are left out.
func (c *Client) ENIPage(ctx context.Context, f cloud.ENIFilter, token string) ([]cloud.ENI, string, error) {
	var by filters
	by.add("attachment.instance-id", f.InstanceID)
	by.add("vpc-id", f.VPCID)
	by.add("status", f.Status)
	by.anyOf("interface-type", typeNames(f.Types))
	by.tags(f.Tags)
	by.tagged(f.Tagged)
	by.anyOf("network-interface-id", f.IDs)
	by.anyOf("attachment.instance-id", f.InstanceIDs)
	return page(ctx, c, pace.DescribeENIs, c.api.DescribeNetworkInterfaces,
		&ec2.DescribeNetworkInterfacesInput{Filters: by, MaxResults: sdk.Int32(pageSize), NextToken: from(token)},
		func(got *ec2.DescribeNetworkInterfacesOutput) ([]types.NetworkInterface, *string) {
			return got.NetworkInterfaces, got.NextToken
		},
		func(r *reading, n *types.NetworkInterface) cloud.ENI {
			e := r.eni(n)
			r.listed(f, e)
			return e
		})
}

// SubnetPage implements pace.Calls. IDs that do not exist are left out.
func (c *Client) SubnetPage(ctx context.Context, f cloud.SubnetFilter, token string) ([]cloud.Subnet, string, error) {
	var by filters
	by.add("vpc-id", f.VPCID)
	by.add("availability-zone", f.Zone)
	by.tags(f.Tags)
	by.anyOf("subnet-id", f.IDs)
	return page(ctx, c, pace.DescribeSubnets, c.api.DescribeSubnets,
		&ec2.DescribeSubnetsInput{Filters: by, MaxResults: sdk.Int32(pageSize), NextToken: from(token)},
		func(got *ec2.DescribeSubnetsOutput) ([]types.Subnet, *string) { return got.Subnets, got.NextToken },
		func(r *reading, n *types.Subnet) cloud.Subnet {
			s := r.subnet(n)
			r.listedSubnet(f, s)
			return s
		})
}

// SecurityGroupPage implements pace.Calls.
func (c *Client) SecurityGroupPage(ctx context.Context, vpcID string, tags map[string]string, token string) ([]string, string, error) {
	var by filters
	by.add("vpc-id", vpcID)
	by.tags(tags)
	return page(ctx, c, pace.DescribeSecurityGroups, c.api.DescribeSecurityGroups,
		&ec2.DescribeSecurityGroupsInput{Filters: by, MaxResults: sdk.Int32(pageSize), NextToken: from(token)},
		func(got *ec2.DescribeSecurityGroupsOutput) ([]types.SecurityGroup, *string) {
			return got.SecurityGroups, got.NextToken
		},
		func(r *reading, g *types.SecurityGroup) string { return r.text("groupId", g.GroupId) })
}

// RouteTablePage implements pace.Calls. It ignores ending and failed associations.
func (c *Client) RouteTablePage(ctx context.Context, vpcID, token string) ([]cloud.RouteTable, string, error) {
	var by filters
	by.add("vpc-id", vpcID)
	return page(ctx, c, pace.DescribeRouteTables, c.api.DescribeRouteTables,
		&ec2.DescribeRouteTablesInput{Filters: by, MaxResults: sdk.Int32(smallPage), NextToken: from(token)},
		func(got *ec2.DescribeRouteTablesOutput) ([]types.RouteTable, *string) {
			return got.RouteTables, got.NextToken
		},
		func(r *reading, t *types.RouteTable) cloud.RouteTable {
			r.as("routeTableSet["+sdk.ToString(t.RouteTableId)+"].vpcId", sdk.ToString(t.VpcId), vpcID)
			return r.routeTable(t)
		})
}

// InstancePage implements pace.Calls, without ENIs. IDs that do not exist are left out.
func (c *Client) InstancePage(ctx context.Context, ids []string, token string) ([]cloud.Instance, string, error) {
	var by filters
	by.anyOf("instance-id", ids)
	return page(ctx, c, pace.DescribeInstances, c.api.DescribeInstances,
		&ec2.DescribeInstancesInput{Filters: by, MaxResults: sdk.Int32(pageSize), NextToken: from(token)},
		func(got *ec2.DescribeInstancesOutput) (all []types.Instance, next *string) {
			for _, r := range got.Reservations {
				all = append(all, r.Instances...)
			}
			return all, got.NextToken
		}, (*reading).instance)
}

// Limits implements pace.Calls. A type that does not exist is an error of class Bug.
func (c *Client) Limits(ctx context.Context, instanceType string) (cloud.Limits, error) {
	var by filters
	by.add("instance-type", instanceType)
	described, err := ask(ctx, c, pace.DescribeTypes, c.api.DescribeInstanceTypes,
		&ec2.DescribeInstanceTypesInput{Filters: by, MaxResults: sdk.Int32(smallPage)},
		func(r *reading, got *ec2.DescribeInstanceTypesOutput) (l *cloud.Limits) {
			switch all := got.InstanceTypes; {
			case len(all) == 0:
				return nil
			case len(all) > 1 || string(all[0].InstanceType) != instanceType:
				r.bad("instanceTypeSet", string(all[0].InstanceType), instanceType+" alone")
				return nil
			default:
				return new(r.limits(&all[0]))
			}
		})
	switch {
	case err != nil:
		return cloud.Limits{}, err
	case described == nil:
		return cloud.Limits{}, &pace.Reply{Answered: true, Err: &cloud.Error{
			Class: cloud.Bug, Op: pace.DescribeTypes.Action, Code: "InvalidInstanceType",
			Message: fmt.Sprintf("the instance type %q does not exist in this region", instanceType),
		}}
	}
	return *described, nil
}
