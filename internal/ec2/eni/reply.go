package eni

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/placement"
	"github.com/berthnet/berth/internal/ipfamily"
)

// replies validates the replies of calls before the view records them: whether they fit the known state of the node
// and of other nodes. An impossible reply counts as lost: the call took some effect, which a lookup of the ENI
// reveals. The cloud's client has already compared the reply with the request (cloud/aws, reply.go): the ENI's ID,
// and for an assignment the number of addresses.
type replies struct {
	view      *view
	subnets   *placement.Subnets
	elsewhere func(subnetID string, p netip.Prefix) (eniID string) // see Fleet
	instance  string
}

// badReply returns the error for an impossible reply; op is the EC2 action.
func badReply(op, format string, args ...any) error {
	return &cloud.Error{Class: cloud.Transient, Op: op, Message: "the reply cannot be true: " + fmt.Sprintf(format, args...)}
}

// gone returns the error for something that does not exist according to the EC2 action op.
func gone(op, format string, args ...any) error {
	return &cloud.Error{Class: cloud.Gone, Op: op, Message: fmt.Sprintf(format, args...)}
}

// assigned validates the addresses and prefixes that a reply assigns to k: no ENI has them, and they are in k's
// subnet, if its blocks are known.
func (c *replies) assigned(k *known, given []netip.Prefix) error {
	op := assignOp(given)
	if err := checkFree(op, k.ID, given, c.subnets.Blocks(k.SubnetID), c.view.list()); err != nil {
		return err
	}
	return c.ofNoOtherNode(op, k.ID, k.SubnetID, given)
}

// assignOp returns the EC2 action that assigns these addresses or prefixes, which have one family.
func assignOp(given []netip.Prefix) string {
	if len(given) > 0 && ipfamily.Of(given[0].Addr()) == ipfamily.IPv6 {
		return "AssignIpv6Addresses"
	}
	return "AssignPrivateIpAddresses"
}

// checkFree returns an error for addresses that are outside the blocks of the subnet, listed twice, or held by one of
// others. Families without a known block are not checked. An address that is being released may already have been
// assigned again.
func checkFree(op, to string, given []netip.Prefix, subnet []netip.Prefix, others []*known) error {
	for i, t := range given {
		blocks := without(subnet, func(b netip.Prefix) bool { return ipfamily.Of(b.Addr()) != ipfamily.Of(t.Addr()) })
		if len(blocks) > 0 && !slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Contains(t.Addr()) && t.Bits() >= b.Bits() }) {
			return badReply(op, "%v for %s is not in its subnet, which has %v", cloud.FormatPrefix(t), to, blocks)
		}
		if slices.ContainsFunc(given[:i], t.Overlaps) {
			return badReply(op, "%v for %s is named twice", cloud.FormatPrefix(t), to)
		}
		for _, k := range others {
			if k.Primary.IsValid() && t.Contains(k.Primary) {
				return badReply(op, "%v for %s is the primary address of %s", cloud.FormatPrefix(t), to, k.ID)
			}
			if slices.ContainsFunc(k.kept(), t.Overlaps) {
				return badReply(op, "%v for %s already belongs to %s", cloud.FormatPrefix(t), to, k.ID)
			}
		}
	}
	return nil
}

