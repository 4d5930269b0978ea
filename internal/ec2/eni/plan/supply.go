package plan

import (
	"math"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// A pod's addresses, one of each family, are all on one ENI. An ENI therefore grows in all families together, limited
// by the family with the least room.

// supply describes how an ENI gets addresses of one family.
type supply struct {
	family ipfamily.Family
	slots  int // addresses or prefixes that an ENI may hold for pods
	unit   int // addresses per slot: 1, or those in a prefix
}

// slots returns how many addresses or prefixes of a family an ENI may hold for pods. For IPv4 that is all but one,
// which the primary address takes (EC2 User Guide, "IP addresses per network interface per instance type").
func slots(f ipfamily.Family, l cloud.Limits) int {
	if f == ipfamily.IPv6 {
		return l.IPv6PerENI
	}
	return max(0, l.IPv4PerENI-1)
}

// supplies returns the supplies of the families that pods get, IPv6 first: if no IPv6 address is available, no IPv4
// address is requested in vain.
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

// Capacity returns the maximum number of pods that one ENI of an instance type can serve.
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

// own reports whether the primary ENI's addresses of the family belong to the instance. Single IPv6 addresses do,
// because EC2 does not report which of them the operating system uses.
func (s supply) own() bool { return s.family == ipfamily.IPv6 && s.unit == 1 }

// Demand returns a policy's demand for a node with an instance type's limits.
func Demand(l cloud.Limits, p ipam.Policy, u ipam.Usage) ipam.Demand {
	perENI := math.MaxInt
	for _, f := range p.Families.Families() {
		if f == ipfamily.IPv4 || !l.Prefixes {
			perENI = min(perENI, slots(f, l))
		}
	}
	if perENI == math.MaxInt { // only IPv6 prefixes: no ENI is ever full
		perENI = 0
	}
	return p.Demand(perENI, l.Prefixes, u)
}

// capacity is the capacity of an instance type's ENIs for pods under a policy.
type capacity struct {
	limits   cloud.Limits
	policy   ipam.Policy
	supplies []supply // for the families that pods get, IPv6 first
	bonus    int      // IPv4 addresses for pods that every new ENI has
}

// total returns the number of pods that an ENI has addresses for.
func (b *capacity) total(e ENI) int { return e.total(b.policy.Families) }

// grows reports whether an ENI may get more addresses for pods.
func (b *capacity) grows(e ENI) bool { return serves(e, b.policy) && e.drain == stays }

// stays reports whether an ENI serves pods and is not drained.
func (b *capacity) stays(e ENI) bool { return serves(e, b.policy) && e.drain != draining }

// roomOn reports whether an ENI could serve more pods if its subnet were unlimited.
func (b *capacity) roomOn(e ENI) bool { return b.grows(e) && !b.full(b.held(e)) }

// holding counts an ENI's addresses for pods by family, including those in prefixes, and the slots in use.
type holding struct{ count, taken [ipfamily.Number]int }

// held returns the holding of an ENI.
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

// pods returns the number of pods that a holding can serve.
func (b *capacity) pods(h holding) int {
	n := math.MaxInt
	for _, s := range b.supplies {
		n = min(n, h.count[s.family])
	}
	return n
}

// full reports whether an ENI with a holding could not serve more pods even if its subnet were unlimited.
func (b *capacity) full(h holding) bool {
	pods := b.pods(h)
	for _, s := range b.supplies {
		if h.count[s.family] == pods && h.taken[s.family] >= s.slots {
			return true
		}
	}
	return false
}

// extend returns what to add to a holding, in a subnet with the given number of free IPv4 addresses, to serve n more
// pods, or as many as possible. Gain is the number of these pods.
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

// more returns how much of a need an ENI in a subnet can take in a family: whole prefixes if the policy requires them
// and the subnet has them, otherwise single addresses.
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

// each calls do for each family with that family's part of an amount, unless it is empty.
func (b *capacity) each(a cloud.Amount, do func(cloud.Amount)) {
	for _, s := range b.supplies {
		if of := only(s.family, a); of != none {
			do(of)
		}
	}
}

// only returns one family's part of an amount.
func only(f ipfamily.Family, a cloud.Amount) cloud.Amount {
	addresses, prefixes := a.Of(f)
	return cloud.AmountIn(f, addresses, prefixes)
}

// byPrefix reports whether IPv4 addresses come as prefixes.
func (b *capacity) byPrefix() bool { return b.unit() > 1 }

// unit returns how many IPv4 addresses a slot holds: 1, or those in a prefix.
func (b *capacity) unit() int {
	for _, s := range b.supplies {
		if s.family == ipfamily.IPv4 {
			return s.unit
		}
	}
	return 1
}
