package vpc

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// maxGroups is how many security groups an ENI may have
// (VPC quotas, "Security groups per network interface").
const maxGroups = 5

// unknownGroup is the code for a security group that a call about an ENI names
// and that does not exist, however its ID is written. RunInstances and calls
// about groups have another.
const unknownGroup = "InvalidSecurityGroupID.NotFound"

// ordinary is the type of ENIs that none is asked for.
const ordinary = "interface"

// efaOnly is the type of ENIs without addresses, which no link appears for
// (EC2 User Guide, "Elastic Fabric Adapter").
const efaOnly = "efa-only"

// CreateRequest asks for a new ENI.
type CreateRequest struct {
	SubnetID    string
	Groups      []string   // default: the VPC's default group
	Primary     netip.Addr // zero: any free address
	Addresses   AddressRequest
	Type        string // default ordinary
	Description string
	Tags        Tags
	ClientToken string
	Requester   string
}

// CreateNetworkInterface makes an available ENI. The same ClientToken with the
// same request gives the same ENI, with other parameters IdempotentParameterMismatch.
func (c *Cloud) CreateNetworkInterface(r CreateRequest) (out ENI, err error) {
	err = c.change(func() error {
		if prior, ok, err := c.replay(r.ClientToken, r); err != nil || ok {
			if ok {
				out = prior.enis[0].Clone()
			}
			return err
		}
		e, err := c.create(r)
		if err != nil {
			return err
		}
		c.remember(r.ClientToken, idempotent{request: r, enis: []ENI{e.Clone()}})
		out = e.Clone()
		return nil
	})
	return out, err
}

// create makes an available ENI. The lock is held.
func (c *Cloud) create(r CreateRequest) (*ENI, error) {
	subnet := c.subnets.get(r.SubnetID)
	if subnet == nil {
		return nil, NotFound("subnet", r.SubnetID)
	}
	groups, err := c.checkGroups(subnet.VPCID, r.Groups)
	if err != nil {
		return nil, err
	}
	if err := checkTags(nil, r.Tags); err != nil {
		return nil, err
	}
	if r.Type == "" {
		r.Type = ordinary
	}
	if !slices.Contains([]string{ordinary, "efa", efaOnly, trunk}, r.Type) {
		return nil, invalid("Value (%s) for parameter InterfaceType is invalid.", r.Type)
	}
	if c.enis.live >= c.spec.Quotas.NetworkInterfaces {
		return nil, Errorf("NetworkInterfaceLimitExceeded", "The maximum number of network interfaces has been reached.")
	}
	e := &ENI{
		VPCID: subnet.VPCID, SubnetID: subnet.ID, Zone: subnet.Zone, Type: r.Type, Description: r.Description,
		Groups: groups, SourceDestCheck: true, RequesterID: r.Requester, Created: c.clock.Now(), Tags: maps.Clone(r.Tags),
	}
	if err := c.addresses(e, nil).create(r.Primary, onCreation(subnet, e, r.Addresses)); err != nil {
		return nil, err
	}
	e.ID, e.MAC = c.newID("eni"), c.newMAC()
	c.putENI(e)
	c.countFree(subnet.ID)
	return e, nil
}

// onCreation is what a new ENI gets: of a subnet that assigns IPv6 addresses one, where the
// call neither says which it gets nor that it gets none (EC2 API Reference,
// CreateNetworkInterface, Ipv6AddressCount). In a subnet of IPv6 alone an ENI has an address
// in any case, also besides prefixes: that nothing says, and who expects it is safe without.
func onCreation(s *Subnet, e *ENI, r AddressRequest) AddressRequest {
	if s.IPv6Native() && e.Type != efaOnly && len(r.IPv6)+r.IPv6Count == 0 {
		r.IPv6Count = 1
	}
	if s.AssignIPv6 && e.Type != efaOnly && !r.NoIPv6 && len(r.IPv6)+r.IPv6Count+len(r.IPv6Prefixes)+r.IPv6PrefixCount == 0 {
		r.IPv6Count = 1
	}
	return r
}

