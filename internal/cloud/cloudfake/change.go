package cloudfake

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
func (c *Cloud) CreateENI(ctx context.Context, r cloud.CreateENI) (out cloud.ENI, err error) {
	q := call{"CreateENI", pace.CreateENI, "", r.Addresses + r.Prefixes}
	err = c.change(ctx, q, func() error {
		request := fmt.Sprintf("%+v", r)
		if t, ok := c.tokens[r.ClientToken]; ok && r.ClientToken != "" {
			e := c.enis[t.eni]
			switch {
			case t.request != request:
				return q.refuse(cloud.Bug, "IdempotentParameterMismatch", "token %s was used with other parameters", r.ClientToken)
			case e == nil:
				return q.refuse(cloud.Gone, "InvalidNetworkInterfaceID.NotFound", "%s is deleted", t.eni)
			}
			out = clone(e)
			return nil
		}
		s := c.subnets[r.SubnetID]
		switch {
		case s == nil:
			return q.refuse(cloud.Gone, "InvalidSubnetID.NotFound", "no subnet %s", r.SubnetID)
		case r.Addresses < 0 || r.Prefixes < 0 || r.Addresses > 0 && r.Prefixes > 0:
			return q.refuse(cloud.Bug, "InvalidParameterCombination", "expected addresses or prefixes, not both")
		case s.left < 1+r.Addresses+prefixSize*r.Prefixes:
			return q.full(s)
		}
		for _, g := range r.Groups {
			if _, ok := c.groups[g]; !ok {
				return q.refuse(cloud.Gone, "InvalidGroup.NotFound", "no security group %s", g)
			}
		}
		e := c.newENI(s)
		if err := c.assign(q, e, r.Addresses, r.Prefixes); err != nil {
			c.remove(e)
			return err
		}
		e.Groups, e.Description = slices.Clone(r.Groups), r.Description
		e.tag(r.Tags)
		c.detached[e.ID] = e
		if r.ClientToken != "" {
			c.tokens[r.ClientToken] = token{request, e.ID}
		}
		out = clone(e)
		return nil
	})
	return out, err
}

func (q call) full(s *subnet) error {
	return q.refuse(cloud.SubnetFull, "InsufficientFreeAddressesInSubnet", "subnet %s has %d free addresses", s.ID, s.left)
}

// assign gives an ENI addresses and prefixes, all or nothing. c.mu is held.
func (c *Cloud) assign(q call, e *eni, addrs, prefixes int) error {
	s := c.subnets[e.SubnetID]
	if s.left < addrs {
		return q.full(s)
	}
	var blocks []netip.Prefix
	for range prefixes {
		p, ok := s.takePrefix()
		if !ok {
			for _, p := range blocks {
				s.givePrefix(p)
			}
			return q.refuse(cloud.SubnetFull, "InsufficientCidrBlocks", "subnet %s has no %d free /28 blocks", s.ID, prefixes)
		}
		blocks = append(blocks, p)
	}
	e.Prefixes = append(e.Prefixes, blocks...)
	for range addrs {
		a, _ := s.take()
		e.Addresses = append(e.Addresses, a)
	}
	return nil
}

// tag adds tags. The map is replaced, never changed: callers have it.
func (e *eni) tag(tags map[string]string) {
	all := make(map[string]string, len(e.Tags)+len(tags))
	maps.Copy(all, e.Tags)
	maps.Copy(all, tags)
	e.Tags = all
	if at, err := time.Parse(time.RFC3339, all[cloud.TagCreatedAt]); err == nil {
		e.CreatedAt = at
	}
}

// changeENI is change for calls that name an ENI.
func (c *Cloud) changeENI(ctx context.Context, q call, work func(e *eni) error) error {
	return c.change(ctx, q, func() error {
		e := c.enis[q.eni]
		if e == nil {
			return q.refuse(cloud.Gone, "InvalidNetworkInterfaceID.NotFound", "no interface %s", q.eni)
		}
		return work(e)
	})
}

// AttachENI implements cloud.API.
func (c *Cloud) AttachENI(ctx context.Context, id, instanceID string, index int) (attachment string, err error) {
	q := call{"AttachENI", pace.AttachENI, id, 0}
	err = c.changeENI(ctx, q, func(e *eni) error {
		in := c.instances[instanceID]
		if in == nil {
			return q.refuse(cloud.Gone, "InvalidInstanceID.NotFound", "no instance %s", instanceID)
		}
		if e.Attachment != nil {
			return q.refuse(cloud.Conflict, "InvalidNetworkInterface.InUse", "%s is attached", id)
		}
		for _, o := range in.enis {
			if o.Attachment.DeviceIndex == index {
				return q.refuse(cloud.Conflict, "InvalidParameterValue", "device index %d is taken", index)
			}
		}
		if l, _ := c.limitsOf(in.Type); len(in.enis) >= l.MaxENIs {
			return q.refuse(cloud.LimitReached, "AttachmentLimitExceeded", "%s has %d interfaces", instanceID, len(in.enis))
		}
		c.seq++
		attachment = fmt.Sprintf("eni-attach-%08x", c.seq)
		c.attach(e, in, cloud.Attachment{ID: attachment, DeviceIndex: index, Status: "attaching"})
		c.changing(e)
		return nil
	})
	return attachment, err
}

