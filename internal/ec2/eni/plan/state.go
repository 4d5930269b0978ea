package plan

import (
	"cmp"
	"math"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// Phase is the attachment phase of an ENI.
type Phase int

// The phases. An attaching ENI counts as attached: its addresses will be usable soon.
const (
	Detached Phase = iota
	Attached
	Detaching
)

// ENI is the state of one ENI. It has more fields than most types because it is a row of input: each field is an
// independent fact without behaviour.
type ENI struct {
	ID      string
	Subnet  string
	Index   int // device index, unless Detached
	Phase   Phase
	Primary bool
	Ours    bool // may be changed: the primary, or created by Berth
	Trunk   bool // has branches, and no addresses for pods

	cloud.Amount              // assigned for pods, without Withdrawn
	Withdrawn    cloud.Amount // being released; still takes slots
	OwnIPv6      int          // IPv6 addresses used by the instance itself; these take slots, too

	Used, Cooling int          // a dual-stack pod counts once
	Free          cloud.Amount // addresses that could be withdrawn now

	Refused                  bool // detached, and cannot be attached
	JustMade                 bool // detached, and recently created by another process
	PrimaryServes            bool // pods may use its primary address, too
	WrongDeleteOnTermination bool // DeleteOnTermination is not as configured
	WrongTags                bool // the tag names another instance
	NoLink                   bool // the node lacks its link, so pods cannot use it
	OtherGroups              bool // should have the primary's security groups, but has others
	Outdated                 bool // a new ENI would be in another subnet, or have other security groups

	drain drain // set by State.drained
}

// count returns the number of an ENI's addresses of a family, including those in prefixes.
func (e ENI) count(f ipfamily.Family) int {
	n := CountOf(f, e.Amount)
	if e.PrimaryServes && f == ipfamily.IPv4 {
		n++
	}
	return n
}

// total returns the number of pods that an ENI has addresses for: its address count in the family with the fewest. On
// a draining ENI only used and cooling addresses count.
func (e ENI) total(s ipfamily.Set) int {
	if e.drain == draining {
		return e.Used + e.Cooling
	}
	return e.assigned(s)
}

// assigned is total for an ENI regardless of draining.
func (e ENI) assigned(s ipfamily.Set) int {
	n := math.MaxInt
	for _, f := range s.Families() {
		n = min(n, e.count(f))
	}
	return n
}

// Subnet is the state of one subnet.
type Subnet struct {
	ID          string
	Free        int  // free IPv4 addresses; Unlimited if unknown
	IPv6Native  bool // is IPv6-only: its ENIs have no IPv4 addresses
	NoPrefix    bool // had no free aligned /28 recently
	NoIPv6      bool // has no IPv6 block, or had no free IPv6 address recently
	ForNew      bool // new ENIs may be created here
	OtherRoutes bool // the route table differs from that of the primary's subnet
}

// takesENI reports whether the subnet has an address for another ENI itself: an IPv4 address, or an IPv6 address in
// an IPv6-only subnet.
func (sn Subnet) takesENI() bool {
	if sn.IPv6Native {
		return !sn.NoIPv6
	}
	return sn.Free > 0
}

// Unlimited is the free count of a subnet that has not been described yet.
const Unlimited = 1 << 30

// State is the state of a node.
type State struct {
	ENIs    []ENI // those on the instance, including foreign ones, and Berth's detached ones
	Subnets []Subnet
	Waiting int // pods waiting for an address
	// Release is how many addresses may be released now: the excess that has lasted.
	Release int
	// Moves means that a Movable ENI has existed for long enough to be emptied.
	Moves bool
	// Drain means that outdated ENIs have existed for long enough to be drained and deleted.
	Drain bool
	// NoMoreENIs means that the cloud recently refused to attach another ENI, whatever the limits are.
	NoMoreENIs bool
	// Trunk is the desired trunk of the node.
	Trunk Trunk
	// FollowGroups gives ENIs the security groups of the primary.
	FollowGroups bool
	// PrimaryServes lets pods use the primary address of a new ENI.
	PrimaryServes bool
}

// serves reports whether an ENI's addresses are for pods.
func serves(e ENI, p ipam.Policy) bool {
	return e.Ours && !e.Trunk && !e.NoLink && e.Phase == Attached && e.Index >= p.FirstInterfaceIndex
}

// tally counts the pods that the node has addresses for, over all ENIs that serve pods.
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

// free returns how many more pods the node has addresses for.
func (t tally) free() int { return t.total - t.Used - t.Cooling }

// Excess returns how many addresses the node has beyond what the policy keeps, and how many it has in total.
func Excess(l cloud.Limits, p ipam.Policy, s State) (excess, total int) {
	t := s.drained(l, p).tally(p)
	return max(0, t.total-Demand(l, p, t.Usage).Keep), t.total
}

// sorted returns the ENIs for which keep is true, in the given order. The result points into the list.
func sorted(list []ENI, keep func(ENI) bool, order func(x, y *ENI) int) []*ENI {
	var out []*ENI
	for i := range list {
		if !keep(list[i]) {
			continue
		}
		if out == nil {
			out = make([]*ENI, 0, len(list)-i)
		}
		out = append(out, &list[i])
	}
	slices.SortFunc(out, order)
	return out
}

func byIndex(x, y *ENI) int {
	return cmp.Or(cmp.Compare(x.Index, y.Index), cmp.Compare(x.ID, y.ID))
}
