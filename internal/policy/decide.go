package policy

import "net/netip"

// Flow is the first packet of a connection, after translation of its destination by Services.
type Flow struct {
	Source, Destination netip.Addr
	Protocol            uint8
	Port                uint16 // destination; 0 for protocols without ports
}

// peer returns the end of the flow that is not the pod selected by a policy of the direction.
func (f Flow) peer(d Direction) netip.Addr {
	if d == Egress {
		return f.Destination
	}
	return f.Source
}

// Decision is the decision of a pod's policies about a flow.
type Decision struct {
	Allowed bool
	Policy  *Policy // the policy that decided; nil if none did, or if none accepts in an isolated direction
	Rule    int     // index of the rule that decided
	// Isolated: NetworkPolicies select the pod for this direction, and none of them accepts the flow.
	Isolated bool
}

// Decide judges a flow by the policies of the pod at one of its ends, which must be in the order of Compare. A pod can
// always reach itself.
func Decide(policies []*Policy, d Direction, f Flow, sets Sets) Decision {
	if f.Source == f.Destination {
		return Decision{Allowed: true}
	}
	admin, rest := tier(policies, Admin)
	if decision, decided := firstMatch(admin, d, f, sets); decided {
		return decision
	}
	ofNamespace, baseline := tier(rest, Namespaced)
	isolated := false
	for _, p := range ofNamespace {
		isolated = isolated || p.Isolates[d]
		if i := p.match(d, f, sets); i >= 0 {
			return Decision{Allowed: true, Policy: p, Rule: i}
		}
	}
	if isolated {
		return Decision{Isolated: true}
	}
	if decision, decided := firstMatch(baseline, d, f, sets); decided {
		return decision
	}
	return Decision{Allowed: true}
}

// tier splits ordered policies into those of a tier at the beginning, and the rest.
func tier(policies []*Policy, t Tier) (of, rest []*Policy) {
	for i, p := range policies {
		if p.Tier != t {
			return policies[:i], policies[i:]
		}
	}
	return policies, nil
}

// firstMatch returns the decision of the first matching rule. decided is false if none matches, or if that rule passes.
func firstMatch(policies []*Policy, d Direction, f Flow, sets Sets) (decision Decision, decided bool) {
	for _, p := range policies {
		if i := p.match(d, f, sets); i >= 0 {
			action := p.Rules[d][i].Action
			return Decision{Allowed: action == Accept, Policy: p, Rule: i}, action != Pass
		}
	}
	return Decision{}, false
}

// match returns the index of the first rule that matches, or -1.
func (p *Policy) match(d Direction, f Flow, sets Sets) int {
	for i := range p.Rules[d] {
		if r := &p.Rules[d][i]; r.matchesPeer(f.peer(d), sets) && r.matchesPort(f, sets) {
			return i
		}
	}
	return -1
}

func (r *Rule) matchesPeer(peer netip.Addr, sets Sets) bool {
	if r.AnyPeer {
		return true
	}
	for _, b := range r.Blocks {
		if b.Contains(peer) {
			return true
		}
	}
	for _, id := range r.Peers {
		if sets.Has(id, Element{Addr: peer}) {
			return true
		}
	}
	return false
}

func (r *Rule) matchesPort(f Flow, sets Sets) bool {
	if r.AnyPort {
		return true
	}
	for _, p := range r.Ports {
		if p.Protocol == f.Protocol && p.First <= f.Port && f.Port <= p.Last {
			return true
		}
	}
	for _, id := range r.Named {
		if sets.Has(id, Element{Addr: f.Destination, Protocol: f.Protocol, Port: f.Port}) {
			return true
		}
	}
	return false
}
