package branch

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/vpcport"
)

// Network implements vpcport.Provider. It supports only the VPC of the settings.
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
		if n, ok := p.s.subnetOf(s); ok {
			out.Subnets = append(out.Subnets, n)
		}
	}
	return out, nil
}

// gateway6 is the IPv6 router of every subnet (Amazon VPC User Guide, "Subnet CIDR blocks").
var gateway6 = netip.MustParseAddr("fe80:ec2::1")

// subnetOf converts a subnet to its blocks of the ports' families. It returns false if there are none.
func (s Settings) subnetOf(n cloud.Subnet) (out vpcport.Subnet, ok bool) {
	out = vpcport.Subnet{ID: n.ID, Name: n.Tags["Name"]}
	if s.Families.Has(ipfamily.IPv4) {
		if n.IPv6Native {
			return out, false
		}
		out.CIDR, out.Gateway = n.CIDR, n.CIDR.Masked().Addr().Next()
	}
	switch {
	case !s.Families.Has(ipfamily.IPv6) || len(n.IPv6) == 0:
	case out.CIDR.IsValid():
		out.IPv6CIDR, out.IPv6Gateway = n.IPv6[0], gateway6
	default:
		out.CIDR, out.Gateway = n.IPv6[0], gateway6
	}
	return out, out.CIDR.IsValid()
}

// Project implements vpcport.Provider. The VPC stands for the account and region.
func (p *Provider) Project(context.Context) (string, error) { return p.s.VPC, nil }

// subnets caches the subnets of the VPC.
type subnets struct {
	s Settings

	mu    sync.Mutex // guards known; not held during calls to EC2
	known map[string]cloud.Subnet
}

func newSubnets(s Settings) *subnets { return &subnets{s: s} }

// list lists the subnets at EC2, ordered by ID. It does not cache subnets that cannot contain ports: IPv6-only subnets if ports have IPv4.
func (s *subnets) list(ctx context.Context) ([]cloud.Subnet, error) {
	list, err := s.s.Cloud.Subnets(ctx, cloud.SubnetFilter{VPCID: s.s.VPC})
	if err != nil {
		return nil, classified(opSubnets, fmt.Errorf("list the subnets of VPC %s: %w", s.s.VPC, err))
	}
	list = slices.DeleteFunc(list, func(n cloud.Subnet) bool { return n.VPCID != s.s.VPC })
	slices.SortFunc(list, func(a, b cloud.Subnet) int { return cmp.Compare(a.ID, b.ID) })
	known := map[string]cloud.Subnet{}
	for _, n := range list {
		if !n.IPv6Native || !s.s.Families.Has(ipfamily.IPv4) {
			known[n.ID] = n
		}
	}
	s.mu.Lock()
	s.known = known
	s.mu.Unlock()
	return list, nil
}

// have returns the cached ones of the given subnets, and one that is missing from the cache.
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

// of returns subnets by ID, and lists again if one is not cached. It leaves out subnets that do not exist; missing is the last of them.
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

// placement decides in which subnets a port may be.
type placement struct {
	s       Settings
	trunks  *trunks
	subnets *subnets
}

// of returns the subnets in which a port may be, best first, and the trunk of its host, or nil if the host has none.
func (p *placement) of(ctx context.Context, n vpcport.NewPort) (list []cloud.Subnet, t *trunk, err error) {
	if n.Host != "" {
		if t, _, err = p.trunks.of(ctx, n.Host); err != nil {
			return nil, nil, err
		}
	}
	ids, err := p.mayBeIn(n, t)
	if err != nil {
		return nil, nil, err
	}
	if list, err = p.among(ctx, ids, n, t); vpcport.ClassOf(err) == vpcport.Invalid { // a subnet may have got the IPv6 block since
		if _, err := p.subnets.list(ctx); err != nil {
			return nil, nil, err
		}
		list, err = p.among(ctx, ids, n, t)
	}
	return list, t, err
}

// among returns the given subnets in which a port may be.
func (p *placement) among(ctx context.Context, ids []string, n vpcport.NewPort, t *trunk) ([]cloud.Subnet, error) {
	list, missing, err := p.subnets.of(ctx, ids)
	switch {
	case err != nil:
		return nil, err
	case len(n.Addresses) > 0 && len(list) == 0:
		return nil, failure(vpcport.ReferenceGone, opCreate, "VPC %s has no subnet %.64s for ports with %v", p.s.VPC, ids[0], p.s.Families.Families())
	case len(n.Addresses) == 0:
		if list = inZone(list, t.Zone); len(list) == 0 {
			return nil, failure(vpcport.Invalid, opCreate, "none of the subnets %v is in zone %s of instance %s; missing or IPv6-only: %q", ids, t.Zone, t.Instance, missing)
		}
	}
	if list = p.s.withFamilies(list, n.Addresses); len(list) == 0 {
		return nil, failure(vpcport.Invalid, opCreate, "none of the subnets %v has the IPv6 CIDR block that the port needs", ids)
	}
	return list, nil
}

// mayBeIn returns the IDs of the subnets in which a port may be: the requested subnet, the requested choice, the configured subnets, or
// the subnet of its host's trunk. It refuses invalid combinations of addresses.
func (p *placement) mayBeIn(n vpcport.NewPort, t *trunk) ([]string, error) {
	switch families := p.s.Families.Families(); {
	case len(n.Addresses) > len(families):
		return nil, failure(vpcport.Invalid, opCreate, "a port with %d addresses, expected one of each of %v", len(n.Addresses), families)
	case len(n.Addresses) == 2 && n.Addresses[0].SubnetID != n.Addresses[1].SubnetID:
		return nil, failure(vpcport.Invalid, opCreate, "a port with addresses of the subnets %.64s and %.64s, expected those of one", n.Addresses[0].SubnetID, n.Addresses[1].SubnetID)
	case len(n.Addresses) > 0:
		return []string{n.Addresses[0].SubnetID}, nil
	case t == nil:
		return nil, failure(vpcport.Conflict, opCreate, "%s", p.trunks.missing(n.Host))
	case len(n.Subnets) > 0:
		return n.Subnets, nil
	case len(p.s.Subnets) == 0:
		return []string{t.SubnetID}, nil
	}
	return p.s.Subnets, nil
}

// withFamilies returns the subnets that have all families of ports. A request for only a fixed IPv4 address, such as one that creates an
// IPv4-only port again, needs no IPv6 block.
func (s Settings) withFamilies(list []cloud.Subnet, asked []vpcport.NewAddress) []cloud.Subnet {
	if !s.Families.Has(ipfamily.IPv6) || len(asked) == 1 && asked[0].IP.Is4() {
		return list
	}
	return slices.DeleteFunc(list, func(n cloud.Subnet) bool { return len(n.IPv6) == 0 })
}

// inZone returns the subnets of a zone: first IPv6-only subnets, which cost no IPv4 address, then by the number of free addresses.
func inZone(list []cloud.Subnet, zone string) []cloud.Subnet {
	out := slices.DeleteFunc(slices.Clone(list), func(s cloud.Subnet) bool { return s.Zone != zone })
	slices.SortFunc(out, func(a, b cloud.Subnet) int {
		if a.IPv6Native != b.IPv6Native {
			return map[bool]int{true: -1, false: 1}[a.IPv6Native]
		}
		return cmp.Or(cmp.Compare(b.Free, a.Free), strings.Compare(a.ID, b.ID))
	})
	return out
}
