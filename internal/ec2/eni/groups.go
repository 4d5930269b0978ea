package eni

import (
	"context"
	"slices"
)

// othersThanPrimary tells whether an ENI is to have the security groups of the primary, as nothing
// else is configured, and has others. Those of another VPC cannot be the primary's.
func (p *placement) othersThanPrimary(k *known) bool {
	primary, ok := p.view.primary()
	if !ok || len(p.cfg.Groups)+len(p.cfg.GroupTags) > 0 || primary.VPCID != k.VPCID {
		return false
	}
	return len(k.Groups) > 0 && len(primary.Groups) > 0 && !slices.Equal(set(k.Groups), set(primary.Groups))
}

// setGroups gives an ENI the primary's security groups. A repeat does no harm, and nothing
// is recorded before or after.
func (r *Reconciler) setGroups(ctx context.Context, k *known) error {
	primary, ok := r.view.primary()
	if !ok {
		return gone("ModifyNetworkInterfaceAttribute", "instance %s has no primary ENI", r.cfg.InstanceID)
	}
	if err := r.cfg.Cloud.SetGroups(ctx, k.ID, primary.Groups); err != nil {
		return err
	}
	k.Groups, k.groupsSet = slices.Clone(primary.Groups), r.cfg.Clock.Now()
	return nil
}
