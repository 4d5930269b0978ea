package cloudfake

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ipfamily"
)

// CreateENI implements cloud.API.
func (c *Cloud) CreateENI(ctx context.Context, r cloud.CreateENI) (out cloud.ENI, err error) {
	q := call{"CreateENI", pace.CreateENI, "", total(r.Amount)}
	err = c.change(ctx, q, func() error {
		request := fmt.Sprintf("%+v", r)
		if t, ok := c.State.tokens[r.ClientToken]; ok && r.ClientToken != "" {
			e := c.State.enis.byID[t.eni]
			switch {
			case t.request != request:
				return q.refuse(cloud.Bug, "IdempotentParameterMismatch", "token %s was used with other parameters", r.ClientToken)
			case e == nil:
				return q.refuse(cloud.Gone, "InvalidNetworkInterfaceID.NotFound", "%s is deleted", t.eni)
			}
			out = clone(e)
			return nil
		}
		e, err := c.State.create(q, r)
		if err != nil {
			return err
		}
		if r.ClientToken != "" {
			c.State.tokens[r.ClientToken] = token{request: request, eni: e.ID}
		}
		out = clone(e)
		return nil
	})
	return out, err
}

// create creates a detached ENI. State.mu is held.
func (st *State) create(q call, r cloud.CreateENI) (*eni, error) {
	s := st.subnets[r.SubnetID]
	switch {
	case s == nil:
		return nil, q.refuse(cloud.Gone, "InvalidSubnetID.NotFound", "no subnet %s", r.SubnetID)
	case !oneKind(r.Amount):
		return nil, q.refuse(cloud.Bug, "InvalidParameterCombination", "expected addresses or prefixes of a family, not both")
	case r.IPv6Address.IsValid() && r.Has(ipfamily.IPv6):
		return nil, q.refuse(cloud.Bug, "InvalidParameterCombination", "expected one IPv6 address or a number, not both")
	case r.Type != "" && r.Type != cloud.InterfaceOrdinary && r.Type != cloud.InterfaceTrunk:
		return nil, q.refuse(cloud.Bug, "InvalidParameterValue", "type %q: expected an ordinary ENI or a trunk", r.Type)
	}
	if err := st.checkGroups(q, r.Groups); err != nil {
		return nil, err
	}
	if err := s.mayBePrimary(q, r.Primary); err != nil {
		return nil, err
	}
	if s.left < s.own()+r.Addresses+prefixSize*r.Prefixes {
		return nil, q.full(s)
	}
	if err := st.enis.mayBeIPv6(q, s, r.IPv6Address); err != nil {
		return nil, err
	}
	e := st.newENI(s, r.Primary)
	if r.IPv6Address.IsValid() {
		s.six.takeCertain(r.IPv6Address)
		e.IPv6 = append(e.IPv6, r.IPv6Address)
	}
	if s.IPv6Native && !r.IPv6Address.IsValid() {
		r.IPv6 = max(1, r.IPv6) // every ENI in the subnet has one
	}
	if _, err := st.assign(q, e, r.Amount); err != nil {
		st.remove(e)
		return nil, err
	}
	if r.Type != "" {
		e.Type = r.Type
	}
	e.Groups, e.Description = slices.Clone(r.Groups), r.Description
	e.tag(r.Tags)
	st.enis.detached[e.ID] = e
	return e, nil
}

// mayBePrimary checks a requested primary address; zero is valid.
func (s *subnet) mayBePrimary(q call, a netip.Addr) error {
	switch {
	case !a.IsValid():
		return nil
	case s.IPv6Native:
		return q.noIPv4(s)
	case !s.CIDR.Contains(a):
		return q.refuse(cloud.Bug, "InvalidParameterValue", "address %s: expected one of %s", a, s.CIDR)
	case s.reserved(a):
		return q.refuse(cloud.Bug, "InvalidParameterValue", "address %s is reserved in %s", a, s.CIDR)
	case !s.has(a):
		return q.refuse(cloud.Conflict, "InvalidIPAddress.InUse", "address %s is in use", a)
	}
	return nil
}

