package plan

import (
	"cmp"
	"math"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// Phase is whether an ENI is attached.
type Phase int

// The phases. An attaching ENI counts as attached: its addresses will be usable soon.
const (
	Detached Phase = iota
	Attached
	Detaching
)

// ENI is one ENI as a plan sees it. It has more fields than most types, as it is a row of input: each
// field is an independent fact, and none has behaviour of its own.
type ENI struct {
	ID      string
	Subnet  string
	Index   int // device index, unless Detached
	Phase   Phase
	Primary bool
	Ours    bool // the primary, or created by Berth: may be changed
	Trunk   bool // has branches, and no addresses for pods

	cloud.Amount              // assigned for pods, without Withdrawn
	Withdrawn    cloud.Amount // being released; it still takes slots
	OwnIPv6      int          // IPv6 addresses that the instance itself uses; they take slots too

	Used, Cooling int          // a pod with an address of each family counts once
	Free          cloud.Amount // could be withdrawn now

	Refused                  bool // detached, and cannot be attached
	JustMade                 bool // detached, and created by another process a moment ago
	PrimaryServes            bool // pods may have its primary address too
	WrongDeleteOnTermination bool // DeleteOnTermination is not as configured
	WrongTags                bool // its tag names another instance
	NoLink                   bool // the node has no link of it: pods cannot use it
	OtherGroups              bool // it is to have the primary's security groups, and has others
	Outdated                 bool // a new ENI would be in another subnet, or have other security groups

	drain drain // set by State.drained
}

// count returns the number of an ENI's addresses of a family, those inside prefixes included.
func (e ENI) count(f ipfamily.Family) int {
	n := CountOf(f, e.Amount)
	if e.PrimaryServes && f == ipfamily.IPv4 {
		n++
	}
	return n
}

// total returns the number of pods that an ENI has addresses for: its number of addresses of the family
// that it has least of. Of an ENI that is drained, only used and cooling addresses count.
func (e ENI) total(s ipfamily.Set) int {
	if e.drain == draining {
		return e.Used + e.Cooling
	}
	return e.assigned(s)
}

// assigned is total, whether or not the ENI is drained.
func (e ENI) assigned(s ipfamily.Set) int {
	n := math.MaxInt
	for _, f := range s.Families() {
		n = min(n, e.count(f))
	}
	return n
}

// Subnet is one subnet as a plan sees it.
type Subnet struct {
	ID          string
	Free        int  // free IPv4 addresses; Unlimited: not known
	IPv6Native  bool // is IPv6-only: its ENIs have no IPv4 addresses
	NoPrefix    bool // had no free aligned /28 recently
	NoIPv6      bool // has no IPv6 block, or had nothing free in it recently
	ForNew      bool // new ENIs may be created here
	OtherRoutes bool // its route table is not that of the primary's subnet
}

// takesENI reports whether the subnet has the address that a further ENI takes for itself: an IPv4
// address, or an IPv6 address in an IPv6-only subnet.
func (sn Subnet) takesENI() bool {
	if sn.IPv6Native {
		return !sn.NoIPv6
	}
	return sn.Free > 0
}

// Unlimited is the free count of a subnet that was not described yet.
const Unlimited = 1 << 30

// State is a node as a plan sees it.
type State struct {
	ENIs    []ENI // on the instance, also those of others, and detached ones of ours
	Subnets []Subnet
	Waiting int // pods that wait for an address
	// Release is how many addresses may be released now: the excess that has
	// persisted. 0 while none has.
	Release int
	// Moves: an ENI that others have room for (Movable) has existed long
	// enough to be emptied.
	Moves bool
	// Drain: there have been outdated ENIs for long enough to be
	// emptied and deleted.
	Drain bool
	// NoMoreENIs: the cloud refused to attach another recently, whatever
	// the limits say.
	NoMoreENIs bool
	// Trunk is what the node's trunk should be.
	Trunk Trunk
	// FollowGroups: ENIs get the security groups of the primary.
	FollowGroups bool
	// PrimaryServes: pods may have the primary address of a new ENI.
	PrimaryServes bool
}

// serves reports whether an ENI's addresses are for pods.
func serves(e ENI, p ipam.Policy) bool {
	return e.Ours && !e.Trunk && !e.NoLink && e.Phase == Attached && e.Index >= p.FirstInterfaceIndex
}

// tally counts the pods that the node's addresses are for, over all ENIs that serve pods.
type tally struct {
	ipam.Usage
	total int
}

func (s State) tally(p ipam.Policy) tally {
	t := tally{Usage: ipam.Usage{Waiting: s.Waiting}}
	for _, e := range s.ENIs {
		if serves(e, p) {
			t.total += e.total(p.Families)
			t.Used += e.Used
			t.Cooling += e.Cooling
		}
	}
	return t
}

// free returns how many further pods there are addresses for.
func (t tally) free() int { return t.total - t.Used - t.Cooling }

// Excess returns how many addresses the node has above what the policy keeps, and how many it has in
// all.
func Excess(l cloud.Limits, p ipam.Policy, s State) (excess, total int) {
	t := s.drained(l, p).tally(p)
	return max(0, t.total-Demand(l, p, t.Usage).Keep), t.total
}

// sorted returns the ENIs for which keep is true, in an order.
func sorted(list []ENI, keep func(ENI) bool, order func(x, y ENI) int) []ENI {
	var out []ENI
	for _, e := range list {
		if keep(e) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, order)
	return out
}

func byIndex(x, y ENI) int {
	return cmp.Or(cmp.Compare(x.Index, y.Index), cmp.Compare(x.ID, y.ID))
}
