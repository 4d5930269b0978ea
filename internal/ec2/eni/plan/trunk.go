package plan

import (
	"cmp"
	"fmt"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
)

// An instance may have one trunk, on whose link branches of other ENIs are VLANs. It
// has no address for pods, and takes a place that an ENI with such could have. That is
// kept free for it while it is not there, so that it comes however fast pods do. It
// takes no place from an ENI that serves pods, or that a warm target keeps: then it
// waits.

// Trunk is what is wanted of a node's trunk.
type Trunk struct {
	Wanted   bool // one is to be on the instance
	Branches bool // the instance type may have branches
	Refused  bool // the cloud refused to attach one a while ago
	Busy     bool // the cloud refused to detach one a while ago, as it has branches
}

// Reasons why there is no trunk that is wanted, or still one that is not, as in a
// NodeNetwork's status.
const (
	ReasonNoBranches  = "NoBranches"
	ReasonOtherTrunk  = "OtherTrunk"
	ReasonNoRoom      = "NoRoom"
	ReasonTrunkSubnet = "TrunkSubnetFull"
	ReasonRefused     = "Refused"
	ReasonPending     = "Pending"
	ReasonHasBranches = "HasBranches"
)

// trunks are the node's by where they are: those of ours that are attached, the first
// by ID first, and detached, and what is not ours or on its way out.
type trunks struct {
	attached, detached []ENI
	other              string // ID of one that is not ours and on the instance
	leaving            bool   // one of ours is being detached
	unfit              bool   // a detached one of ours cannot be attached, and is deleted first
}

func (s State) trunks() (t trunks) {
	for _, e := range sorted(s.ENIs, func(e ENI) bool { return e.Trunk }, func(x, y ENI) int { return cmp.Compare(x.ID, y.ID) }) {
		switch {
		case !e.Ours && e.Phase != Detached:
			t.other = cmp.Or(t.other, e.ID)
		case !e.Ours:
		case e.Phase == Attached:
			t.attached = append(t.attached, e)
		case e.Phase == Detaching:
			t.leaving = true
		case e.Refused:
			t.unfit = true
		default:
			t.detached = append(t.detached, e)
		}
	}
	return t
}

// lacksTrunk reports whether the node is to have a trunk, may have it, and has none on
// the instance. One that is being detached has a place still.
func (s State) lacksTrunk() bool {
	t := s.trunks()
	return s.Trunk.Wanted && s.Trunk.Branches && t.other == "" && len(t.attached) == 0 && !t.leaving
}

// keepTrunk has the node have its trunk, or none. Of several that is the first by ID,
// as whoever makes branches has it. It reports whether only a free address of the
// subnet is missing.
func (b *planner) keepTrunk(s State) (noAddress bool) {
	t := s.trunks()
	for i, e := range t.attached {
		if i == 0 && s.Trunk.Wanted || s.Trunk.Busy {
			continue
		}
		b.do(Action{Kind: DetachTrunk, ENI: e.ID})
	}
	index, ok := b.places.forTrunk()
	if b.places.reserved == 0 || !ok || t.unfit {
		return false
	}
	if len(t.detached) > 0 {
		id := t.detached[0].ID
		b.claimed[id] = true
		if !s.Trunk.Refused {
			b.do(Action{Kind: AttachTrunk, ENI: id, Index: index})
		}
		return false
	}
	home, ok := s.home()
	if !ok || s.Trunk.Refused {
		return false
	}
	if !b.subnets.of(home).takesENI() {
		return true
	}
	b.do(Action{Kind: CreateTrunk, Subnet: home, Index: index})
	return false
}

// home returns the subnet of the primary ENI.
func (s State) home() (id string, ok bool) {
	for _, e := range s.ENIs {
		if e.Primary {
			return e.Subnet, true
		}
	}
	return "", false
}

// TrunkTrouble returns why a trunk that is wanted is not there yet, or one that is not
// wanted still is: a reason and a sentence, or two empty strings when all is as wanted.
func TrunkTrouble(l cloud.Limits, p ipam.Policy, s State) (reason, message string) {
	t := s.trunks()
	switch {
	case !s.Trunk.Wanted && len(t.attached) > 0 && s.Trunk.Busy:
		return ReasonHasBranches, "it is not wanted any more, and stays while it has branches: it goes once no pod of the node has one"
	case !s.Trunk.Wanted || len(t.attached) > 0:
		return "", ""
	case t.other != "":
		return ReasonOtherTrunk, fmt.Sprintf("%s is a trunk that is not Berth's, and an instance has one: take it off, or have whoever made it do so", t.other)
	case !s.Trunk.Branches:
		return ReasonNoBranches, "the instance type may have no branches, as far as Berth knows: use one that may"
	}
	b := newPlanner(l, p, s)
	if _, ok := b.places.forTrunk(); !ok && !t.leaving {
		return ReasonNoRoom, fmt.Sprintf("every ENI that the instance may have is there (%d): it waits until one of them is in excess; run fewer pods here, use a larger instance type, or raise MAX_ENI", len(b.places.taken))
	}
	if s.Trunk.Refused {
		return ReasonRefused, "EC2 does not let it be attached: that is tried again, ever more seldom"
	}
	if b.keepTrunk(s) {
		home, _ := s.home()
		return ReasonTrunkSubnet, fmt.Sprintf("%s, the subnet of eth0, has no free address for it: free one", home)
	}
	return ReasonPending, "it is being made"
}
