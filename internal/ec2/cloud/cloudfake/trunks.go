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
		if t, ok := c.State.tokens[clientToken]; ok && clientToken != "" {
			if t.request != request {
				return q.refuse(cloud.Bug, "IdempotentParameterMismatch", "token %s was used with other parameters", clientToken)
			}
			out = t.association
			return nil
		}
		if err := c.State.enis.associate(q, &a); err != nil {
			return err
		}
		if clientToken != "" {
			c.State.tokens[clientToken] = token{request: request, association: a}
		}
		out = a
		return nil
	})
	return out, err
}

// associate makes an ENI a branch and sets the ID of the association. State.mu is held.
func (es *enis) associate(q call, a *cloud.Association) error {
	trunk, branch := es.byID[a.TrunkID], es.byID[a.BranchID]
	switch {
	case trunk == nil:
		return q.refuse(cloud.Gone, "InvalidNetworkInterfaceID.NotFound", "no interface %s", a.TrunkID)
	case branch == nil:
		return q.refuse(cloud.Gone, "InvalidNetworkInterfaceID.NotFound", "no interface %s", a.BranchID)
	}
	if err := es.mayAssociate(q, trunk, branch, a.VLAN); err != nil {
		return err
	}
	es.seq++
	a.ID = fmt.Sprintf("trunk-assoc-%08x", es.seq)
	branch.association = *a
	branch.Type, branch.Status = cloud.InterfaceBranch, "in-use"
	trunk.branches = append(trunk.branches, branch)
	es.branches[a.ID] = branch
	delete(es.detached, branch.ID)
	return nil
}

// mayAssociate checks whether an ENI may become a branch of a trunk. State.mu is held.
func (es *enis) mayAssociate(q call, trunk, branch *eni, vlan int) error {
	switch {
	case trunk.Type != cloud.InterfaceTrunk:
		return q.refuse(cloud.Bug, "InvalidParameterValue", "%s is not a trunk: its type is %q", trunk.ID, trunk.Type)
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
	in, n := es.instances[trunk.Attachment.InstanceID], 1
	for _, e := range in.enis {
		n += len(e.branches)
	}
	if n > limits.Branches(in.Type) {
		return q.refuse(cloud.LimitReached, "AttachmentLimitExceeded", "%d branches are too many for a %s", n, in.Type)
	}
	return es.room(q, in, branch)
}

// room checks that an instance type has slots for the addresses of an ENI. State.mu is held.
func (es *enis) room(q call, in *instance, e *eni) error {
	l, _ := es.limitsOf(in.Type)
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
		e := c.State.enis.branches[associationID]
		if e == nil {
			return q.refuse(cloud.Gone, "InvalidAssociationID.NotFound", "no association %s", associationID)
		}
		c.State.enis.endAssociation(e)
		return nil
	})
}

// endAssociation turns a branch into a detached ENI. State.mu is held.
func (es *enis) endAssociation(e *eni) {
	trunk := es.byID[e.association.TrunkID]
	trunk.branches = slices.DeleteFunc(trunk.branches, func(o *eni) bool { return o == e })
	delete(es.branches, e.association.ID)
	e.association = cloud.Association{}
	e.Type, e.Status = cloud.InterfaceOrdinary, "available"
	es.detached[e.ID] = e
}

// holder returns the instance of an ENI or, for a branch, of its trunk; nil if detached. State.mu is held.
func (es *enis) holder(e *eni) *instance {
	if e.association.ID != "" {
		e = es.byID[e.association.TrunkID]
	}
	if e.Attachment == nil {
		return nil
	}
	return es.instances[e.Attachment.InstanceID]
}

// Associations lists all associations, ordered by trunk and VLAN.
func (st *State) Associations() (out []cloud.Association) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, e := range st.enis.branches {
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
			return q.refuse(cloud.Bug, "InvalidParameterCombination", "no security groups: expected at least one")
		}
		if err := c.State.checkGroups(q, groups); err != nil {
			return err
		}
		e.Groups = slices.Clone(groups)
		return nil
	})
}
