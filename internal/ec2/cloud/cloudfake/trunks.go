package cloudfake

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ipfamily"
)

// AssociateBranch implements cloud.API.
func (c *Cloud) AssociateBranch(ctx context.Context, a cloud.Association, clientToken string) (out cloud.Association, err error) {
	q := call{"AssociateBranch", pace.AssociateBranch, a.BranchID, 0}
	err = c.change(ctx, q, func() error {
		a.ID = ""
		request := fmt.Sprintf("%+v", a)
		if t, ok := c.tokens[clientToken]; ok && clientToken != "" {
			if t.request != request {
				return q.refuse(cloud.Bug, "IdempotentParameterMismatch", "token %s was used with other parameters", clientToken)
			}
			out = t.association
			return nil
		}
		if err := c.associate(q, &a); err != nil {
			return err
		}
		if clientToken != "" {
			c.tokens[clientToken] = token{request: request, association: a}
		}
		out = a
		return nil
	})
	return out, err
}

// associate makes a branch and gives the association its ID. c.mu is held.
func (c *Cloud) associate(q call, a *cloud.Association) error {
	trunk, branch := c.enis[a.TrunkID], c.enis[a.BranchID]
	switch {
	case trunk == nil:
		return q.refuse(cloud.Gone, "InvalidNetworkInterfaceID.NotFound", "no interface %s", a.TrunkID)
	case branch == nil:
		return q.refuse(cloud.Gone, "InvalidNetworkInterfaceID.NotFound", "no interface %s", a.BranchID)
	}
	if err := c.mayAssociate(q, trunk, branch, a.VLAN); err != nil {
		return err
	}
	c.seq++
	a.ID = fmt.Sprintf("trunk-assoc-%08x", c.seq)
	branch.association = *a
	branch.Type, branch.Status = cloud.InterfaceBranch, "in-use"
	trunk.branches = append(trunk.branches, branch)
	c.branches[a.ID] = branch
	delete(c.detached, branch.ID)
	return nil
}

// mayAssociate checks whether an ENI may become a branch of a trunk. c.mu is held.
func (c *Cloud) mayAssociate(q call, trunk, branch *eni, vlan int) error {
	switch {
	case trunk.Type != cloud.InterfaceTrunk:
		return q.refuse(cloud.Bug, "InvalidParameterValue", "%s is no trunk: its type is %q", trunk.ID, trunk.Type)
	case branch.Type != cloud.InterfaceOrdinary && branch.Type != cloud.InterfaceBranch:
		return q.refuse(cloud.Bug, "InvalidParameterValue", "%s of type %q cannot be a branch", branch.ID, branch.Type)
	case vlan < 1 || vlan > cloud.MaxVLAN:
		return q.refuse(cloud.Bug, "InvalidParameterValue", "VLAN %d: expected 1 to %d", vlan, cloud.MaxVLAN)
	case branch.Status != "available":
		return q.refuse(cloud.Conflict, "InvalidNetworkInterface.InUse", "%s is in use", branch.ID)
	case trunk.Attachment == nil || trunk.Attachment.Status == "detaching":
		return q.refuse(cloud.Conflict, "IncorrectState", "%s is not attached", trunk.ID)
	case branch.Zone != trunk.Zone:
		return q.refuse(cloud.Bug, "InvalidParameterCombination", "%s is in %s, and %s in %s", branch.ID, branch.Zone, trunk.ID, trunk.Zone)
	case slices.ContainsFunc(trunk.branches, func(o *eni) bool { return o.association.VLAN == vlan }):
		return q.refuse(cloud.Conflict, "InvalidVlanId.Duplicate", "VLAN %d is in use", vlan)
	}
	in, n := c.instances[trunk.Attachment.InstanceID], 1
	for _, e := range in.enis {
		n += len(e.branches)
	}
	if n > limits.Branches(in.Type) {
		return q.refuse(cloud.LimitReached, "AttachmentLimitExceeded", "%d branches are too many for a %s", n, in.Type)
	}
	return c.room(q, in, branch)
}

// room checks that an instance's type carries what an ENI has. c.mu is held.
func (c *Cloud) room(q call, in *instance, e *eni) error {
	l, _ := c.limitsOf(in.Type)
	if !l.Prefixes && len(e.Prefixes)+len(e.IPv6Prefixes) > 0 {
		return q.refuse(cloud.Bug, "UnsupportedOperation", "a %s has no prefixes", in.Type)
	}
	for _, f := range ipfamily.Dual.Families() {
		if has, most := e.slots(f, l); has > most {
			return q.refuse(cloud.LimitReached, "PrivateIpAddressLimitExceeded", "%s holds %d %s of %d", e.ID, has, f, most)
		}
	}
	return nil
}

// DisassociateBranch implements cloud.API.
func (c *Cloud) DisassociateBranch(ctx context.Context, associationID string) error {
	q := call{"DisassociateBranch", pace.DisassociateBranch, associationID, 0}
	return c.change(ctx, q, func() error {
		e := c.branches[associationID]
		if e == nil {
			return q.refuse(cloud.Gone, "InvalidAssociationID.NotFound", "no association %s", associationID)
		}
		c.endAssociation(e)
		return nil
	})
}

// endAssociation makes a branch a detached ENI. c.mu is held.
func (c *Cloud) endAssociation(e *eni) {
	trunk := c.enis[e.association.TrunkID]
	trunk.branches = slices.DeleteFunc(trunk.branches, func(o *eni) bool { return o == e })
	delete(c.branches, e.association.ID)
	e.association = cloud.Association{}
	e.Type, e.Status = cloud.InterfaceOrdinary, "available"
	c.detached[e.ID] = e
}

// holder is the instance that an ENI is attached to, for a branch by its trunk; nil when
// it is detached. c.mu is held.
func (c *Cloud) holder(e *eni) *instance {
	if e.association.ID != "" {
		e = c.enis[e.association.TrunkID]
	}
	if e.Attachment == nil {
		return nil
	}
	return c.instances[e.Attachment.InstanceID]
}

// Associations lists all associations, ordered by trunk and VLAN. It counts as no call.
func (c *Cloud) Associations() (out []cloud.Association) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.branches {
		out = append(out, e.association)
	}
	slices.SortFunc(out, func(a, b cloud.Association) int {
		return cmp.Or(cmp.Compare(a.TrunkID, b.TrunkID), cmp.Compare(a.VLAN, b.VLAN))
	})
	return out
}

// SetGroups implements cloud.API.
func (c *Cloud) SetGroups(ctx context.Context, id string, groups []string) error {
	q := call{"SetGroups", pace.ModifyENI, id, 0}
	return c.changeENI(ctx, q, func(e *eni) error {
		if len(groups) == 0 {
			return q.refuse(cloud.Bug, "InvalidParameterCombination", "no security groups: expected one at least")
		}
		if err := c.checkGroups(q, groups); err != nil {
			return err
		}
		e.Groups = slices.Clone(groups)
		return nil
	})
}
