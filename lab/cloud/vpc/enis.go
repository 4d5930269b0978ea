package vpc

import (
	"maps"
	"net/netip"
	"slices"
)

// maxGroups is the maximum number of security groups of an ENI
// (VPC quotas, "Security groups per network interface").
const maxGroups = 5

// unknownGroup is the code for an unknown security group in a call for an ENI, even if its ID is malformed.
// RunInstances and calls for groups use other codes.
const unknownGroup = "InvalidSecurityGroupID.NotFound"

// ordinary is the default type of ENIs.
const ordinary = "interface"

// efaOnly is the type of ENIs without addresses and links (EC2 User Guide, "Elastic Fabric Adapter").
const efaOnly = "efa-only"

// ENIs are the network interfaces of a Cloud.
type ENIs struct {
	world       *world
	store       *store
	pools       *pools
	attachments *attachments
	trunks      *trunks
	tokens      *clientTokens
	quota       int // maximum number of ENIs
}

// CreateRequest is a request for a new ENI.
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

// Create creates an available ENI. A repeated ClientToken returns the same ENI, or
// IdempotentParameterMismatch if the request differs.
func (es *ENIs) Create(r CreateRequest) (out ENI, err error) {
	err = es.world.change(func() error {
		if prior, ok, err := es.tokens.replay(r.ClientToken, r); err != nil || ok {
			if ok {
				out = prior.enis[0].Clone()
			}
			return err
		}
		e, err := es.create(r)
		if err != nil {
			return err
		}
		es.tokens.remember(r.ClientToken, idempotent{request: r, enis: []ENI{e.Clone()}})
		out = e.Clone()
		return nil
	})
	return out, err
}

// create creates an available ENI. The caller must hold the lock.
func (es *ENIs) create(r CreateRequest) (*ENI, error) {
	subnet := es.store.subnets.get(r.SubnetID)
	if subnet == nil {
		return nil, NotFound("subnet", r.SubnetID)
	}
	groups, err := es.store.checkGroups(subnet.VPCID, r.Groups)
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
	if es.store.enis.live >= es.quota {
		return nil, Errorf("NetworkInterfaceLimitExceeded", "The maximum number of network interfaces has been reached.")
	}
	e := &ENI{
		VPCID: subnet.VPCID, SubnetID: subnet.ID, Zone: subnet.Zone, Type: r.Type, Description: r.Description,
		Groups: groups, SourceDestCheck: true, RequesterID: r.Requester, Created: es.world.clock.Now(), Tags: maps.Clone(r.Tags),
	}
	if err := es.pools.addresses(e, nil).create(r.Primary, onCreation(subnet, e, r.Addresses)); err != nil {
		return nil, err
	}
	e.ID, e.MAC = es.world.newID("eni"), es.store.newMAC()
	es.store.putENI(e)
	es.pools.countFree(subnet.ID)
	return e, nil
}

// onCreation adds the IPv6 address that a subnet assigns unless the call specifies IPv6 (EC2 API
// Reference, CreateNetworkInterface, Ipv6AddressCount). In an IPv6-only subnet an ENI always has an
// address, even with prefixes. The latter is not documented; clients must cope with either behaviour.
func onCreation(s *Subnet, e *ENI, r AddressRequest) AddressRequest {
	if s.IPv6Native() && e.Type != efaOnly && len(r.IPv6)+r.IPv6Count == 0 {
		r.IPv6Count = 1
	}
	if s.AssignIPv6 && e.Type != efaOnly && !r.NoIPv6 && len(r.IPv6)+r.IPv6Count+len(r.IPv6Prefixes)+r.IPv6PrefixCount == 0 {
		r.IPv6Count = 1
	}
	return r
}

// Delete deletes an ENI that is not attached. Deleting a branch also ends its association; the Amazon VPC
// resource controller relies on this (its pull request 372).
func (es *ENIs) Delete(id string) error {
	return es.world.change(func() error {
		e, err := es.store.findENI(id)
		if err != nil {
			return err
		}
		if e.Attachment != nil {
			return invalid("Network interface '%s' is currently in use.", id)
		}
		es.delete(e)
		return nil
	})
}

// delete removes an ENI and frees its addresses. The caller must hold the lock.
func (es *ENIs) delete(e *ENI) {
	if e.Trunk != nil {
		es.trunks.endAssociation(e)
	}
	es.pools.release(e.SubnetID, Assigned{e.IPv4(), e.Prefixes, e.IPv6, e.IPv6Prefixes})
	keep := es.store.keep()
	es.store.enis.put(e.ID, nil, es.world.clock.Now(), keep)
	if keep > 0 {
		es.world.eventually(2*keep, func() { es.attachments.forget(e.ID) })
	} else {
		es.attachments.forget(e.ID)
	}
	es.pools.countFree(e.SubnetID)
}

// Modification changes attributes of an ENI; nil fields stay unchanged.
type Modification struct {
	Groups              []string
	Description         *string
	SourceDestCheck     *bool
	AttachmentID        string // the attachment that DeleteOnTermination applies to
	DeleteOnTermination *bool
}

// Modify changes attributes of an ENI.
func (es *ENIs) Modify(id string, m Modification) error {
	return es.world.change(func() error {
		e, err := es.store.findENI(id)
		if err != nil {
			return err
		}
		n := e.Clone()
		if m.Groups != nil {
			if n.Groups, err = es.store.checkGroups(e.VPCID, m.Groups); err != nil {
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
		es.store.putENI(&n)
		if m.Groups != nil || m.SourceDestCheck != nil {
			es.world.emit(GroupsChanged, es.store.holder(&n), &n)
		}
		return nil
	})
}
