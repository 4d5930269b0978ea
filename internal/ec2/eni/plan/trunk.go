package plan

import (
	"cmp"
	"fmt"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
)

// An instance may have one trunk, whose link carries the traffic of branch ENIs as VLANs. It has no addresses for
// pods, and takes the slot of an ENI that could have some. The slot is reserved while there is no trunk, so that
// growth cannot take it. The trunk never displaces an ENI that serves pods or that a warm target keeps: it waits.

// Trunk is the desired trunk of a node, with EC2's recent refusals.
type Trunk struct {
	Wanted   bool // the instance should have a trunk
	Branches bool // the instance type supports branches
	Refused  bool // the cloud recently refused to attach one
	Busy     bool // the cloud recently refused to detach one because it has branches
}

// Reasons why a trunk is missing, or still exists, in a NodeNetwork's status.
const (
	ReasonNoBranches  = "NoBranches"
	ReasonOtherTrunk  = "OtherTrunk"
	ReasonNoRoom      = "NoRoom"
	ReasonTrunkSubnet = "TrunkSubnetFull"
	ReasonRefused     = "Refused"
	ReasonPending     = "Pending"
	ReasonHasBranches = "HasBranches"
)

// trunks are the trunks of a node: Berth's attached or detached ones, by ID, and foreign ones.
type trunks struct {
	attached, detached []ENI
	other              string // ID of an attached foreign trunk, if any
	leaving            bool   // one of Berth's is being detached
	unfit              bool   // a detached one of Berth's cannot be attached, and is deleted first
}

func (s State) trunks() (t trunks) {
	for _, e := range sorted(s.ENIs, func(e ENI) bool { return e.Trunk }, func(x, y *ENI) int { return cmp.Compare(x.ID, y.ID) }) {
		switch {
		case !e.Ours && e.Phase != Detached:
			t.other = cmp.Or(t.other, e.ID)
		case !e.Ours:
		case e.Phase == Attached:
			t.attached = append(t.attached, *e)
		case e.Phase == Detaching:
			t.leaving = true
		case e.Refused:
			t.unfit = true
		default:
			t.detached = append(t.detached, *e)
		}
	}
	return t
}

// lacksTrunk reports whether the node should and may have a trunk but has none. A trunk that is being detached still
// takes its slot.
func (s State) lacksTrunk() bool {
	if !s.Trunk.Wanted || !s.Trunk.Branches {
		return false
	}
	t := s.trunks()
	return t.other == "" && len(t.attached) == 0 && !t.leaving
}

// keepTrunk creates, attaches or detaches the trunk. Of several trunks it keeps the first by ID, as do the clients
// that create branches. It reports whether only a free address of the subnet is missing.
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
		b.claimed = append(b.claimed, id)
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

// TrunkTrouble returns why the trunk is not in its desired state: a reason and a sentence, or two empty strings if it
// is.
func TrunkTrouble(l cloud.Limits, p ipam.Policy, s State) (reason, message string) {
	t := s.trunks()
	switch {
	case !s.Trunk.Wanted && len(t.attached) > 0 && s.Trunk.Busy:
		return ReasonHasBranches, "it is no longer configured, but still has branches: it is removed once no pod on the node uses one"
	case !s.Trunk.Wanted || len(t.attached) > 0:
		return "", ""
	case t.other != "":
		return ReasonOtherTrunk, fmt.Sprintf("%s is a trunk that Berth did not create, and an instance has only one: detach it, or stop what creates it", t.other)
	case !s.Trunk.Branches:
		return ReasonNoBranches, "the instance type is not known to support branches: use one that does"
	}
	b := newPlanner(l, p, s)
	if _, ok := b.places.forTrunk(); !ok && !t.leaving {
		return ReasonNoRoom, fmt.Sprintf("the instance has all the ENIs that it may have (%d): the trunk waits until one of them is in excess; run fewer pods here, use a larger instance type, or raise MAX_ENI", len(b.places.taken))
	}
	if s.Trunk.Refused {
		return ReasonRefused, "EC2 refuses to attach it: retrying at growing intervals"
	}
	if b.keepTrunk(s) {
		home, _ := s.home()
		return ReasonTrunkSubnet, fmt.Sprintf("%s, the subnet of eth0, has no free address for the trunk: free one", home)
	}
	return ReasonPending, "it is being created"
}
