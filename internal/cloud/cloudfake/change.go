package cloudfake

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/cloud"
)

// CreateENI implements cloud.API.
func (c *Cloud) CreateENI(ctx context.Context, q cloud.CreateENI) (out cloud.ENI, err error) {
	err = c.change(ctx, "CreateENI", "", q.Addresses+q.Prefixes, func() error {
		const op = "CreateNetworkInterface"
		request := fmt.Sprintf("%+v", q)
		if t, ok := c.tokens[q.ClientToken]; ok && q.ClientToken != "" {
			e, there := c.enis[t.eni]
			switch {
			case t.request != request:
				return refuse(op, cloud.Bug, "IdempotentParameterMismatch", "token used with other parameters")
			case !there:
				return refuse(op, cloud.Gone, "InvalidNetworkInterfaceID.NotFound", "%s is deleted", t.eni)
			}
			out = clone(e.ENI)
			return nil
		}
		s, ok := c.subnets[q.SubnetID]
		if !ok {
			return refuse(op, cloud.Gone, "InvalidSubnetID.NotFound", "no subnet %s", q.SubnetID)
		}
		if s.free() < 1+q.Addresses {
			return refuse(op, cloud.SubnetFull, "InsufficientFreeAddressesInSubnet", "%d free", s.free())
		}
		e := c.newENI(s, s.take())
		e.Groups, e.Tags, e.Description = slices.Clone(q.Groups), maps.Clone(q.Tags), q.Description
		if err := c.assign(op, e, q.Addresses, q.Prefixes); err != nil {
			c.remove(e)
			return err
		}
		c.tokens[q.ClientToken] = token{request, e.ID}
		out = clone(e.ENI)
		return nil
	})
	return out, err
}

// assign gives an ENI addresses and prefixes, all or nothing.
func (c *Cloud) assign(op string, e *eni, addrs, prefixes int) error {
	s := c.subnets[e.SubnetID]
	if s.free() < addrs {
		return refuse(op, cloud.SubnetFull, "InsufficientFreeAddressesInSubnet", "%d free", s.free())
	}
	var got []netip.Prefix
	for range prefixes {
		p, ok := s.takePrefix()
		if !ok {
			for _, p := range got {
				s.mark(p, false)
			}
			return refuse(op, cloud.SubnetFull, "InsufficientCidrBlocks", "no free /28")
		}
		got = append(got, p)
	}
	e.Prefixes = append(e.Prefixes, got...)
	for range addrs {
		e.Addresses = append(e.Addresses, s.take())
	}
	return nil
}

func (c *Cloud) remove(e *eni) {
	s := c.subnets[e.SubnetID]
	delete(s.used, e.Primary)
	for _, a := range e.Addresses {
		delete(s.used, a)
	}
	for _, p := range e.Prefixes {
		s.mark(p, false)
	}
	delete(c.enis, e.ID)
}

func (c *Cloud) find(op, id string) (*eni, error) {
	e, ok := c.enis[id]
	if !ok {
		return nil, refuse(op, cloud.Gone, "InvalidNetworkInterfaceID.NotFound", "no interface %s", id)
	}
	return e, nil
}

func (c *Cloud) limits(e *eni) cloud.Limits {
	return c.types[c.instances[e.Attachment.InstanceID].Type]
}

// AttachENI implements cloud.API.
func (c *Cloud) AttachENI(ctx context.Context, id, instance string, index int) (attachment string, err error) {
	err = c.change(ctx, "AttachENI", id, 0, func() error {
		const op = "AttachNetworkInterface"
		e, err := c.find(op, id)
		if err != nil {
			return err
		}
		in, ok := c.instances[instance]
		if !ok {
			return refuse(op, cloud.Gone, "InvalidInstanceID.NotFound", "no instance %s", instance)
		}
		if e.Attachment != nil {
			return refuse(op, cloud.Conflict, "InvalidNetworkInterface.InUse", "%s is attached", id)
		}
		n := 0
		for _, o := range c.enis {
			if !on(o.ENI, instance) {
				continue
			}
			if n++; o.Attachment.DeviceIndex == index {
				return refuse(op, cloud.Conflict, "InvalidParameterValue", "device index %d is taken", index)
			}
		}
		if n >= c.types[in.Type].MaxENIs {
			return refuse(op, cloud.LimitReached, "AttachmentLimitExceeded", "%d interfaces", n)
		}
		c.seq++
		attachment = fmt.Sprintf("attach-%04d", c.seq)
		e.Status, e.settled = "in-use", c.clock.Now().Add(c.attach)
		e.Attachment = &cloud.Attachment{ID: attachment, InstanceID: instance, DeviceIndex: index, Status: "attaching"}
		return nil
	})
	return attachment, err
}

