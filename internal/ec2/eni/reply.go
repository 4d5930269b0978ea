package eni

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipfamily"
)

// The reply of a call is taken for the truth at once, so it is compared with
// what was asked for and what is known first. One that does not fit is as good
// as lost: the call took effect in some way, and describing the ENI tells in
// which. (That an assignment names as many as were asked for, and the right ENI,
// is for the cloud's client to see.)

// badReply is the error for a reply that does not fit; op is the cloud's name for
// the action.
func badReply(op, format string, args ...any) error {
	return &cloud.Error{Class: cloud.Transient, Op: op, Message: "the reply cannot be true: " + fmt.Sprintf(format, args...)}
}

// gone is the error for what does not exist, as op showed.
func gone(op, format string, args ...any) error {
	return &cloud.Error{Class: cloud.Gone, Op: op, Message: fmt.Sprintf(format, args...)}
}

// checkAssigned judges the addresses and prefixes that a reply says were
// assigned to k: nobody has them, and they are of k's subnet, if that is known.
func (v *view) checkAssigned(k *known, given []netip.Prefix, subnet []netip.Prefix) error {
	return checkFree(assignOp(given), k.ID, given, subnet, v.list())
}

// assignOp is EC2's name for the action that assigns addresses or prefixes, which
// are of one family.
func assignOp(things []netip.Prefix) string {
	if len(things) > 0 && ipfamily.Of(things[0].Addr()) == ipfamily.IPv6 {
		return "AssignIpv6Addresses"
	}
	return "AssignPrivateIpAddresses"
}

// checkFree refuses things that are not of the subnet's blocks, or that one of
// others has. Of a family of which no block is known, all may be. What is being
// released may have gone already, and come again.
func checkFree(op, to string, things []netip.Prefix, subnet []netip.Prefix, others []*known) error {
	for i, t := range things {
		blocks := without(subnet, func(b netip.Prefix) bool { return ipfamily.Of(b.Addr()) != ipfamily.Of(t.Addr()) })
		if len(blocks) > 0 && !slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Contains(t.Addr()) && t.Bits() >= b.Bits() }) {
			return badReply(op, "%v for %s is not of its subnet, which has %v", brief(t), to, blocks)
		}
		if slices.ContainsFunc(things[:i], t.Overlaps) {
			return badReply(op, "%v for %s is named twice", brief(t), to)
		}
		for _, k := range others {
			if k.Primary.IsValid() && t.Contains(k.Primary) {
				return badReply(op, "%v for %s is the primary address of %s", brief(t), to, k.ID)
			}
			if slices.ContainsFunc(k.kept(), t.Overlaps) {
				return badReply(op, "%v for %s is of %s already", brief(t), to, k.ID)
			}
		}
	}
	return nil
}

// checkCreated judges an ENI that a reply says was created on a request for an
// instance, in a subnet with blocks; native: of IPv6 alone.
func (v *view) checkCreated(e cloud.ENI, q cloud.CreateENI, instance string, subnet []netip.Prefix, native bool) error {
	const op = "CreateNetworkInterface"
	// As the reply has them, so that what is named twice shows.
	things := held(e.Addresses, e.Prefixes, e.IPv6, e.IPv6Prefixes)
	switch {
	case e.Type != "" && e.Type != cmp.Or(q.Type, cloud.InterfaceOrdinary):
		return badReply(op, "%s is of type %s, asked for %s", e.ID, e.Type, cmp.Or(q.Type, cloud.InterfaceOrdinary))
	case e.SubnetID != "" && e.SubnetID != q.SubnetID:
		return badReply(op, "%s is in %s, asked for %s", e.ID, e.SubnetID, q.SubnetID)
	case e.Attachment != nil && e.Attachment.InstanceID != instance:
		return badReply(op, "%s is on instance %q", e.ID, e.Attachment.InstanceID)
	case native && e.Primary.IsValid():
		return badReply(op, "%s has the address %v, and its subnet %s is of IPv6 alone", e.ID, e.Primary, q.SubnetID)
	case e.Primary.IsValid() && slices.ContainsFunc(things, func(p netip.Prefix) bool { return p.Contains(e.Primary) }):
		return badReply(op, "%s has its primary address for pods", e.ID)
	}
	if err := checkAmount(op, e, q.Amount); err != nil {
		return err
	}
	if len(e.Tags) > 0 { // a reply may leave them out
		for _, name := range slices.Sorted(maps.Keys(q.Tags)) {
			if e.Tags[name] != q.Tags[name] {
				return badReply(op, "%s has the tag %s=%q, asked for %q", e.ID, name, e.Tags[name], q.Tags[name])
			}
		}
	}
	// A listing may have shown it while the call was repeated.
	if old, ok := v.enis[e.ID]; ok && old.createdTag != q.Tags[TagCreatedAt] {
		return badReply(op, "%s was there before", e.ID)
	}
	others := slices.DeleteFunc(v.list(), func(o *known) bool { return o.ID == e.ID })
	for _, o := range others {
		if len(e.MAC) > 0 && bytes.Equal(e.MAC, o.MAC) {
			return badReply(op, "%s has the MAC address of %s", e.ID, o.ID)
		}
	}
	return checkFree(op, e.ID, append(things, ownAddress(e.Primary)...), subnet, others)
}

// ownAddress is an ENI's primary address, if it has one.
func ownAddress(primary netip.Addr) []netip.Prefix {
	if !primary.IsValid() {
		return nil
	}
	return []netip.Prefix{cloud.HostPrefix(primary)}
}

// checkAmount judges how much a new ENI has of what was asked for. One IPv6 address
// more may be its subnet's doing.
func checkAmount(op string, e cloud.ENI, n cloud.Amount) error {
	if len(e.Addresses) != n.Addresses || len(e.Prefixes) != n.Prefixes {
		return badReply(op, "%s has %d addresses and %d prefixes, asked for %d and %d", e.ID, len(e.Addresses), len(e.Prefixes), n.Addresses, n.Prefixes)
	}
	if more := len(e.IPv6) - n.IPv6; more < 0 || more > 1 || len(e.IPv6Prefixes) != n.IPv6Prefixes {
		return badReply(op, "%s has %d IPv6 addresses and %d IPv6 prefixes, asked for %d and %d", e.ID, len(e.IPv6), len(e.IPv6Prefixes), n.IPv6, n.IPv6Prefixes)
	}
	return nil
}

// checkOthers refuses things of a subnet that another node of the process has.
func (r *Reconciler) checkOthers(op, to, subnet string, things []netip.Prefix) error {
	for _, t := range things {
		if other := r.fleet.Elsewhere(subnet, t); other != "" {
			return badReply(op, "%v for %s is of %s, which is another node's", brief(t), to, other)
		}
	}
	return nil
}

// checkAttached judges the ID of an attachment.
func (v *view) checkAttached(k *known, attachment string) error {
	for _, o := range v.list() {
		if o.ID != k.ID && o.Attachment != nil && o.Attachment.ID == attachment {
			return badReply("AttachNetworkInterface", "the attachment %s of %s is that of %s", attachment, k.ID, o.ID)
		}
	}
	return nil
}

// brief is a thing as people write it: an address without its length.
func brief(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}
