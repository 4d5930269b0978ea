package eni

import (
	"fmt"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/ipam"
)

// Status is how a reconciler is doing.
type Status struct {
	Confirmed bool        // the cloud has been observed by this process
	LastError string      // the worst current trouble, and what to do about it; empty when healed
	Class     cloud.Class // of that trouble
	Err       error
	Kind      Kind // the step it stopped
	Grows     bool // that trouble keeps the node from growing

	NextTry time.Time // when what that trouble stopped is tried again at the latest; zero without trouble

	Available  int  // addresses that pods may have, used ones included
	Used       int  // of those
	Needed     int  // addresses that the policy wants beyond Available
	AtCapacity bool // the instance, its policy's caps or its subnets allow no more
	Vanished   bool // the cloud says that the instance does not exist or is terminated

	InstanceType string // as the cloud says; empty while it has not been asked

	Shortage    string // why pods that wait, or a warm target, get nothing although nothing failed: a Reason
	Explanation string // the same in a sentence
}

// Status may be called at any time.
func (r *Reconciler) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// report renews the status from the gates: growth's trouble matters most to pods.
func (r *Reconciler) report() {
	now := r.cfg.Clock.Now()
	s := Status{Confirmed: !r.confirmed.IsZero(), Vanished: r.vanished}
	if r.typed {
		s.InstanceType = r.itype
	}
	for _, g := range [...]gate{gateInstance, gateLimits, gateGrow, gateObserve, gateSubnets, gateRoutes, gateShrink, gateDelete, gateRepair, gateCollect} {
		if b := r.gates[g]; b != nil {
			s.Class, s.Err, s.Kind = b.class, b.err, b.kind
			s.Grows = g == gateGrow || g == gateSubnets || g == gateLimits || g == gateInstance
			s.LastError = fmt.Sprintf("%s: %v", b.kind, b.err)
			if hint := advice(b.class, b.kind); hint != "" {
				s.LastError += " (" + hint + ")"
			}
			s.NextTry = b.until
			if !s.NextTry.After(now) {
				s.NextTry = now.Add(r.wake(now))
			}
			break
		}
	}
	if s.Confirmed {
		j := r.judge(now)
		d := j.decision
		s.Available, s.Used = d.Available, d.Used
		if r.limitsKnown() {
			s.Needed, s.AtCapacity = d.Needed, d.AtCapacity
			s.Shortage, s.Explanation = Shortage(r.limits, r.cfg.Policy, j.state)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = s
}

// advice says what a person can do about a class of trouble.
func advice(c cloud.Class, k Kind) string {
	if k == FindLimits && c == cloud.Bug {
		return "correct the instance type"
	}
	if k == FindInstance {
		return "start the instance, or correct its ID"
	}
	switch c {
	case cloud.Throttled:
		return "the same call is made again; ask for a higher EC2 API rate if this lasts"
	case cloud.SubnetFull:
		return "free addresses in the subnet, or configure a further subnet"
	case cloud.LimitReached:
		return "use a larger instance type, or detach other ENIs"
	case cloud.Permission:
		return "allow the action to the role that Berth runs with"
	case cloud.Bug, cloud.Gone:
		return "check the configured subnets and security groups"
	case cloud.Transient, cloud.Unknown:
		return "is the EC2 endpoint reachable from here?"
	default:
		return ""
	}
}

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
	case b.hasRoom() && !slices.ContainsFunc(s.Subnets, func(sn SubnetState) bool { return sn.ForNew }):
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
