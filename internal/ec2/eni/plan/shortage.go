package plan

import (
	"fmt"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// Reasons why pods wait although nothing failed, for source.Exhausted.
const (
	ReasonCooling    = "cooling"
	ReasonMaxPods    = "max-pods"
	ReasonENILimit   = "eni-limit"
	ReasonSubnetFull = "subnet-full"
	ReasonFirstIndex = "first-interface-index"
	ReasonNoIPv6     = "no-ipv6"
	ReasonNoIPv4     = "no-ipv4"
)

// Shortage returns why a plan cannot give waiting pods more addresses: a reason and a sentence, or two empty strings
// if it can. Without waiting pods it returns a problem to fix before pods wait: subnets that cannot supply the
// policy's demand. An instance at its limit is not such a problem.
func Shortage(l cloud.Limits, p ipam.Policy, s State) (reason, message string) {
	s = s.drained(l, p)
	t, _, need := s.needs(l, p)
	wait := t.Waiting > t.free()
	if !wait && need <= 0 {
		return "", ""
	}
	b := plannerOf(l, p, s)
	x := explanation{&b}
	if b.need > 0 {
		b.grow()
	}
	if len(b.actions) == 0 && b.places.beyond() {
		return ReasonFirstIndex, fmt.Sprintf("first-interface-index is %d, and the device indexes of this instance end at %d: lower it", p.FirstInterfaceIndex, l.MaxENIs-1)
	}
	if len(b.actions) > 0 || !wait && (!b.hasRoom() || b.subnetForNew() != nil) {
		return "", "" // a warm target may wait for prefixes
	}
	if reason, message := x.noIPv6(s.Subnets); reason != "" {
		return reason, message
	}
	if reason, message := x.noIPv4(s.Subnets); reason != "" {
		return reason, message
	}
	return x.lack(p.Cap(), t, slices.ContainsFunc(s.Subnets, func(sn Subnet) bool { return sn.ForNew }))
}

// explanation describes why a plan has no further actions.
type explanation struct{ plan *planner }

// lack returns the limit that keeps a node from getting more addresses. Candidates means that new ENIs have candidate
// subnets.
func (x explanation) lack(capped int, t tally, candidates bool) (reason, message string) {
	switch {
	case capped > 0 && t.total >= capped && t.Cooling > 0:
		return ReasonCooling, fmt.Sprintf("the node has all %d addresses that it may have, and %d of them are still cooling", t.total, t.Cooling)
	case capped > 0 && t.total >= capped:
		return ReasonMaxPods, fmt.Sprintf("the node has %d addresses, as many as max-pods or max-allocate allow: run fewer pods here, or raise it", t.total)
	case x.plan.hasRoom() && !candidates:
		return ReasonSubnetFull, "none of the configured subnets exists in this node's zone and VPC: configure one that does"
	case x.plan.hasRoom():
		return ReasonSubnetFull, fmt.Sprintf("no subnet that this node may use has a free %s: free some, or configure a further subnet", x.address(ipfamily.IPv4))
	case t.Cooling > 0:
		return ReasonCooling, fmt.Sprintf("every ENI that the instance may have is full, and %d addresses are still cooling", t.Cooling)
	default:
		return ReasonENILimit, fmt.Sprintf("every ENI that the instance may have is full%s (%d addresses used): use a larger instance type, raise MAX_ENI, or use prefixes", x.fullOf(), t.Used)
	}
}

// noIPv6 reports that the instance type or the subnets cannot supply the IPv6 addresses that pods need.
func (x explanation) noIPv6(subnets []Subnet) (reason, message string) {
	if !x.plan.capacity.policy.Families.Has(ipfamily.IPv6) || x.plan.capacity.limits.MaxENIs == 0 {
		return "", ""
	}
	if x.plan.capacity.limits.IPv6PerENI == 0 {
		return ReasonNoIPv6, "the instance type has no IPv6: use another, or IPv4 addresses only (ip-families)"
	}
	list := x.ofUse(subnets)
	if len(list) == 0 || slices.ContainsFunc(list, func(sn Subnet) bool { return !sn.NoIPv6 }) {
		return "", ""
	}
	return ReasonNoIPv6, "no subnet that this node may use has IPv6 addresses: associate an IPv6 CIDR block with one, or use IPv4 addresses only (ip-families)"
}

// noIPv4 reports that the node could grow only in IPv6-only subnets, which have no IPv4 addresses for pods, or do not
// accept ENIs of this instance.
func (x explanation) noIPv4(subnets []Subnet) (reason, message string) {
	list := x.ofUse(subnets)
	switch {
	case len(list) == 0 || slices.ContainsFunc(list, func(sn Subnet) bool { return !sn.IPv6Native }):
		return "", ""
	case x.plan.capacity.policy.Families.Has(ipfamily.IPv4):
		return ReasonNoIPv4, "every subnet that this node may use is IPv6-only: configure one that has IPv4 addresses, or use IPv6 addresses only (ip-families)"
	case !x.plan.capacity.limits.Prefixes:
		return ReasonNoIPv4, "every subnet that this node may use is IPv6-only, and EC2 allows only instances built on Nitro there: configure one that has IPv4 addresses, or use another instance type"
	}
	return "", ""
}

// ofUse returns the subnets in which the node could grow if they were unlimited: those of ENIs with room and, if
// another ENI fits, the candidates for new ENIs.
func (x explanation) ofUse(subnets []Subnet) (list []Subnet) {
	_, further := x.plan.places.free()
	for _, sn := range subnets {
		if further && sn.ForNew || slices.ContainsFunc(x.plan.enis, func(e ENI) bool { return e.Subnet == sn.ID && x.plan.capacity.roomOn(e) }) {
			list = append(list, sn)
		}
	}
	return list
}

// address returns the term for an address of a family; the family is omitted if pods get only IPv4 addresses.
func (x explanation) address(f ipfamily.Family) string {
	if f == ipfamily.IPv4 && !x.plan.capacity.policy.Families.Has(ipfamily.IPv6) {
		return "address"
	}
	return f.String() + " address"
}

// fullOf names the family for which the ENIs have no more room, if pods are dual-stack.
func (x explanation) fullOf() string {
	if len(x.plan.capacity.supplies) < 2 {
		return ""
	}
	for _, s := range x.plan.capacity.supplies {
		full := func(e ENI) bool {
			return !x.plan.capacity.grows(e) || x.plan.capacity.held(e).taken[s.family] >= s.slots && e.count(s.family) == x.plan.capacity.total(e)
		}
		if !slices.ContainsFunc(x.plan.enis, func(e ENI) bool { return !full(e) }) {
			return " of " + s.family.String() + " addresses"
		}
	}
	return ""
}
