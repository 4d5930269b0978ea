package vpc

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
)

// Types of trunks and branches. A branch is created as an ordinary ENI, and only has its type while it is
// associated: CreateNetworkInterface does not support "branch" (EC2 API Reference, InterfaceType), and the
// Amazon VPC resource controller requests no type.
const (
	trunk  = "trunk"
	branch = "branch"
)

// maxVLAN is the highest VLAN ID (IEEE 802.1Q).
const maxVLAN = 4094

// Association makes an ENI a branch of a trunk: it receives and sends the frames with the VLAN ID on the
// trunk's link.
type Association struct {
	ID       string
	TrunkID  string
	BranchID string
	VLAN     int
	Time     time.Time
}

// trunks records which ENIs are branches of which trunks. The world's lock guards it.
type trunks struct {
	world    *world
	store    *store
	branches map[string]map[string]struct{} // trunk ID to the IDs of its branches
	byID     map[string]string              // association ID to the branch's ID
}

// AssociateRequest is a request for an association.
type AssociateRequest struct {
	BranchID    string
	TrunkID     string
	VLAN        int
	ClientToken string
}

// Associate makes an available ENI a branch of an attached trunk. A repeated ClientToken with the same
// request returns the same association.
//
// EC2 documents no errors of this action. The Amazon VPC resource controller relies on
// InvalidVlanId.Duplicate, and on InvalidAssociationID.NotFound when it ends an association; the other
// codes are those of similar actions. The lab requires that the trunk is attached, because the behaviour of
// a detached trunk is not documented.
func (es *ENIs) Associate(r AssociateRequest) (out Association, err error) {
	err = es.world.change(func() error {
		if prior, ok, err := es.tokens.replay(r.ClientToken, r); err != nil || ok {
			if ok {
				out = *prior.enis[0].Trunk
			}
			return err
		}
		e, err := es.trunks.associate(r)
		if err != nil {
			return err
		}
		es.tokens.remember(r.ClientToken, idempotent{request: r, enis: []ENI{e.Clone()}})
		out = *e.Trunk
		return nil
	})
	return out, err
}

// associate creates the association. The caller must hold the lock.
func (ts *trunks) associate(r AssociateRequest) (*ENI, error) {
	t, err := ts.store.findENI(r.TrunkID)
	if err != nil {
		return nil, err
	}
	e, err := ts.store.findENI(r.BranchID)
	if err != nil {
		return nil, err
	}
	if err := ts.mayAssociate(t, e, r.VLAN); err != nil {
		return nil, err
	}
	n := e.Clone()
	n.Trunk = &Association{ID: ts.world.newID("trunk-assoc"), TrunkID: t.ID, BranchID: e.ID, VLAN: r.VLAN, Time: ts.world.clock.Now()}
	if ts.branches[t.ID] == nil {
		ts.branches[t.ID] = map[string]struct{}{}
	}
	ts.branches[t.ID][e.ID] = struct{}{}
	ts.byID[n.Trunk.ID] = e.ID
	ts.store.putENI(&n)
	if t.Attachment.LinkUp {
		ts.world.emit(ENIAssociated, ts.store.holder(&n), &n)
	}
	return &n, nil
}

