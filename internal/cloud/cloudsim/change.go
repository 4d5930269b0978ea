package cloudsim

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/pace"
)

// CreateENI implements cloud.API.
func (c *Cloud) CreateENI(ctx context.Context, q cloud.CreateENI) (out cloud.ENI, err error) {
	op := pace.CreateENI.Action
	err = c.do(ctx, op, func() error {
		request := fmt.Sprintf("%+v", q)
		if t, ok := c.tokens[q.ClientToken]; ok && q.ClientToken != "" {
			e := c.enis[t.eni]
			switch {
			case t.request != request:
				return refuse(op, cloud.Bug, "IdempotentParameterMismatch", "token %s was used with other parameters", q.ClientToken)
			case e == nil:
				return refuse(op, cloud.Gone, "InvalidNetworkInterfaceID.NotFound", "%s is deleted", t.eni)
			}
			out = clone(e)
			return nil
		}
		s := c.subnets[q.SubnetID]
		switch {
		case s == nil:
			return refuse(op, cloud.Gone, "InvalidSubnetID.NotFound", "no subnet %s", q.SubnetID)
		case q.Addresses < 0 || q.Prefixes < 0 || q.Addresses > 0 && q.Prefixes > 0:
			return refuse(op, cloud.Bug, "InvalidParameterCombination", "expected addresses or prefixes, not both")
		case s.free() < 1+q.Addresses+prefixSize*q.Prefixes:
			return full(op, s)
		}
		for _, g := range q.Groups {
			if _, ok := c.groups[g]; !ok {
				return refuse(op, cloud.Gone, "InvalidGroup.NotFound", "no security group %s", g)
			}
		}
		e := c.newENI(s)
		if err := c.assign(op, e, q.Addresses, q.Prefixes); err != nil {
			c.remove(e)
			return err
		}
		e.Groups, e.Tags, e.Description = slices.Clone(q.Groups), maps.Clone(q.Tags), q.Description
		if at, err := time.Parse(time.RFC3339, e.Tags[cloud.TagCreatedAt]); err == nil {
			e.CreatedAt = at
		}
		c.detached[e.ID] = e
		if q.ClientToken != "" {
			c.tokens[q.ClientToken] = token{request, e.ID}
		}
		out = clone(e)
		return nil
	})
	return out, err
}

func full(op string, s *subnet) error {
	return refuse(op, cloud.SubnetFull, "InsufficientFreeAddressesInSubnet", "subnet %s has %d free addresses", s.ID, s.free())
}

// assign gives an ENI addresses and prefixes, all or nothing. c.mu is held.
func (c *Cloud) assign(op string, e *eni, addrs, prefixes int) error {
	s := c.subnets[e.SubnetID]
	var took []netip.Addr
	var blocks []netip.Prefix
	for range addrs {
		a, ok := s.take()
		if !ok {
			break
		}
		took = append(took, a)
	}
	for range prefixes {
		p, ok := s.takePrefix()
		if !ok {
			break
		}
		blocks = append(blocks, p)
	}
	if len(took) < addrs || len(blocks) < prefixes {
		for _, a := range took {
			s.give(a)
		}
		for _, p := range blocks {
			s.givePrefix(p)
		}
		if prefixes > 0 {
			return refuse(op, cloud.SubnetFull, "InsufficientCidrBlocks", "subnet %s has no %d free /28 blocks", s.ID, prefixes)
		}
		return full(op, s)
	}
	e.Addresses, e.Prefixes = append(e.Addresses, took...), append(e.Prefixes, blocks...)
	return nil
}

// find looks an ENI up. c.mu is held.
func (c *Cloud) find(op, id string) (*eni, error) {
	e := c.enis[id]
	if e == nil {
		return nil, refuse(op, cloud.Gone, "InvalidNetworkInterfaceID.NotFound", "no interface %s", id)
	}
	return e, nil
}

// AttachENI implements cloud.API.
func (c *Cloud) AttachENI(ctx context.Context, id, instanceID string, index int) (attachment string, err error) {
	op := pace.AttachENI.Action
	err = c.do(ctx, op, func() error {
		e, err := c.find(op, id)
		if err != nil {
			return err
		}
		in := c.instances[instanceID]
		if in == nil {
			return refuse(op, cloud.Gone, "InvalidInstanceID.NotFound", "no instance %s", instanceID)
		}
		if e.Attachment != nil {
			return refuse(op, cloud.Conflict, "InvalidNetworkInterface.InUse", "%s is attached", id)
		}
		for _, o := range in.enis {
			if o.Attachment.DeviceIndex == index {
				return refuse(op, cloud.Conflict, "InvalidParameterValue", "device index %d is taken", index)
			}
		}
		if l, _ := c.limitsOf(in.Type); len(in.enis) >= l.MaxENIs {
			return refuse(op, cloud.LimitReached, "AttachmentLimitExceeded", "%s has %d interfaces", instanceID, len(in.enis))
		}
		c.seq++
		attachment = fmt.Sprintf("eni-attach-%08x", c.seq)
		e.Status = "in-use"
		e.Attachment = &cloud.Attachment{ID: attachment, InstanceID: instanceID, DeviceIndex: index, Status: "attaching"}
		in.enis = append(in.enis, e)
		c.attached[attachment] = e
		delete(c.detached, id)
		c.changing(e)
		return nil
	})
	return attachment, err
}