// created validates a reply that creates an ENI for the instance.
func (c *replies) created(e cloud.ENI, q cloud.CreateENI) error {
	const op = "CreateNetworkInterface"
	// Unsorted, so that duplicates are found.
	pods := held(e.Addresses, e.Prefixes, e.IPv6, e.IPv6Prefixes)
	q.Type = cmp.Or(q.Type, cloud.InterfaceOrdinary)
	switch property, got, want := q.Differs(e); {
	case property == "interfaceType":
		return badReply(op, "%s is of type %s, want %s", e.ID, got, want)
	case property != "":
		return badReply(op, "%s has the %s %s, want %s", e.ID, property, got, want)
	case e.SubnetID != "" && e.SubnetID != q.SubnetID:
		return badReply(op, "%s is in %s, want %s", e.ID, e.SubnetID, q.SubnetID)
	case e.Attachment != nil && e.Attachment.InstanceID != c.instance:
		return badReply(op, "%s is on instance %q", e.ID, e.Attachment.InstanceID)
	case c.subnets.Native(q.SubnetID) && e.Primary.IsValid():
		return badReply(op, "%s has the address %v, but its subnet %s is IPv6-only", e.ID, e.Primary, q.SubnetID)
	case e.Primary.IsValid() && slices.ContainsFunc(pods, func(p netip.Prefix) bool { return p.Contains(e.Primary) }):
		return badReply(op, "%s has its primary address for pods", e.ID)
	}
	if err := checkAmount(op, e, q.Amount); err != nil {
		return err
	}
	if err := checkTags(op, e, q.Tags); err != nil {
		return err
	}
	// A listing may have shown the ENI while the call was repeated.
	if old, ok := c.view.enis[e.ID]; ok && old.owner.createdTag != q.Tags[TagCreatedAt] {
		return badReply(op, "%s existed before", e.ID)
	}
	others := without(c.view.list(), func(o *known) bool { return o.ID == e.ID })
	for _, o := range others {
		if len(e.MAC) > 0 && bytes.Equal(e.MAC, o.MAC) {
			return badReply(op, "%s has the MAC address of %s", e.ID, o.ID)
		}
	}
	all := append(pods, ownAddress(e.Primary)...)
	if err := checkFree(op, e.ID, all, c.subnets.Blocks(q.SubnetID), others); err != nil {
		return err
	}
	return c.ofNoOtherNode(op, e.ID, e.SubnetID, all)
}

// checkTags compares the tags of a new ENI with the requested ones. A reply may omit all of them.
func checkTags(op string, e cloud.ENI, asked map[string]string) error {
	if len(e.Tags) == 0 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		if e.Tags[name] != asked[name] {
			return badReply(op, "%s has the tag %s=%q, want %q", e.ID, name, e.Tags[name], asked[name])
		}
	}
	return nil
}

// ownAddress returns an ENI's primary address, if it has one.
func ownAddress(primary netip.Addr) []netip.Prefix {
	if !primary.IsValid() {
		return nil
	}
	return []netip.Prefix{cloud.HostPrefix(primary)}
}

// checkAmount compares the addresses of a new ENI with the request. Its subnet may add one IPv6 address.
func checkAmount(op string, e cloud.ENI, n cloud.Amount) error {
	if len(e.Addresses) != n.Addresses || len(e.Prefixes) != n.Prefixes {
		return badReply(op, "%s has %d addresses and %d prefixes, want %d and %d", e.ID, len(e.Addresses), len(e.Prefixes), n.Addresses, n.Prefixes)
	}
	if more := len(e.IPv6) - n.IPv6; more < 0 || more > 1 || len(e.IPv6Prefixes) != n.IPv6Prefixes {
		return badReply(op, "%s has %d IPv6 addresses and %d IPv6 prefixes, want %d and %d", e.ID, len(e.IPv6), len(e.IPv6Prefixes), n.IPv6, n.IPv6Prefixes)
	}
	return nil
}

// ofNoOtherNode rejects addresses of a subnet that another node of the process has.
func (c *replies) ofNoOtherNode(op, to, subnet string, given []netip.Prefix) error {
	for _, p := range given {
		if other := c.elsewhere(subnet, p); other != "" {
			return badReply(op, "%v for %s belongs to %s of another node", cloud.FormatPrefix(p), to, other)
		}
	}
	return nil
}

// attached validates the ID of a new attachment of k.
func (c *replies) attached(k *known, attachment string) error {
	for _, o := range c.view.list() {
		if o.ID != k.ID && o.Attachment != nil && o.Attachment.ID == attachment {
			return badReply("AttachNetworkInterface", "attachment %s of %s already belongs to %s", attachment, k.ID, o.ID)
		}
	}
	return nil
}
