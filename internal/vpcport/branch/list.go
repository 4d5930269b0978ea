package branch

import (
	"context"
	"fmt"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
)

// Ports implements vpcport.Provider. EC2 filters by IDs, devices, VPC and Berth's owner; the
// rest of the filter is applied here.
func (p *Provider) Ports(ctx context.Context, f vpcport.Filter) ([]vpcport.Port, error) {
	if f.Empty() {
		return nil, failure(vpcport.Bug, opENIs, "an empty filter would list all ENIs")
	}
	by := cloud.ENIFilter{IDs: f.IDs, VPCID: f.NetworkID}
	if len(f.Devices) > 0 {
		by.Tagged = map[string][]string{eni.TagNIC: f.Devices}
	}
	if f.Owner == vpcport.Owner {
		by.Tags = map[string]string{eni.TagCluster: p.s.Cluster, eni.TagOwner: Owner}
	}
	list, err := p.s.Cloud.ENIs(ctx, by)
	if err != nil {
		return nil, classified(opENIs, fmt.Errorf("list ports: %w", err))
	}
	list = p.memory.over(list, func(e cloud.ENI) bool {
		return p.s.mayBePort(e) && f.Has(vpcport.Port{ID: e.ID, Device: e.Tags[eni.TagNIC], NetworkID: e.VPCID, Owner: p.s.owner(e), MAC: mac.Addr(e.MAC)})
	})
	return p.ports(ctx, list)
}

// ports converts ENIs to ports.
func (p *Provider) ports(ctx context.Context, list []cloud.ENI) ([]vpcport.Port, error) {
	of := make([]cloud.Association, len(list))
	var trunkIDs []string
	for i, e := range list {
		if e.Type == cloud.InterfaceBranch {
			of[i] = p.memory.association(e)
			trunkIDs = append(trunkIDs, of[i].TrunkID)
		}
	}
	trunks, err := p.trunks.byIDs(ctx, trunkIDs)
	if err != nil {
		return nil, err
	}
	out := make([]vpcport.Port, len(list))
	for i, e := range list {
		out[i] = p.s.portOf(e, of[i], trunks[of[i].TrunkID])
	}
	return out, nil
}

// Get implements vpcport.Provider.
func (p *Provider) Get(ctx context.Context, id string) (vpcport.Port, error) {
	e, err := p.find(ctx, id)
	if err != nil {
		return vpcport.Port{}, err
	}
	return p.port(ctx, e)
}

// port converts one ENI to a port.
func (p *Provider) port(ctx context.Context, e cloud.ENI) (vpcport.Port, error) {
	list, err := p.ports(ctx, []cloud.ENI{e})
	if err != nil {
		return vpcport.Port{}, err
	}
	return list[0], nil
}

// find describes an ENI that may be a port. If there is none, the class is PortGone.
func (p *Provider) find(ctx context.Context, id string) (cloud.ENI, error) {
	list, err := p.s.Cloud.ENIs(ctx, cloud.ENIFilter{IDs: []string{id}})
	if err != nil {
		return cloud.ENI{}, classified(opENIs, fmt.Errorf("describe port %s: %w", id, err))
	}
	list = p.memory.over(list, func(e cloud.ENI) bool { return e.ID == id && p.s.mayBePort(e) })
	if len(list) == 0 {
		p.memory.gone(id)
		return cloud.ENI{}, failure(vpcport.PortGone, opENIs, "no ENI %s has the tags of ports: %s=%s and %s", id, eni.TagCluster, p.s.Cluster, eni.TagNIC)
	}
	return list[0], nil
}