// mayAssociate checks whether an ENI may become a branch of a trunk. The caller must hold the lock.
func (ts *trunks) mayAssociate(t, e *ENI, vlan int) error {
	switch {
	case t.Type != trunk:
		return invalid("Interface '%s' is not a trunk interface: its type is '%s'.", t.ID, t.InterfaceType())
	case e.Type != ordinary:
		return invalid("Interface '%s' of type '%s' cannot be a branch interface.", e.ID, e.Type)
	case vlan < 1 || vlan > maxVLAN:
		return invalid("Value (%d) for parameter VlanId is invalid. Expecting a value between 1 and %d.", vlan, maxVLAN)
	case e.Status() != available:
		return Errorf("InvalidNetworkInterface.InUse", "Interface: [%s] in use.", e.ID)
	case t.Attachment == nil || t.Attachment.Status == Detaching:
		return Errorf("IncorrectState", "The trunk interface '%s' is not attached to an instance.", t.ID)
	case e.VPCID != t.VPCID:
		return badCombination("You may not associate a branch interface with a trunk interface if they are not in the same VPC")
	case e.Zone != t.Zone:
		return badCombination("You may not associate a branch interface with a trunk interface if they are not in the same availability zone")
	}
	for _, other := range ts.trunkBranches(t.ID) {
		if other.Trunk.VLAN == vlan {
			return Errorf("InvalidVlanId.Duplicate", "VlanId '%d' is in use", vlan)
		}
	}
	i := ts.store.holder(t)
	if n, most := ts.countBranches(i.ID)+1, limits.Branches(i.Type); n > most {
		return Errorf("AttachmentLimitExceeded", "Branch interface count %d exceeds the limit for %s", n, i.Type)
	}
	return ts.store.room(i, e)
}

// countBranches counts the branches of an instance. The caller must hold the lock.
func (ts *trunks) countBranches(instanceID string) (n int) {
	for trunkID, branches := range ts.branches {
		if i := ts.store.holder(ts.store.enis.get(trunkID)); i != nil && i.ID == instanceID {
			n += len(branches)
		}
	}
	return n
}

// trunkBranches lists a trunk's branches by VLAN. The caller must hold the lock.
func (ts *trunks) trunkBranches(trunkID string) (out []*ENI) {
	for id := range ts.branches[trunkID] {
		out = append(out, ts.store.enis.get(id))
	}
	slices.SortFunc(out, byVLAN)
	return out
}

func byVLAN(a, b *ENI) int { return cmp.Compare(a.Trunk.VLAN, b.Trunk.VLAN) }

// DisassociateRequest is a request to end an association.
type DisassociateRequest struct {
	AssociationID string
	ClientToken   string
}

// Disassociate makes a branch an available ENI again.
func (es *ENIs) Disassociate(r DisassociateRequest) error {
	return es.world.change(func() error {
		if _, ok, err := es.tokens.replay(r.ClientToken, r); err != nil || ok {
			return err
		}
		e := es.store.enis.get(es.trunks.byID[r.AssociationID])
		if e == nil || es.store.tooFresh(!has(es.store.enis.asOf(e.ID, es.world.clock.Now().Add(-es.store.lag)), r.AssociationID)) {
			return NotFound("trunk-assoc", r.AssociationID)
		}
		es.trunks.endAssociation(e)
		es.tokens.remember(r.ClientToken, idempotent{request: r})
		return nil
	})
}

// has reports whether an ENI has an association.
func has(e *ENI, associationID string) bool {
	return e != nil && e.Trunk != nil && e.Trunk.ID == associationID
}

// endAssociation ends a branch's association. The caller must hold the lock.
func (ts *trunks) endAssociation(e *ENI) {
	i := ts.store.holder(e)
	delete(ts.branches[e.Trunk.TrunkID], e.ID)
	if len(ts.branches[e.Trunk.TrunkID]) == 0 {
		delete(ts.branches, e.Trunk.TrunkID)
	}
	delete(ts.byID, e.Trunk.ID)
	last, n := e.Clone(), e.Clone()
	n.Trunk = nil
	ts.store.putENI(&n)
	ts.world.emit(ENIDisassociated, i, &last)
}

// Branches lists a trunk's branches by VLAN.
func (b Snapshot) Branches(trunkID string) (out []ENI) {
	for _, e := range b.ENIs {
		if e.Trunk != nil && e.Trunk.TrunkID == trunkID {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(x, y ENI) int { return byVLAN(&x, &y) })
	return out
}

// Associations lists all associations, ordered by ID.
func (v View) Associations() (out []*Association) {
	for _, e := range v.ENIs() {
		if e.Trunk != nil {
			out = append(out, e.Trunk)
		}
	}
	slices.SortFunc(out, func(a, b *Association) int { return strings.Compare(a.ID, b.ID) })
	return out
}
