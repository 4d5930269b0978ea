package branch

import (
	"context"
	"errors"
	"fmt"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/vpcport"
)

// attempts is the number of VLANs that bind tries before it gives up. A trunk uses about a hundred of 4094.
const attempts = 8

// bind associates an unassociated ENI with the trunk of a host. If the host cannot take it, the port has BindingFailed and bind returns
// no error.
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
		return unbindable(unbound, host, fmt.Sprintf("%s is in subnet %s in zone %s, but instance %s is in zone %s", e.ID, e.SubnetID, e.Zone, host, t.Zone)), nil
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
	return vpcport.Port{}, failure(vpcport.Conflict, opBind, "trunk %s of instance %s: all %d VLANs tried are in use", t.ID, host, attempts)
}

// associate tries one VLAN. It returns again if another branch has that VLAN.
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
	// A higher priority finishes ports before it starts new ones.
	a, err = p.s.Cloud.AssociateBranch(cloud.WithPriority(ctx, cloud.PriorityOf(ctx)+1), a, requestToken(*e, a))
	if code(err) == codeDuplicate {
		return a, true, nil // the VLAN stays reserved for Settings.Cooling
	}
	if err != nil {
		return a, false, err
	}
	p.memory.associated(*e, a)
	e.Type = cloud.InterfaceBranch
	p.notes.note(ctx, a)
	return a, false, nil
}

// notBound classifies a failed association.
func (p *Provider) notBound(e cloud.ENI, t *trunk, err error) (vpcport.Port, error) {
	switch cloud.ClassOf(err) {
	case cloud.Gone, cloud.Conflict: // the trunk or the branch has changed: look up both again
		p.trunks.forget(t.Instance)
		return vpcport.Port{}, &vpcport.Error{Class: vpcport.Conflict, Op: opBind, Type: code(err), Message: err.Error(), Err: err}
	}
	return vpcport.Port{}, classified(opBind, fmt.Errorf("associate port %s with trunk %s: %w", e.ID, t.ID, err))
}

// unbind ends the association of a branch, which keeps its address and ID. It first writes the association's ID to the tags, so that no
// two requests for an association are equal.
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
	case cloud.ClassOf(err) == cloud.Gone: // another client was faster, or the tags are wrong: the next listing decides
		p.memory.forget(e.ID)
		return failure(vpcport.Conflict, opUnbind, "%s is a branch of trunk %s, but its association %s does not exist", e.ID, a.TrunkID, a.ID)
	case err != nil:
		return classified(opUnbind, fmt.Errorf("disassociate port %s from trunk %s: %w", e.ID, a.TrunkID, err))
	}
	p.vlans.release(a.TrunkID, a.VLAN)
	e.Type, e.Status = cloud.InterfaceOrdinary, "available"
	p.memory.is(*e)
	return nil
}

// recall finds the ID of an association whose process ended before it could write the ID to the tags. It repeats the request: EC2
// remembers requests for a limited time (EC2 API, "Ensuring idempotency").
func (p *Provider) recall(ctx context.Context, e cloud.ENI, a cloud.Association) (cloud.Association, error) {
	err := errors.New("the tags have neither trunk nor VLAN")
	if a.TrunkID != "" && a.VLAN != 0 {
		var found cloud.Association
		if found, err = p.s.Cloud.AssociateBranch(ctx, a, requestToken(e, a)); err == nil {
			return found, nil
		}
		if class := cloud.ClassOf(err); class != cloud.Gone && class != cloud.Conflict && class != cloud.Bug {
			return a, classified(opUnbind, fmt.Errorf("look up the association of port %s: %w", e.ID, err))
		}
	}
	return a, failure(vpcport.Conflict, opUnbind, "cannot end the association of %s with trunk %q: it lacks the tag %s with the ID of the association, and EC2 no longer answers the repeated request: %v", e.ID, a.TrunkID, TagAssociation, err)
}