// mayBeIPv6 checks a requested IPv6 address; zero is valid. State.mu is held.
func (es *enis) mayBeIPv6(q call, s *subnet, a netip.Addr) error {
	switch {
	case !a.IsValid():
		return nil
	case s.six == nil:
		return q.refuse(cloud.SubnetFull, "InvalidParameterValue", "Subnet does not contain any IPv6 CIDR block ranges")
	case !s.six.cidr.Contains(a):
		return q.refuse(cloud.Bug, "InvalidParameterValue", "address %s: expected one of %s", a, s.six.cidr)
	}
	for _, e := range es.byID {
		if slices.Contains(e.IPv6, a) {
			return q.refuse(cloud.Conflict, "InvalidIPAddress.InUse", "address %s is in use", a)
		}
	}
	return nil
}

// maxGroups is the maximum number of security groups of an ENI (VPC quotas, "Security groups per network
// interface").
const maxGroups = 5

// checkGroups checks requested security groups. State.mu is held.
func (st *State) checkGroups(q call, groups []string) error {
	for _, g := range groups {
		if _, ok := st.groups[g]; !ok {
			return q.refuse(cloud.Gone, "InvalidSecurityGroupID.NotFound", "no security group %s", g)
		}
	}
	if n := len(slices.Compact(slices.Sorted(slices.Values(groups)))); n > maxGroups {
		return q.refuse(cloud.LimitReached, "SecurityGroupsPerInterfaceLimitExceeded", "%d security groups: expected at most %d", n, maxGroups)
	}
	return nil
}

// total is the number of addresses and prefixes in an amount.
func total(n cloud.Amount) int { return n.Addresses + n.Prefixes + n.IPv6 + n.IPv6Prefixes }

// oneKind reports whether an amount has addresses or prefixes, but not both, of each family.
func oneKind(n cloud.Amount) bool {
	for _, f := range ipfamily.Dual.Families() {
		if addresses, prefixes := n.Of(f); addresses < 0 || prefixes < 0 || addresses > 0 && prefixes > 0 {
			return false
		}
	}
	return true
}

func (q call) full(s *subnet) error {
	return q.refuse(cloud.SubnetFull, "InsufficientFreeAddressesInSubnet", "subnet %s has %d free addresses", s.ID, s.left)
}

// noIPv4 rejects IPv4 in an IPv6-only subnet.
func (q call) noIPv4(s *subnet) error {
	return q.refuse(cloud.Bug, "InvalidParameterCombination", "subnet %s is IPv6-only", s.ID)
}

// assign assigns all requested addresses or prefixes to an ENI, or none. State.mu is held.
func (st *State) assign(q call, e *eni, n cloud.Amount) ([]netip.Prefix, error) {
	s := st.subnets[e.SubnetID]
	switch {
	case s.IPv6Native && n.Has(ipfamily.IPv4):
		return nil, q.noIPv4(s)
	case s.left < n.Addresses:
		return nil, q.full(s)
	case !n.Has(ipfamily.IPv6):
	case s.six == nil:
		return nil, q.refuse(cloud.SubnetFull, "InvalidParameterValue", "Subnet does not contain any IPv6 CIDR block ranges")
	case s.six.free() < n.IPv6Prefixes:
		return nil, q.refuse(cloud.SubnetFull, "InsufficientCidrBlocks", "subnet %s has no %d free /80 blocks", s.ID, n.IPv6Prefixes)
	}
	var blocks []netip.Prefix
	for range n.Prefixes {
		p, ok := s.takePrefix()
		if !ok {
			for _, p := range blocks {
				s.givePrefix(p)
			}
			return nil, q.refuse(cloud.SubnetFull, "InsufficientCidrBlocks", "subnet %s has no %d free /28 blocks", s.ID, n.Prefixes)
		}
		blocks = append(blocks, p)
	}
	e.Prefixes = append(e.Prefixes, blocks...)
	for range n.Addresses {
		a, _ := s.take()
		e.Addresses = append(e.Addresses, a)
		blocks = append(blocks, cloud.HostPrefix(a))
	}
	for range n.IPv6Prefixes {
		p := s.six.takePrefix()
		e.IPv6Prefixes = append(e.IPv6Prefixes, p)
		blocks = append(blocks, p)
	}
	for range n.IPv6 {
		a := s.six.take()
		e.IPv6 = append(e.IPv6, a)
		blocks = append(blocks, cloud.HostPrefix(a))
	}
	return blocks, nil
}

