package aws

import (
	"context"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/pace"
)

// routePage is the most that DescribeRouteTables allows (EC2 API Reference).
const routePage = 100

// RouteTables implements cloud.API. Associations that end or failed count as none.
func (c *Client) RouteTables(ctx context.Context, vpcID string) ([]cloud.RouteTable, error) {
	op := pace.DescribeRouteTables
	var f filters
	f.add("vpc-id", vpcID)
	var out []cloud.RouteTable
	main, of := "", map[string]string{}
	err := pages(op.Action, func(token *string) (*string, error) {
		got, err := invoke(ctx, c, op, c.api.DescribeRouteTables, &ec2.DescribeRouteTablesInput{
			Filters: f, MaxResults: sdk.Int32(routePage), NextToken: token,
		})
		if err != nil {
			return nil, err
		}
		var r reading
		for i := range got.RouteTables {
			t := r.routeTable(&got.RouteTables[i])
			r.as("routeTableSet["+t.ID+"].vpcId", sdk.ToString(got.RouteTables[i].VpcId), vpcID)
			if t.Main && main != "" {
				r.bad("routeTableSet", t.ID, "one main table, which is "+main)
			} else if t.Main {
				main = t.ID
			}
			for _, s := range t.Subnets {
				if of[s] != "" {
					r.bad("routeTableSet["+t.ID+"].associationSet", s, "each subnet in one table")
				}
				of[s] = t.ID
			}
			out = append(out, t)
		}
		if r.err != nil {
			return nil, fail(op.Action, r.err)
		}
		return got.NextToken, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (r *reading) routeTable(t *types.RouteTable) cloud.RouteTable {
	defer r.in("routeTableSet", sdk.ToString(t.RouteTableId))()
	out := cloud.RouteTable{ID: r.text("routeTableId", t.RouteTableId)}
	for _, a := range t.Associations {
		if a.AssociationState != nil && a.AssociationState.State != types.RouteTableAssociationStateCodeAssociated {
			continue
		}
		out.Main = out.Main || sdk.ToBool(a.Main)
		if id := sdk.ToString(a.SubnetId); id != "" {
			out.Subnets = append(out.Subnets, id)
		}
	}
	return out
}
