package plan

import (
	"cmp"
	"math"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// Phase is where an ENI is on its way in or out.
type Phase int

// The phases. An attaching ENI counts as attached: its addresses are on their way.
const (
	Detached Phase = iota
	Attached
	Detaching
)

// ENI is one ENI as a plan sees it.
type ENI struct {
	ID      string
	Subnet  string
	Index   int // device index, unless Detached
	Phase   Phase
	Primary bool
	Ours    bool // the primary, or made by Berth: may be changed
	Trunk   bool // has no address for pods, but branches

	cloud.Amount              // assigned for pods; what is withdrawn is not
	Withdrawn    cloud.Amount // on its way back; it still takes slots
	OwnIPv6      int          // IPv6 addresses of the instance's own; they take slots too

	Used, Cooling int          // by pods, one with an address of each family counted once
	Free          cloud.Amount // could be withdrawn now

	Refused                  bool // detached, and cannot be attached
	JustMade                 bool // detached, and made by someone else a moment ago
	PrimaryServes            bool // its primary address is for pods too
	WrongDeleteOnTermination bool // DeleteOnTermination is not as configured
	WrongTags                bool // carries another instance's ID
	NoLink                   bool // the node has no link of it: nothing of it is of use to pods
	OtherGroups              bool // its security groups are not the primary's, which it is to have
	Outdated                 bool // a new ENI would not be in its subnet, or have its security groups

	drain drain // set by State.drained
}

// count counts an ENI's addresses of a family, those inside prefixes included.
func (e ENI) count(f ipfamily.Family) int {
	n := CountOf(f, e.Amount)
	if e.PrimaryServes && f == ipfamily.IPv4 {
		n++
	}
	return n
}

// total returns how many pods an ENI has addresses for: as many as it has of the family
// that it has least of, or, while it is drained, as have some.
func (e ENI) total(s ipfamily.Set) int {
	if e.drain == draining {
		return e.Used + e.Cooling
	}
	return e.assigned(s)
}

// assigned is for how many pods an ENI has addresses, drained or not.
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
	Free        int  // IPv4 addresses that can be had; Unlimited when not known
	IPv6Native  bool // has IPv6 alone: its ENIs take no IPv4 address, and have none
	NoPrefix    bool // had no free aligned /28 a while ago
	NoIPv6      bool // has no IPv6 block, or had nothing free in it a while ago
	ForNew      bool // new ENIs may be made here
	OtherRoutes bool // its route table is not that of the primary's subnet
}

// takesENI reports whether one more ENI finds the address in a subnet that it takes for itself: of
// IPv4, or in one of IPv6 alone of that.
func (sn Subnet) takesENI() bool {
	if sn.IPv6Native {
		return !sn.NoIPv6
	}
	return sn.Free > 0
}

// Unlimited is the free count of a subnet that is not known yet: asking tells.
const Unlimited = 1 << 30

// State is a node as a plan sees it.
type State struct {
	ENIs    []ENI // on the instance, foreign ones too, and detached ones of ours
	Subnets []Subnet
	Waiting int // pods that wait for an address
	// Release is how many addresses may be given back now: the excess that has
	// persisted. 0 while none has.
	Release int
	// Moves: an ENI that others have room for (Movable) has been there long
	// enough to be emptied.
	Moves bool
	// Drain: there have been outdated ENIs for long enough, and they are to be
	// emptied and given back.
	Drain bool
	// NoMoreENIs: the cloud refused to attach another a while ago, whatever
	// the limits say.
	NoMoreENIs bool
	// Trunk is what is wanted of the node's trunk.
	Trunk Trunk
	// FollowGroups: ENIs are to be given the security groups of the primary.
	FollowGroups bool
	// PrimaryServes: the primary address of a new ENI will be for pods.
	PrimaryServes bool
}

// serves reports whether an ENI's addresses are for pods.
func serves(e ENI, p ipam.Policy) bool {
	return e.Ours && !e.Trunk && !e.NoLink && e.Phase == Attached && e.Index >= p.FirstInterfaceIndex
}

// tally is the pods that the node's addresses are for, summed over the ENIs that
// serve pods.
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

// free counts the pods that wait whom there are addresses for.
func (t tally) free() int { return t.total - t.Used - t.Cooling }

// Excess returns how many addresses the node has above what the policy keeps, and how
// many it has in all.
func Excess(l cloud.Limits, p ipam.Policy, s State) (excess, total int) {
	t := s.drained(l, p).tally(p)
	return max(0, t.total-Demand(l, p, t.Usage).Keep), t.total
}

// sorted returns the ENIs that pass keep, in an order.
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