// tag adds tags. It replaces the map, because callers share it.
func (e *eni) tag(tags map[string]string) {
	all := make(map[string]string, len(e.Tags)+len(tags))
	maps.Copy(all, e.Tags)
	maps.Copy(all, tags)
	e.Tags = all
}

// changeENI is change for calls on a particular ENI.
func (c *Cloud) changeENI(ctx context.Context, q call, work func(e *eni) error) error {
	return c.change(ctx, q, func() error {
		e := c.State.enis.byID[q.eni]
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
		in := c.State.enis.instances[instanceID]
		if in == nil {
			return q.refuse(cloud.Gone, "InvalidInstanceID.NotFound", "no instance %s", instanceID)
		}
		switch {
		case e.Status != "available":
			return q.refuse(cloud.Conflict, "InvalidNetworkInterface.InUse", "%s is in use", id)
		case e.Type == cloud.InterfaceTrunk && limits.Branches(in.Type) == 0:
			return q.refuse(cloud.Bug, "UnsupportedOperation", "a %s has no trunks", in.Type)
		}
		l, _ := c.State.enis.limitsOf(in.Type)
		if !l.Prefixes && c.State.subnets[e.SubnetID].IPv6Native {
			return q.refuse(cloud.Bug, "UnsupportedOperation", "a %s is not built on Nitro, as instances in IPv6-only subnet %s", in.Type, e.SubnetID)
		}
		for _, o := range in.enis {
			if o.Attachment.DeviceIndex == index {
				return q.refuse(cloud.Conflict, "InvalidParameterValue", "device index %d is taken", index)
			}
		}
		if len(in.enis) >= l.MaxENIs {
			return q.refuse(cloud.LimitReached, "AttachmentLimitExceeded", "%s has %d interfaces", instanceID, len(in.enis))
		}
		c.State.enis.seq++
		attachment = fmt.Sprintf("eni-attach-%08x", c.State.enis.seq)
		c.State.enis.attach(e, in, cloud.Attachment{ID: attachment, DeviceIndex: index, Status: "attaching"})
		c.State.enis.changing(e)
		return nil
	})
	return attachment, err
}

// DetachENI implements cloud.API.
func (c *Cloud) DetachENI(ctx context.Context, attachment string) error {
	q := call{"DetachENI", pace.DetachENI, attachment, 0}
	return c.change(ctx, q, func() error {
		e := c.State.enis.attached[attachment]
		switch {
		case e == nil:
			return q.refuse(cloud.Gone, "InvalidAttachmentID.NotFound", "no attachment %s", attachment)
		case e.Attachment.DeviceIndex == 0:
			return q.refuse(cloud.Bug, "OperationNotPermitted", "the primary interface cannot be detached")
		case e.Attachment.Status == "detaching":
			return nil
		case len(e.branches) > 0:
			return q.refuse(cloud.Conflict, "DependencyViolation", "%s has %d branches", e.ID, len(e.branches))
		}
		e.Attachment.Status = "detaching"
		c.State.enis.changing(e)
		return nil
	})
}

