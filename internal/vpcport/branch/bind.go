package branch

import (
	"context"
	"errors"
	"fmt"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
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
	if a.ID != "" || a.TrunkID != t.ID || a.VLAN == 0 || !p.vlans.take(t.ID, a.VLAN) {
		a = cloud.Association{TrunkID: t.ID, BranchID: e.ID, VLAN: p.vlans.next(t.ID, e.Tags[eni.TagNIC])}
		p.vlans.take(t.ID, a.VLAN)
		if err := p.tag(ctx, e, intentAnew(a.TrunkID, a.VLAN)); err != nil {
			return a, false, err
		}
	}
	a.ID = ""
	// What was begun is finished before another port is begun.
	a, err = p.s.Cloud.AssociateBranch(cloud.WithPriority(ctx, cloud.PriorityOf(ctx)+1), a, requestToken(*e, a))
	if code(err) == codeDuplicate {
		return a, true, nil // it stays taken for a while
	}
	if err != nil {
		return a, false, err
	}
	p.memory.associated(*e, a)
	e.Type = cloud.InterfaceBranch
	p.notes.note(ctx, a)
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

// unbind ends the association of a branch, whose address and ID stay. The tags have the ID of
// an association before it ends: so no request for one is ever the same as that for another.
func (p *Provider) unbind(ctx context.Context, e *cloud.ENI) error {
	p.notes.stop(e.ID)
	a := p.memory.association(*e)
	var err error
	if a.ID == "" {
		if a, err = p.recall(ctx, *e, a); err != nil {
			return err
		}
	}
	if e.Tags[TagAssociation] != a.ID {
		if err := p.tag(ctx, e, map[string]string{TagAssociation: a.ID}); err != nil {
			return err
		}
	}
	switch err = p.s.Cloud.DisassociateBranch(ctx, a.ID); {
	case cloud.ClassOf(err) == cloud.Gone: // somebody was faster, or the tags lie: EC2's next listing tells
		p.memory.forget(e.ID)
		return failure(vpcport.Conflict, opUnbind, "%s is a branch of trunk %s by the association %s, which there is not", e.ID, a.TrunkID, a.ID)
	case err != nil:
		return classified(opUnbind, fmt.Errorf("take port %s off trunk %s: %w", e.ID, a.TrunkID, err))
	}
	p.vlans.release(a.TrunkID, a.VLAN)
	e.Type, e.Status = cloud.InterfaceOrdinary, "available"
	p.memory.is(*e)
	return nil
}

// recall tells the association of a branch whose ID nobody wrote down, as a process ended before
// it could: the same request is made again. EC2 remembers requests for a limited time (EC2 API,
// "Ensuring idempotency").
func (p *Provider) recall(ctx context.Context, e cloud.ENI, a cloud.Association) (cloud.Association, error) {
	err := errors.New("the tags tell neither trunk nor VLAN")
	if a.TrunkID != "" && a.VLAN != 0 {
		var told cloud.Association
		if told, err = p.s.Cloud.AssociateBranch(ctx, a, requestToken(e, a)); err == nil {
			return told, nil
		}
		if class := cloud.ClassOf(err); class != cloud.Gone && class != cloud.Conflict && class != cloud.Bug {
			return a, classified(opUnbind, fmt.Errorf("ask for the association of port %s: %w", e.ID, err))
		}
	}
	return a, failure(vpcport.Conflict, opUnbind, "%s is a branch of trunk %q, and lacks the tag %s, by which it could be taken off: expected the ID of the association, which EC2 does not tell any more: %v", e.ID, a.TrunkID, TagAssociation, err)
}