// checkGroups returns the groups an ENI in a VPC gets for those asked for. The lock is held.
func (c *Cloud) checkGroups(vpcID string, ids []string) ([]string, error) {
	if len(ids) == 0 {
		return c.groupsNamed(vpcID, nil), nil
	}
	var missing, out []string
	for _, id := range ids {
		g := c.groups.get(id)
		if g == nil {
			missing = append(missing, id)
			continue
		}
		if g.VPCID != vpcID {
			return nil, Errorf("InvalidParameter", "Security group %s and the subnet belong to different networks.", id)
		}
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	if len(missing) > 0 {
		return nil, Errorf(unknownGroup, "The securityGroup ID '%s' does not exist", strings.Join(missing, ", "))
	}
	if len(out) > maxGroups {
		return nil, Errorf("SecurityGroupsPerInterfaceLimitExceeded", "The maximum number of security groups per interface is %d.", maxGroups)
	}
	return out, nil
}

// findENI returns an ENI that a change names. The lock is held.
func (c *Cloud) findENI(id string) (*ENI, error) {
	e := c.enis.get(id)
	if e == nil || c.tooFresh(c.enis.asOf(id, c.clock.Now().Add(-c.lag)) == nil) {
		return nil, NotFound("eni", id)
	}
	return e, nil
}

// findInstance returns an instance that a change names. The lock is held.
func (c *Cloud) findInstance(id string) (*Instance, error) {
	i := c.instances.get(id)
	if i == nil || c.tooFresh(c.instances.asOf(id, c.clock.Now().Add(-c.lag)) == nil) {
		return nil, NotFound("i", id)
	}
	return i, nil
}

// tooFresh tells whether a change may not see yet what describe calls do not show yet.
func (c *Cloud) tooFresh(unseen bool) bool { return c.lagWrites && unseen }

// DeleteNetworkInterface deletes an ENI that is not attached. That of a branch ends its
// association, too: for years the Amazon VPC resource controller took branches back in no
// other way, and it still does where it cannot disassociate one (its pull request 372).
func (c *Cloud) DeleteNetworkInterface(id string) error {
	return c.change(func() error {
		e, err := c.findENI(id)
		if err != nil {
			return err
		}
		if e.Attachment != nil {
			return invalid("Network interface '%s' is currently in use.", id)
		}
		c.delete(e)
		return nil
	})
}

// delete takes an ENI out of the books and frees its addresses. The lock is held.
func (c *Cloud) delete(e *ENI) {
	if e.Trunk != nil {
		c.endAssociation(e)
	}
	c.release(e.SubnetID, Assigned{e.IPv4(), e.Prefixes, e.IPv6, e.IPv6Prefixes})
	keep := c.keep()
	c.enis.put(e.ID, nil, c.clock.Now(), keep)
	if keep > 0 {
		c.eventually(2*keep, func() { c.forget(e.ID) })
	} else {
		c.forget(e.ID)
	}
	c.countFree(e.SubnetID)
}

// forget drops a deleted ENI for good. The lock is held.
func (c *Cloud) forget(id string) {
	c.enis.drop(id)
	for _, host := range c.everHosts[id] {
		delete(c.everAttached[host], id)
		if len(c.everAttached[host]) == 0 {
			delete(c.everAttached, host)
		}
	}
	delete(c.everHosts, id)
}

// Modification changes attributes of an ENI; nil fields stay as they are.
type Modification struct {
	Groups              []string
	Description         *string
	SourceDestCheck     *bool
	AttachmentID        string // which attachment DeleteOnTermination is about
	DeleteOnTermination *bool
}

// ModifyNetworkInterface changes attributes of an ENI.
func (c *Cloud) ModifyNetworkInterface(id string, m Modification) error {
	return c.change(func() error {
		e, err := c.findENI(id)
		if err != nil {
			return err
		}
		n := e.Clone()
		if m.Groups != nil {
			if n.Groups, err = c.checkGroups(e.VPCID, m.Groups); err != nil {
				return err
			}
		}
		if m.Description != nil {
			n.Description = *m.Description
		}
		if m.SourceDestCheck != nil {
			n.SourceDestCheck = *m.SourceDestCheck
		}
		if m.DeleteOnTermination != nil {
			if n.Attachment == nil || n.Attachment.ID != m.AttachmentID {
				return NotFound("eni-attach", m.AttachmentID)
			}
			n.Attachment.DeleteOnTermination = *m.DeleteOnTermination
		}
		c.putENI(&n)
		if m.Groups != nil || m.SourceDestCheck != nil {
			c.emit(GroupsChanged, c.holder(&n), &n)
		}
		return nil
	})
}

// holder is the instance that an ENI is attached to, for a branch by its trunk; nil when it
// is available. The lock is held.
func (c *Cloud) holder(e *ENI) *Instance {
	if e.Trunk != nil {
		e = c.enis.get(e.Trunk.TrunkID)
	}
	if e.Attachment == nil {
		return nil
	}
	return c.instances.get(e.Attachment.InstanceID)
}