// DeleteENI implements cloud.API. It ends the association of a branch first.
func (c *Cloud) DeleteENI(ctx context.Context, id string) error {
	q := call{"DeleteENI", pace.DeleteENI, id, 0}
	return c.changeENI(ctx, q, func(e *eni) error {
		if e.Attachment != nil {
			return q.refuse(cloud.Conflict, "InvalidParameterValue", "%s is attached", id)
		}
		if e.association.ID != "" {
			c.State.enis.endAssociation(e)
		}
		c.State.remove(e)
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

// slots returns the used address slots of an ENI in a family and the maximum for its instance type. The primary
// IPv4 address takes a slot.
func (e *eni) slots(f ipfamily.Family, l cloud.Limits) (has, most int) {
	if f == ipfamily.IPv6 {
		return len(e.IPv6) + len(e.IPv6Prefixes), l.IPv6PerENI
	}
	return 1 + len(e.Addresses) + len(e.Prefixes), l.IPv4PerENI
}

// AssignAddresses implements cloud.API.
func (c *Cloud) AssignAddresses(ctx context.Context, id string, n cloud.Amount) (out []netip.Prefix, err error) {
	f := n.Family()
	q := call{"AssignAddresses", pace.AssignOf[f], id, total(n)}
	err = c.changeENI(ctx, q, func(e *eni) (err error) {
		switch {
		case q.n < 1, !oneKind(n):
			return q.refuse(cloud.Bug, "InvalidParameterValue", "%+v requested: expected one kind, and at least 1", n)
		case n.Has(ipfamily.IPv4) && n.Has(ipfamily.IPv6):
			return q.refuse(cloud.Bug, "UnknownParameter", "%+v requested: expected one family", n)
		}
		if in := c.State.enis.holder(e); in != nil {
			l, _ := c.State.enis.limitsOf(in.Type)
			if has, most := e.slots(f, l); has+q.n > most {
				return q.refuse(cloud.LimitReached, "PrivateIpAddressLimitExceeded", "%s holds %d %s of %d", q.eni, has, f, most)
			}
		}
		out, err = c.State.assign(q, e, n)
		return err
	})
	return out, err
}

// UnassignAddresses implements cloud.API.
func (c *Cloud) UnassignAddresses(ctx context.Context, id string, things []netip.Prefix) error {
	n := cloud.AmountOf(things)
	f := n.Family()
	q := call{"UnassignAddresses", pace.UnassignOf[f], id, len(things)}
	return c.changeENI(ctx, q, func(e *eni) error {
		if n.Has(ipfamily.IPv4) && n.Has(ipfamily.IPv6) {
			return q.refuse(cloud.Bug, "UnknownParameter", "%v: expected one family", things)
		}
		addrs, prefixes := cloud.Split(things)
		hasAddrs, hasPrefixes := &e.Addresses, &e.Prefixes
		if f == ipfamily.IPv6 {
			hasAddrs, hasPrefixes = &e.IPv6, &e.IPv6Prefixes
		}
		keptAddrs, keptPrefixes := without(*hasAddrs, addrs), without(*hasPrefixes, prefixes)
		if len(keptAddrs)+len(keptPrefixes)+len(things) != len(*hasAddrs)+len(*hasPrefixes) {
			return q.refuse(cloud.Gone, "InvalidParameterValue", "some of %v are not assigned to %s", things, q.eni)
		}
		*hasAddrs, *hasPrefixes = keptAddrs, keptPrefixes
		if s := c.State.subnets[e.SubnetID]; f == ipfamily.IPv6 {
			s.giveAll(nil, nil, prefixes)
		} else {
			s.giveAll(addrs, prefixes, nil)
		}
		return nil
	})
}

// without returns have without the elements of gone.
func without[T comparable](have, gone []T) []T {
	return slices.DeleteFunc(slices.Clone(have), func(v T) bool { return slices.Contains(gone, v) })
}

// Tag implements cloud.API for ENIs.
func (c *Cloud) Tag(ctx context.Context, id string, tags map[string]string) error {
	return c.changeENI(ctx, call{"Tag", pace.Tag, id, 0}, func(e *eni) error { e.tag(tags); return nil })
}
