package aws

import (
	"context"
	"fmt"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

// AssociateBranch implements pace.Calls.
func (c *Client) AssociateBranch(ctx context.Context, a cloud.Association, clientToken string) (cloud.Association, error) {
	in := &ec2.AssociateTrunkInterfaceInput{
		TrunkInterfaceId:  &a.TrunkID,
		BranchInterfaceId: &a.BranchID,
		VlanId:            sdk.Int32(int32(a.VLAN)),
		ClientToken:       &clientToken,
	}
	return ask(ctx, c, pace.AssociateBranch, c.api.AssociateTrunkInterface, in, func(r *reading, got *ec2.AssociateTrunkInterfaceOutput) cloud.Association {
		if got.InterfaceAssociation == nil {
			r.bad("interfaceAssociation", "", "a value")
			return cloud.Association{}
		}
		return r.associated(a, got.InterfaceAssociation)
	})
}

// associated decodes an association and compares it with the requested one.
func (r *reading) associated(asked cloud.Association, got *types.TrunkInterfaceAssociation) cloud.Association {
	defer r.in("interfaceAssociation", sdk.ToString(got.AssociationId))()
	out := cloud.Association{
		ID:       r.text("associationId", got.AssociationId),
		TrunkID:  r.text("trunkInterfaceId", got.TrunkInterfaceId),
		BranchID: r.text("branchInterfaceId", got.BranchInterfaceId),
		VLAN:     r.number("vlanId", got.VlanId),
	}
	r.as("trunkInterfaceId", out.TrunkID, asked.TrunkID)
	r.as("branchInterfaceId", out.BranchID, asked.BranchID)
	r.as("interfaceProtocol", string(got.InterfaceProtocol), string(types.InterfaceProtocolTypeVlan))
	if out.VLAN != asked.VLAN {
		r.bad("vlanId", fmt.Sprint(out.VLAN), fmt.Sprint(asked.VLAN))
	}
	return out
}

// DisassociateBranch implements pace.Calls.
func (c *Client) DisassociateBranch(ctx context.Context, associationID string) error {
	in := &ec2.DisassociateTrunkInterfaceInput{AssociationId: &associationID}
	_, err := ask(ctx, c, pace.DisassociateBranch, c.api.DisassociateTrunkInterface, in, func(r *reading, got *ec2.DisassociateTrunkInterfaceOutput) struct{} {
		if !sdk.ToBool(got.Return) {
			r.bad("return", fmt.Sprint(sdk.ToBool(got.Return)), "true")
		}
		return struct{}{}
	})
	return err
}

// SetGroups implements pace.Calls.
func (c *Client) SetGroups(ctx context.Context, eniID string, groups []string) error {
	_, err := invoke(ctx, c, pace.ModifyENI, c.api.ModifyNetworkInterfaceAttribute,
		&ec2.ModifyNetworkInterfaceAttributeInput{NetworkInterfaceId: &eniID, Groups: groups})
	return err
}