// DetachENI implements cloud.API.
func (c *Cloud) DetachENI(ctx context.Context, attachment string) error {
	op := pace.DetachENI.Action
	return c.do(ctx, op, func() error {
		e := c.attached[attachment]
		switch {
		case e == nil:
			return refuse(op, cloud.Gone, "InvalidAttachmentID.NotFound", "no attachment %s", attachment)
		case e.Attachment.DeviceIndex == 0:
			return refuse(op, cloud.Bug, "OperationNotPermitted", "the primary interface stays")
		case e.Attachment.Status == "detaching":
			return nil
		}
		e.Attachment.Status = "detaching"
		c.changing(e)
		return nil
	})
}

// DeleteENI implements cloud.API.
func (c *Cloud) DeleteENI(ctx context.Context, id string) error {
	op := pace.DeleteENI.Action
	return c.do(ctx, op, func() error {
		e, err := c.find(op, id)
		if err != nil {
			return err
		}
		if e.Attachment != nil {
			return refuse(op, cloud.Conflict, "InvalidNetworkInterface.InUse", "%s is attached", id)
		}
		c.remove(e)
		return nil
	})
}

// SetDeleteOnTermination implements cloud.API.
func (c *Cloud) SetDeleteOnTermination(ctx context.Context, id, attachment string, on bool) error {
	op := pace.ModifyENI.Action
	return c.do(ctx, op, func() error {
		e, err := c.find(op, id)
		if err != nil {
			return err
		}
		if e.Attachment == nil || e.Attachment.ID != attachment {
			return refuse(op, cloud.Gone, "InvalidAttachmentID.NotFound", "no attachment %s", attachment)
		}
		e.Attachment.DeleteOnTermination = on
		return nil
	})
}

// AssignAddresses implements cloud.API.
func (c *Cloud) AssignAddresses(ctx context.Context, id string, n int) (out []netip.Addr, err error) {
	err = c.more(ctx, id, n, 0, func(e *eni) { out = slices.Clone(e.Addresses[len(e.Addresses)-n:]) })
	return out, err
}

// AssignPrefixes implements cloud.API.
func (c *Cloud) AssignPrefixes(ctx context.Context, id string, n int) (out []netip.Prefix, err error) {
	err = c.more(ctx, id, 0, n, func(e *eni) { out = slices.Clone(e.Prefixes[len(e.Prefixes)-n:]) })
	return out, err
}

func (c *Cloud) more(ctx context.Context, id string, addrs, prefixes int, done func(*eni)) error {
	op := pace.Assign.Action
	return c.do(ctx, op, func() error {
		e, err := c.find(op, id)
		if err != nil {
			return err
		}
		if addrs+prefixes < 1 {
			return refuse(op, cloud.Bug, "InvalidParameterValue", "%d addresses asked for: expected at least 1", addrs+prefixes)
		}
		if e.Attachment != nil {
			l, _ := c.limitsOf(c.instances[e.Attachment.InstanceID].Type)
			if 1+len(e.Addresses)+len(e.Prefixes)+addrs+prefixes > l.IPv4PerENI {
				return refuse(op, cloud.LimitReached, "PrivateIpAddressLimitExceeded", "%s holds %d of %d", id, 1+len(e.Addresses)+len(e.Prefixes), l.IPv4PerENI)
			}
		}
		if err := c.assign(op, e, addrs, prefixes); err != nil {
			return err
		}
		done(e)
		return nil
	})
}

// UnassignAddresses implements cloud.API.
func (c *Cloud) UnassignAddresses(ctx context.Context, id string, addrs []netip.Addr) error {
	op := pace.Unassign.Action
	return c.do(ctx, op, func() (err error) {
		e, err := c.find(op, id)
		if err != nil {
			return err
		}
		if e.Addresses, err = without(op, id, e.Addresses, addrs); err != nil {
			return err
		}
		for _, a := range addrs {
			c.subnets[e.SubnetID].give(a)
		}
		return nil
	})
}

// UnassignPrefixes implements cloud.API.
func (c *Cloud) UnassignPrefixes(ctx context.Context, id string, prefixes []netip.Prefix) error {
	op := pace.Unassign.Action
	return c.do(ctx, op, func() (err error) {
		e, err := c.find(op, id)
		if err != nil {
			return err
		}
		if e.Prefixes, err = without(op, id, e.Prefixes, prefixes); err != nil {
			return err
		}
		for _, p := range prefixes {
			c.subnets[e.SubnetID].givePrefix(p)
		}
		return nil
	})
}

// without is have less gone, or have and an error when some of gone is not in it.
func without[T comparable](op, id string, have, gone []T) ([]T, error) {
	left := slices.DeleteFunc(slices.Clone(have), func(v T) bool { return slices.Contains(gone, v) })
	if len(left)+len(gone) != len(have) {
		return have, refuse(op, cloud.Gone, "InvalidParameterValue", "some of %v are not assigned to %s", gone, id)
	}
	return left, nil
}

// Tag implements cloud.API for ENIs.
func (c *Cloud) Tag(ctx context.Context, id string, tags map[string]string) error {
	op := pace.Tag.Action
	return c.do(ctx, op, func() error {
		e, err := c.find(op, id)
		if err != nil {
			return err
		}
		all := make(map[string]string, len(e.Tags)+len(tags))
		maps.Copy(all, e.Tags)
		maps.Copy(all, tags)
		e.Tags = all
		return nil
	})
}
