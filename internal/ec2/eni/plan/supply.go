package plan

import (
	"math"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// A pod's addresses are all of one ENI, one of each family. So an ENI grows in all
// families at once, and no further than the one allows that has least room.

// supply is how the addresses of one family come.
type supply struct {
	family ipfamily.Family
	slots  int // addresses or prefixes that an ENI may hold for pods
	unit   int // addresses of each: 1, or those of a prefix
}

// slots returns how many addresses or prefixes of a family an ENI holds for pods: of
// IPv4 all but one, as the primary address serves none (EC2 User Guide, "IP
// addresses per network interface per instance type").
func slots(f ipfamily.Family, l cloud.Limits) int {
	if f == ipfamily.IPv6 {
		return l.IPv6PerENI
	}
	return max(0, l.IPv4PerENI-1)
}

// supplies returns those of the families that pods get. IPv6 comes first: where it
// cannot be had, no IPv4 address is asked for in vain.
func supplies(l cloud.Limits, p ipam.Policy) (out []supply) {
	for _, f := range []ipfamily.Family{ipfamily.IPv6, ipfamily.IPv4} {
		if !p.Families.Has(f) {
			continue
		}
		s := supply{f, slots(f, l), 1}
		if l.Prefixes && p.ByPrefix(f) {
			s.unit = prefixAddresses[f]
		}
		out = append(out, s)
	}
	return out
}

// Capacity is for how many pods one ENI of an instance type can have addresses.
func Capacity(l cloud.Limits, p ipam.Policy, primary bool) int {
	n := math.MaxInt
	for _, s := range supplies(l, p) {
		of := s.slots * s.unit
		if primary && s.own() {
			of = 0
		}
		n = min(n, of)
	}
	return n
}

// own reports that what the primary ENI has of the family is the instance's own: single
// IPv6 addresses, as nothing tells which of them its system uses.
func (s supply) own() bool { return s.family == ipfamily.IPv6 && s.unit == 1 }

// Demand returns what a policy wants of a node with an instance type's limits.
func Demand(l cloud.Limits, p ipam.Policy, u ipam.Usage) ipam.Demand {
	perENI := math.MaxInt
	for _, f := range p.Families.Families() {
		if f == ipfamily.IPv4 || !l.Prefixes {
			perENI = min(perENI, slots(f, l))
		}
	}
	if perENI == math.MaxInt { // prefixes of IPv6 alone, which are no matter of whole ENIs
		perENI = 0
	}
	return p.Demand(perENI, l.Prefixes, u)
}

// capacity is what ENIs of an instance type can have for pods under a policy.
type capacity struct {
	limits   cloud.Limits
	policy   ipam.Policy
	supplies []supply // of the families that pods get, IPv6 first
	bonus    int      // IPv4 addresses for pods that a new ENI brings by itself
}

// total is for how many pods an ENI has addresses.
func (b *capacity) total(e ENI) int { return e.total(b.policy.Families) }

// grows reports whether an ENI may be given more addresses for pods.
func (b *capacity) grows(e ENI) bool { return serves(e, b.policy) && e.drain == stays }

// stays reports whether an ENI serves pods and is not drained.
func (b *capacity) stays(e ENI) bool { return serves(e, b.policy) && e.drain != draining }

// roomOn reports whether an ENI, were its subnet endless, could have addresses for more pods.
func (b *capacity) roomOn(e ENI) bool { return b.grows(e) && !b.full(b.held(e)) }

// holding is what an ENI has of each family: addresses for pods, those inside
// prefixes included, and slots that are taken.
type holding struct{ count, taken [ipfamily.Number]int }

// held returns what an ENI has.
func (b *capacity) held(e ENI) (h holding) {
	for _, s := range b.supplies {
		addresses, prefixes := e.Of(s.family)
		goneAddresses, gonePrefixes := e.Withdrawn.Of(s.family)
		h.count[s.family] = e.count(s.family)
		h.taken[s.family] = addresses + prefixes + goneAddresses + gonePrefixes
		if s.family == ipfamily.IPv6 {
			h.taken[s.family] += e.OwnIPv6
		}
		if e.Primary && s.own() {
			h.taken[s.family] = s.slots
		}
	}
	return h
}

// pods is for how many pods a holding is enough.
func (b *capacity) pods(h holding) int {
	n := math.MaxInt
	for _, s := range b.supplies {
		n = min(n, h.count[s.family])
	}
	return n
}

// full reports whether a holding keeps its ENI from having addresses for more pods,
// however many its subnet has.
func (b *capacity) full(h holding) bool {
	pods := b.pods(h)
	for _, s := range b.supplies {
		if h.count[s.family] == pods && h.taken[s.family] >= s.slots {
			return true
		}
	}
	return false
}

// extend returns what is to be added to a holding, in a subnet with so many free IPv4
// addresses, so that it is enough for n pods more, or for as many as it can be.
func (b *capacity) extend(h holding, sn *Subnet, free, n int) (gain int, more cloud.Amount) {
	before, after := b.pods(h), math.MaxInt
	for _, s := range b.supplies {
		after = min(after, h.count[s.family]+CountOf(s.family, s.more(h, sn, free, before+n-h.count[s.family])))
	}
	if after <= before {
		return 0, none
	}
	for _, s := range b.supplies {
		more = more.Plus(s.more(h, sn, free, after-h.count[s.family]))
	}
	return after - before, more
}

// more returns how much of a need one ENI in a subnet can take of a family: whole
// prefixes where the policy says so and the subnet has them, else single addresses.
func (s supply) more(h holding, sn *Subnet, free, need int) cloud.Amount {
	noPrefix := sn.NoPrefix
	if s.family == ipfamily.IPv6 {
		free, noPrefix = Unlimited, false
		if sn.NoIPv6 {
			free = 0
		}
	} else if sn.IPv6Native {
		free = 0
	}
	room := s.slots - h.taken[s.family]
	if need <= 0 || room <= 0 {
		return none
	}
	if s.unit > 1 && !noPrefix && free >= s.unit {
		return cloud.AmountIn(s.family, 0, min((need+s.unit-1)/s.unit, room, free/s.unit))
	}
	return cloud.AmountIn(s.family, max(0, min(need, room, free)), 0)
}

// each calls do with what an amount has of each family that it has something of.
func (b *capacity) each(a cloud.Amount, do func(cloud.Amount)) {
	for _, s := range b.supplies {
		if of := only(s.family, a); of != none {
			do(of)
		}
	}
}

// only returns what an amount has of one family.
func only(f ipfamily.Family, a cloud.Amount) cloud.Amount {
	addresses, prefixes := a.Of(f)
	return cloud.AmountIn(f, addresses, prefixes)
}

// byPrefix reports whether IPv4 addresses come by prefixes.
func (b *capacity) byPrefix() bool { return b.unit() > 1 }

// unit returns in what IPv4 addresses come: 1, or those of a prefix.
func (b *capacity) unit() int {
	for _, s := range b.supplies {
		if s.family == ipfamily.IPv4 {
			return s.unit
		}
	}
	return 1
}