// DetachENI implements cloud.API.
func (c *Cloud) DetachENI(ctx context.Context, attachment string) error {
	q := call{"DetachENI", pace.DetachENI, attachment, 0}
	return c.change(ctx, q, func() error {
		e := c.attached[attachment]
		switch {
		case e == nil:
			return q.refuse(cloud.Gone, "InvalidAttachmentID.NotFound", "no attachment %s", attachment)
		case e.Attachment.DeviceIndex == 0:
			return q.refuse(cloud.Bug, "OperationNotPermitted", "the primary interface stays")
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
	q := call{"DeleteENI", pace.DeleteENI, id, 0}
	return c.changeENI(ctx, q, func(e *eni) error {
		if e.Attachment != nil {
			return q.refuse(cloud.Conflict, "InvalidNetworkInterface.InUse", "%s is attached", id)
		}
		c.remove(e)
		return nil
	})
}

// SetDeleteOnTermination implements cloud.API.
func (c *Cloud) SetDeleteOnTermination(ctx context.Context, id, attachment string, on bool) error {
	q := call{"SetDeleteOnTermination", pace.ModifyENI, id, 0}
	return c.changeENI(ctx, q, func(e *eni) error {
		if e.Attachment == nil || e.Attachment.ID != attachment {
			return q.refuse(cloud.Gone, "InvalidAttachmentID.NotFound", "no attachment %s", attachment)
		}
		e.Attachment.DeleteOnTermination = on
		return nil
	})
}

// AssignAddresses implements cloud.API.
func (c *Cloud) AssignAddresses(ctx context.Context, id string, n int) (out []netip.Addr, err error) {
	err = c.more(ctx, call{"AssignAddresses", pace.Assign, id, n}, n, 0, func(e *eni) { out = slices.Clone(e.Addresses[len(e.Addresses)-n:]) })
	return out, err
}

// AssignPrefixes implements cloud.API.
func (c *Cloud) AssignPrefixes(ctx context.Context, id string, n int) (out []netip.Prefix, err error) {
	err = c.more(ctx, call{"AssignPrefixes", pace.Assign, id, n}, 0, n, func(e *eni) { out = slices.Clone(e.Prefixes[len(e.Prefixes)-n:]) })
	return out, err
}

func (c *Cloud) more(ctx context.Context, q call, addrs, prefixes int, done func(*eni)) error {
	return c.changeENI(ctx, q, func(e *eni) error {
		if q.n < 1 {
			return q.refuse(cloud.Bug, "InvalidParameterValue", "%d addresses asked for: expected at least 1", q.n)
		}
		if e.Attachment != nil {
			l, _ := c.limitsOf(c.instances[e.Attachment.InstanceID].Type)
			if has := 1 + len(e.Addresses) + len(e.Prefixes); has+q.n > l.IPv4PerENI {
				return q.refuse(cloud.LimitReached, "PrivateIpAddressLimitExceeded", "%s holds %d of %d", q.eni, has, l.IPv4PerENI)
			}
		}
		err := c.assign(q, e, addrs, prefixes)
		if err == nil {
			done(e)
		}
		return err
	})
}

// UnassignAddresses implements cloud.API.
func (c *Cloud) UnassignAddresses(ctx context.Context, id string, addrs []netip.Addr) error {
	q := call{"UnassignAddresses", pace.Unassign, id, len(addrs)}
	return c.changeENI(ctx, q, func(e *eni) (err error) {
		e.Addresses, err = without(q, e.Addresses, addrs, c.subnets[e.SubnetID].give)
		return err
	})
}

// UnassignPrefixes implements cloud.API.
func (c *Cloud) UnassignPrefixes(ctx context.Context, id string, prefixes []netip.Prefix) error {
	q := call{"UnassignPrefixes", pace.Unassign, id, len(prefixes)}
	return c.changeENI(ctx, q, func(e *eni) (err error) {
		e.Prefixes, err = without(q, e.Prefixes, prefixes, c.subnets[e.SubnetID].givePrefix)
		return err
	})
}

// without is have less gone, which is given back; or have and an error when some
// of gone is not in it.
func without[T comparable](q call, have, gone []T, give func(T)) ([]T, error) {
	left := slices.DeleteFunc(slices.Clone(have), func(v T) bool { return slices.Contains(gone, v) })
	if len(left)+len(gone) != len(have) {
		return have, q.refuse(cloud.Gone, "InvalidParameterValue", "some of %v are not assigned to %s", gone, q.eni)
	}
	for _, v := range gone {
		give(v)
	}
	return left, nil
}

// Tag implements cloud.API for ENIs.
func (c *Cloud) Tag(ctx context.Context, id string, tags map[string]string) error {
	return c.changeENI(ctx, call{"Tag", pace.Tag, id, 0}, func(e *eni) error { e.tag(tags); return nil })
}
