package ec2

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/vpcport"
)

// Network implements vpcport.Provider, of the one VPC that the provider is for.
func (p *Provider) Network(ctx context.Context, id string) (vpcport.Network, error) {
	if id != p.s.VPC {
		return vpcport.Network{}, failure(vpcport.NetworkGone, opSubnets, "the provider is for VPC %s, not for %.64q", p.s.VPC, id)
	}
	list, err := p.subnets.list(ctx)
	if err != nil {
		return vpcport.Network{}, err
	}
	if len(list) == 0 {
		return vpcport.Network{}, failure(vpcport.NetworkGone, opSubnets, "there is no VPC %s in the operator's region, or it has no subnet", id)
	}
	out := vpcport.Network{ID: id, Name: id}
	for _, s := range list {
		out.Subnets = append(out.Subnets, vpcport.Subnet{ID: s.ID, Name: s.Tags["Name"], CIDR: s.CIDR, Gateway: s.CIDR.Masked().Addr().Next()})
	}
	return out, nil
}

// Project implements vpcport.Provider: the ID of a VPC tells account and region.
func (p *Provider) Project(context.Context) (string, error) { return p.s.VPC, nil }

// subnets are those of the VPC, as they were listed last.
type subnets struct {
	s Settings

	mu    sync.Mutex // guards known; not held while EC2 is asked
	known map[string]cloud.Subnet
}

func newSubnets(s Settings) *subnets { return &subnets{s: s} }

// list asks EC2 for the subnets, in the order of their IDs.
func (s *subnets) list(ctx context.Context) ([]cloud.Subnet, error) {
	list, err := s.s.Cloud.Subnets(ctx, cloud.SubnetFilter{VPCID: s.s.VPC})
	if err != nil {
		return nil, classified(opSubnets, fmt.Errorf("list the subnets of VPC %s: %w", s.s.VPC, err))
	}
	list = slices.DeleteFunc(list, func(n cloud.Subnet) bool { return n.VPCID != s.s.VPC || !n.CIDR.Addr().Is4() })
	slices.SortFunc(list, func(a, b cloud.Subnet) int { return cmp.Compare(a.ID, b.ID) })
	known := map[string]cloud.Subnet{}
	for _, n := range list {
		known[n.ID] = n
	}
	s.mu.Lock()
	s.known = known
	s.mu.Unlock()
	return list, nil
}

// have tells what is known of some subnets; missing: one is not known.
func (s *subnets) have(ids []string) (out []cloud.Subnet, missing string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		n, ok := s.known[id]
		if !ok {
			missing = id
			continue
		}
		out = append(out, n)
	}
	return out, missing
}

// of are subnets by their IDs; EC2 is asked where one is not known. Those that there are not
// are left out, with the last of them as missing.
func (s *subnets) of(ctx context.Context, ids []string) (out []cloud.Subnet, missing string, err error) {
	if out, missing = s.have(ids); missing == "" {
		return out, "", nil
	}
	if _, err := s.list(ctx); err != nil {
		return nil, "", err
	}
	out, missing = s.have(ids)
	return out, missing, nil
}

// inZone are the subnets of a zone, those with most free addresses first.
func inZone(list []cloud.Subnet, zone string) []cloud.Subnet {
	out := slices.DeleteFunc(slices.Clone(list), func(s cloud.Subnet) bool { return s.Zone != zone })
	slices.SortFunc(out, func(a, b cloud.Subnet) int {
		return cmp.Or(cmp.Compare(b.Free, a.Free), strings.Compare(a.ID, b.ID))
	})
	return out
}
