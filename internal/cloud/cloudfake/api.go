package cloudfake

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/cloud"
)

var _ cloud.API = (*Cloud)(nil)

// do is the frame of every call: latency, faults, the books, the record.
func (c *Cloud) do(ctx context.Context, op, eniID string, n int, work func() error) (err error) {
	c.mu.Lock()
	delay, ok := c.latency[op]
	if !ok {
		delay = c.latency[""]
	}
	c.mu.Unlock()
	if delay > 0 {
		select {
		case <-ctx.Done():
			return &cloud.Error{Class: cloud.Transient, Op: op, Err: ctx.Err()}
		case <-c.clock.After(delay):
		}
	}
	if ctx.Err() != nil {
		return &cloud.Error{Class: cloud.Transient, Op: op, Err: ctx.Err()}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.calls = append(c.calls, Call{Op: op, ENI: eniID, N: n, At: c.clock.Now(), Err: err}) }()
	c.settle()
	f := c.fault(op)
	if f != nil && !f.After {
		return f.Err
	}
	if err := work(); err != nil {
		return err
	}
	if f != nil {
		return f.Err
	}
	return nil
}

// change is do for calls that write.
func (c *Cloud) change(ctx context.Context, op, eniID string, n int, work func() error) error {
	return c.do(ctx, op, eniID, n, func() error {
		if len(c.past) == 0 {
			c.remember()
		}
		err := work()
		if err == nil {
			c.remember()
		}
		return err
	})
}

func (c *Cloud) fault(op string) *Fault {
	for _, f := range c.faults {
		if (f.Op == "" || f.Op == op) && (f.Times == 0 || f.hits < f.Times) {
			f.hits++
			return f
		}
	}
	return nil
}

func refuse(op string, class cloud.Class, code, format string, args ...any) error {
	return &cloud.Error{Class: class, Op: op, Code: code, Message: fmt.Sprintf(format, args...)}
}

// Err makes an error of a class, for faults.
func Err(class cloud.Class, code string) error {
	return &cloud.Error{Class: class, Op: "fault", Code: code, Message: "injected"}
}

// Instance implements cloud.API.
func (c *Cloud) Instance(ctx context.Context, id string) (out cloud.Instance, err error) {
	err = c.do(ctx, "Instance", "", 0, func() error {
		in, ok := c.instances[id]
		if !ok {
			return refuse("DescribeInstances", cloud.Gone, "InvalidInstanceID.NotFound", "no instance %s", id)
		}
		out = in
		out.ENIs = slices.DeleteFunc(c.listing(), func(e cloud.ENI) bool { return !on(e, id) })
		return nil
	})
	return out, err
}

func on(e cloud.ENI, instance string) bool {
	return e.Attachment != nil && e.Attachment.InstanceID == instance
}

// Instances implements cloud.API.
func (c *Cloud) Instances(ctx context.Context, ids []string) (out []cloud.Instance, err error) {
	err = c.do(ctx, "Instances", "", 0, func() error {
		for _, id := range ids {
			if in, ok := c.instances[id]; ok {
				out = append(out, in)
			}
		}
		return nil
	})
	return out, err
}

// Limits implements cloud.API.
func (c *Cloud) Limits(ctx context.Context, itype string) (out cloud.Limits, err error) {
	err = c.do(ctx, "Limits", "", 0, func() error {
		l, ok := c.types[itype]
		if !ok {
			return refuse("DescribeInstanceTypes", cloud.Bug, "InvalidInstanceType", "no type %s", itype)
		}
		out = l
		return nil
	})
	return out, err
}

// ENIs implements cloud.API.
func (c *Cloud) ENIs(ctx context.Context, f cloud.ENIFilter) (out []cloud.ENI, err error) {
	err = c.do(ctx, "ENIs", "", 0, func() error {
		out = slices.DeleteFunc(c.listing(), func(e cloud.ENI) bool {
			return len(f.IDs) > 0 && !slices.Contains(f.IDs, e.ID) ||
				f.InstanceID != "" && !on(e, f.InstanceID) ||
				f.VPCID != "" && e.VPCID != f.VPCID ||
				f.Status != "" && e.Status != f.Status || !tagged(e.Tags, f.Tags)
		})
		return nil
	})
	return out, err
}

func tagged(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Subnets implements cloud.API.
func (c *Cloud) Subnets(ctx context.Context, f cloud.SubnetFilter) (out []cloud.Subnet, err error) {
	err = c.do(ctx, "Subnets", "", 0, func() error {
		for _, id := range slices.Sorted(maps.Keys(c.subnets)) {
			s := c.subnets[id].Subnet
			s.Free = c.subnets[id].free()
			if len(f.IDs) > 0 && !slices.Contains(f.IDs, id) || f.VPCID != "" && s.VPCID != f.VPCID ||
				f.Zone != "" && s.Zone != f.Zone || !tagged(s.Tags, f.Tags) {
				continue
			}
			out = append(out, s)
		}
		return nil
	})
	return out, err
}

// VPCCIDRs implements cloud.API.
func (c *Cloud) VPCCIDRs(ctx context.Context, _ string) (out []netip.Prefix, err error) {
	err = c.do(ctx, "VPCCIDRs", "", 0, func() error {
		for _, s := range c.subnets {
			out = append(out, s.CIDR)
		}
		return nil
	})
	return out, err
}

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

// AssignIPv6 implements cloud.API.
func (c *Cloud) AssignIPv6(ctx context.Context, id string, n int) (out []netip.Addr, err error) {
	err = c.change(ctx, "AssignIPv6", id, n, func() error {
		e, err := c.find("AssignIpv6Addresses", id)
		if err != nil {
			return err
		}
		for range n {
			c.seq++
			a := netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 14: byte(c.seq >> 8), 15: byte(c.seq)})
			e.IPv6 = append(e.IPv6, a)
			out = append(out, a)
		}
		return nil
	})
	return out, err
}

// UnassignIPv6 implements cloud.API.
func (c *Cloud) UnassignIPv6(ctx context.Context, id string, addrs []netip.Addr) error {
	return c.change(ctx, "UnassignIPv6", id, len(addrs), func() error {
		e, err := c.find("UnassignIpv6Addresses", id)
		if err != nil {
			return err
		}
		e.IPv6 = slices.DeleteFunc(e.IPv6, func(a netip.Addr) bool { return slices.Contains(addrs, a) })
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
