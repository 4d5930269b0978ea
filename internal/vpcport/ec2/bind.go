package ec2

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/vpcport"
)

// attempts is how many VLANs are tried one after the other, each of which turns out to be
// taken. Of 4094 a trunk has some hundred in use at most.
const attempts = 8

// bind makes an ENI, which is associated with no trunk, a branch of a host's. What the host
// cannot take is told by the answer and is no error.
func (p *Provider) bind(ctx context.Context, e cloud.ENI, host string) (vpcport.Port, error) {
	unbound := p.s.portOf(e, cloud.Association{}, nil)
	t, ok, err := p.trunks.of(ctx, host)
	switch {
	case err != nil:
		return vpcport.Port{}, err
	case e.Attachment != nil:
		return unbindable(unbound, host, unbound.Binding.Why), nil
	case !ok:
		return unbindable(unbound, host, p.trunks.missing(host)), nil
	case t.Zone != e.Zone:
		return unbindable(unbound, host, fmt.Sprintf("%s is in subnet %s in zone %s, and instance %s in zone %s", e.ID, e.SubnetID, e.Zone, host, t.Zone)), nil
	}
	for range attempts {
		a, again, err := p.associate(ctx, &e, t)
		switch {
		case again:
			continue
		case cloud.ClassOf(err) == cloud.LimitReached:
			return unbindable(unbound, host, fmt.Sprintf("instance %s has as many branch interfaces as its type may have: %v", host, err)), nil
		case err != nil:
			return p.notBound(e, t, err)
		}
		return p.s.portOf(e, a, t), nil
	}
	return vpcport.Port{}, failure(vpcport.Conflict, opBind, "trunk %s of instance %s: %d VLANs that were tried one after the other are in use", t.ID, host, attempts)
}

// associate tries one VLAN. Again: another branch has it.
func (p *Provider) associate(ctx context.Context, e *cloud.ENI, t *trunk) (a cloud.Association, again bool, err error) {
	a = tagged(*e)
	if a.TrunkID != t.ID || a.VLAN == 0 || !p.vlans.take(t.ID, a.VLAN) {
		a = cloud.Association{TrunkID: t.ID, BranchID: e.ID, VLAN: p.vlans.next(t.ID, e.Tags[eni.TagNIC])}
		p.vlans.take(t.ID, a.VLAN)
		if err := p.tag(ctx, e, intent(a.TrunkID, a.VLAN)); err != nil {
			return a, false, err
		}
	}
	a.ID = ""
	a, err = p.s.Cloud.AssociateBranch(ctx, a, rand.Text())
	if code(err) == codeDuplicate {
		return a, true, nil // it stays taken for a while
	}
	if err != nil {
		return a, false, err
	}
	p.memory.associated(*e, a)
	e.Type = cloud.InterfaceBranch
	// By the tag alone another operator can take the branch off the trunk again. Without it,
	// it can still be deleted.
	if err := p.tag(ctx, e, map[string]string{TagAssociation: a.ID}); err != nil {
		p.s.Logger.Warn("a branch could not be tagged with its association", "eni", e.ID, "trunk", t.ID, "vlan", a.VLAN, "association", a.ID, "error", err)
	}
	return a, false, nil
}

// notBound is what an error of an association comes to.
func (p *Provider) notBound(e cloud.ENI, t *trunk, err error) (vpcport.Port, error) {
	switch cloud.ClassOf(err) {
	case cloud.Gone, cloud.Conflict: // of the trunk or of the branch: both are looked at again
		p.trunks.forget(t.Instance)
		return vpcport.Port{}, &vpcport.Error{Class: vpcport.Conflict, Op: opBind, Type: code(err), Message: err.Error(), Err: err}
	}
	return vpcport.Port{}, classified(opBind, fmt.Errorf("make port %s a branch of trunk %s: %w", e.ID, t.ID, err))
}

// unbind ends the association of a branch, whose address and ID stay.
func (p *Provider) unbind(ctx context.Context, e *cloud.ENI) error {
	a := p.memory.association(*e)
	if a.ID == "" {
		return failure(vpcport.Conflict, opUnbind, "%s is a branch of trunk %q, and lacks the tag %s, by which it could be taken off: expected the ID of the association", e.ID, a.TrunkID, TagAssociation)
	}
	err := p.s.Cloud.DisassociateBranch(ctx, a.ID)
	if err != nil && cloud.ClassOf(err) != cloud.Gone {
		return classified(opUnbind, fmt.Errorf("take port %s off trunk %s: %w", e.ID, a.TrunkID, err))
	}
	p.vlans.release(a.TrunkID, a.VLAN)
	e.Type, e.Status = cloud.InterfaceOrdinary, "available"
	p.memory.is(*e)
	return nil
}
