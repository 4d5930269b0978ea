package branch

import (
	"context"
	"fmt"
	"maps"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/vpcport"
)

// Update implements vpcport.Provider. It changes the tags first, because a port is bound only once its owner is known.
func (p *Provider) Update(ctx context.Context, id string, _ int, c vpcport.Change) (vpcport.Port, error) {
	if c.Empty() {
		return vpcport.Port{}, failure(vpcport.Bug, opUpdate, "an empty change")
	}
	e, err := p.find(ctx, id)
	if err != nil {
		return vpcport.Port{}, err
	}
	if tags := marks(c); len(tags) > 0 {
		if err := p.tag(ctx, &e, tags); err != nil {
			return vpcport.Port{}, err
		}
	}
	if c.Groups != nil {
		if err := p.s.Cloud.SetGroups(ctx, id, c.Groups); err != nil {
			return vpcport.Port{}, classified(opUpdate, fmt.Errorf("set the security groups of port %s: %w", id, err))
		}
		e.Groups = c.Groups
		p.memory.is(e)
	}
	if c.Host == nil {
		return p.port(ctx, e)
	}
	return p.rehost(ctx, e, *c.Host)
}

// marks returns the tags for a change of device and owner.
func marks(c vpcport.Change) map[string]string {
	tags := map[string]string{}
	if c.Device != nil {
		tags[eni.TagNIC] = *c.Device
	}
	if c.Owner != nil {
		if tags[eni.TagOwner] = ""; *c.Owner == vpcport.Owner {
			tags[eni.TagOwner] = Owner
		}
	}
	return tags
}

// tag sets tags of an ENI.
func (p *Provider) tag(ctx context.Context, e *cloud.ENI, tags map[string]string) error {
	if err := p.s.Cloud.Tag(ctx, e.ID, tags); err != nil {
		return classified(opUpdate, fmt.Errorf("tag port %s: %w", e.ID, err))
	}
	e.Tags = with(e.Tags, tags)
	p.memory.is(*e)
	return nil
}

// with merges tags; others takes precedence.
func with(tags, others map[string]string) map[string]string {
	all := maps.Clone(tags)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, others)
	return all
}

// rehost binds a port to a host, or to none. It ends any other binding first.
func (p *Provider) rehost(ctx context.Context, e cloud.ENI, host string) (vpcport.Port, error) {
	now, err := p.port(ctx, e)
	if err != nil {
		return vpcport.Port{}, err
	}
	if now.Host == host && now.Binding.Result == vpcport.Bound {
		return now, nil
	}
	if e.Type == cloud.InterfaceBranch {
		if err := p.unbind(ctx, &e); err != nil {
			return vpcport.Port{}, err
		}
	}
	if host == "" {
		return p.s.portOf(e, cloud.Association{}, nil), nil
	}
	return p.bind(ctx, e, host)
}

// Delete implements vpcport.Provider. The port's VLAN is not reused for Settings.Cooling.
func (p *Provider) Delete(ctx context.Context, id string) error {
	err := p.s.Cloud.DeleteENI(ctx, id)
	if err != nil && cloud.ClassOf(err) != cloud.Gone {
		if err = classified(opDelete, fmt.Errorf("delete port %s: %w", id, err)); vpcport.ClassOf(err) != vpcport.PortGone {
			return err
		}
	}
	p.notes.stop(id)
	if a, ok := p.memory.dropped(id); ok {
		p.vlans.release(a.TrunkID, a.VLAN)
	}
	return nil
}
