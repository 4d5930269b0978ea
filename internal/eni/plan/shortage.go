package plan

import (
	"fmt"
	"slices"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/ipam"
)

// Reasons why pods wait although nothing failed, as in source.Exhausted.
const (
	ReasonCooling    = "cooling"
	ReasonMaxPods    = "max-pods"
	ReasonENILimit   = "eni-limit"
	ReasonSubnetFull = "subnet-full"
	ReasonFirstIndex = "first-interface-index"
)

// Shortage tells why a plan cannot give the pods that wait more addresses: a
// reason and a sentence, or two empty strings when it can. Without such pods it
// tells what a person should mend before there are: subnets that cannot give
// what the policy wants. That an instance is at its limit is none of that.
func Shortage(l cloud.Limits, p ipam.Policy, s State) (reason, message string) {
	t := s.tally(p)
	b := newPlanner(l, p, s)
	wait := t.Waiting > t.free()
	if !wait && b.need <= 0 {
		return "", ""
	}
	if b.need > 0 {
		b.grow()
	}
	if len(b.actions) == 0 && b.beyond() {
		return ReasonFirstIndex, fmt.Sprintf("first-interface-index is %d, and the device indexes of this instance end at %d: lower it", p.FirstInterfaceIndex, l.MaxENIs-1)
	}
	if len(b.actions) > 0 || !wait && (!b.hasRoom() || b.subnetForNew() != nil) {
		return "", "" // also while a warm target waits for prefixes
	}
	capped := p.Cap()
	switch {
	case capped > 0 && t.total >= capped && t.Cooling > 0:
		return ReasonCooling, fmt.Sprintf("the node has the %d addresses that it may have and %d of them still cool", t.total, t.Cooling)
	case capped > 0 && t.total >= capped:
		return ReasonMaxPods, fmt.Sprintf("the node has %d addresses, as many as max-pods or max-allocate allow: run fewer pods here, or raise it", t.total)
	case b.hasRoom() && !slices.ContainsFunc(s.Subnets, func(sn Subnet) bool { return sn.ForNew }):
		return ReasonSubnetFull, "none of the configured subnets exists in this node's zone and VPC: configure one that does"
	case b.hasRoom():
		return ReasonSubnetFull, "no subnet that this node may use has a free address: free some, or configure a further subnet"
	case t.Cooling > 0:
		return ReasonCooling, fmt.Sprintf("every ENI that the instance may have is full, and %d addresses still cool", t.Cooling)
	default:
		return ReasonENILimit, fmt.Sprintf("every ENI that the instance may have is full (%d addresses used): use a larger instance type, raise MAX_ENI, or use prefixes", t.Used)
	}
}

// hasRoom tells whether the instance, were its subnets endless, could grow.
func (b *planner) hasRoom() bool {
	for _, e := range b.enis {
		if serves(e, b.policy) && e.Addresses+e.Prefixes+e.Withdrawn < b.slots {
			return true
		}
	}
	_, ok := b.freeIndex()
	return ok
}