// DetachENI implements cloud.API.
func (c *Cloud) DetachENI(ctx context.Context, attachment string) error {
	return c.change(ctx, "DetachENI", attachment, 0, func() error {
		for _, e := range c.enis {
			if e.Attachment == nil || e.Attachment.ID != attachment {
				continue
			}
			if e.Attachment.DeviceIndex == 0 {
				return refuse("DetachNetworkInterface", cloud.Bug, "OperationNotPermitted", "the primary interface stays")
			}
			a := *e.Attachment
			a.Status = "detaching"
			e.Attachment, e.settled = &a, c.clock.Now().Add(c.attach)
			return nil
		}
		return refuse("DetachNetworkInterface", cloud.Gone, "InvalidAttachmentID.NotFound", "no attachment %s", attachment)
	})
}

// DeleteENI implements cloud.API.
func (c *Cloud) DeleteENI(ctx context.Context, id string) error {
	return c.change(ctx, "DeleteENI", id, 0, func() error {
		e, err := c.find("DeleteNetworkInterface", id)
		if err != nil {
			return err
		}
		if e.Attachment != nil {
			return refuse("DeleteNetworkInterface", cloud.Conflict, "InvalidNetworkInterface.InUse", "%s is attached", id)
		}
		c.remove(e)
		return nil
	})
}

// SetDeleteOnTermination implements cloud.API.
func (c *Cloud) SetDeleteOnTermination(ctx context.Context, id, attachment string, on bool) error {
	return c.change(ctx, "SetDeleteOnTermination", id, 0, func() error {
		e, err := c.find("ModifyNetworkInterfaceAttribute", id)
		if err != nil {
			return err
		}
		if e.Attachment == nil || e.Attachment.ID != attachment {
			return refuse("ModifyNetworkInterfaceAttribute", cloud.Gone, "InvalidAttachmentID.NotFound", "no attachment %s", attachment)
		}
		a := *e.Attachment
		a.DeleteOnTermination = on
		e.Attachment = &a
		return nil
	})
}

// AssignAddresses implements cloud.API.
func (c *Cloud) AssignAddresses(ctx context.Context, id string, n int) (out []netip.Addr, err error) {
	err = c.change(ctx, "AssignAddresses", id, n, func() error {
		e, err := c.more(id, n, 0)
		if err == nil {
			out = slices.Clone(e.Addresses[len(e.Addresses)-n:])
		}
		return err
	})
	return out, err
}

// AssignPrefixes implements cloud.API.
func (c *Cloud) AssignPrefixes(ctx context.Context, id string, n int) (out []netip.Prefix, err error) {
	err = c.change(ctx, "AssignPrefixes", id, n, func() error {
		e, err := c.more(id, 0, n)
		if err == nil {
			out = slices.Clone(e.Prefixes[len(e.Prefixes)-n:])
		}
		return err
	})
	return out, err
}

func (c *Cloud) more(id string, addrs, prefixes int) (*eni, error) {
	const op = "AssignPrivateIpAddresses"
	e, err := c.find(op, id)
	if err != nil {
		return nil, err
	}
	if e.Attachment != nil && 1+len(e.Addresses)+len(e.Prefixes)+addrs+prefixes > c.limits(e).IPv4PerENI {
		return nil, refuse(op, cloud.LimitReached, "PrivateIpAddressLimitExceeded", "%s holds %d", id, len(e.Addresses))
	}
	return e, c.assign(op, e, addrs, prefixes)
}

// UnassignAddresses implements cloud.API.
func (c *Cloud) UnassignAddresses(ctx context.Context, id string, addrs []netip.Addr) error {
	return c.change(ctx, "UnassignAddresses", id, len(addrs), func() error {
		e, err := c.find("UnassignPrivateIpAddresses", id)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			if !slices.Contains(e.Addresses, a) {
				return refuse("UnassignPrivateIpAddresses", cloud.Bug, "InvalidParameterValue", "%v is not of %s", a, id)
			}
		}
		e.Addresses = slices.DeleteFunc(e.Addresses, func(a netip.Addr) bool { return slices.Contains(addrs, a) })
		for _, a := range addrs {
			delete(c.subnets[e.SubnetID].used, a)
		}
		return nil
	})
}

// UnassignPrefixes implements cloud.API.
func (c *Cloud) UnassignPrefixes(ctx context.Context, id string, prefixes []netip.Prefix) error {
	return c.change(ctx, "UnassignPrefixes", id, len(prefixes), func() error {
		e, err := c.find("UnassignPrivateIpAddresses", id)
		if err != nil {
			return err
		}
		for _, p := range prefixes {
			if !slices.Contains(e.Prefixes, p) {
				return refuse("UnassignPrivateIpAddresses", cloud.Bug, "InvalidParameterValue", "%v is not of %s", p, id)
			}
			c.subnets[e.SubnetID].mark(p, false)
		}
		e.Prefixes = slices.DeleteFunc(e.Prefixes, func(p netip.Prefix) bool { return slices.Contains(prefixes, p) })
		return nil
	})
}

// Tag implements cloud.API.
func (c *Cloud) Tag(ctx context.Context, id string, tags map[string]string) error {
	return c.change(ctx, "Tag", id, 0, func() error {
		e, err := c.find("CreateTags", id)
		if err != nil {
			return err
		}
		if e.Tags == nil {
			e.Tags = map[string]string{}
		}
		maps.Copy(e.Tags, tags)
		return nil
	})
}
