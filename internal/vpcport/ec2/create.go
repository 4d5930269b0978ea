package ec2

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/vpcport"
)

// maxDescription is how long the description of an ENI may be (EC2 API Reference,
// CreateNetworkInterface).
const maxDescription = 255

// creations is how often a port is asked for at most that EC2 says was deleted since.
const creations = 3

// Create implements vpcport.Provider, of one port. One that cannot be bound to its host is
// made all the same, and bound to none: a change of its host tells why.
func (p *Provider) Create(ctx context.Context, ports []vpcport.NewPort) ([]vpcport.Port, error) {
	if len(ports) != 1 {
		return nil, failure(vpcport.TooLarge, opCreate, "a request for %d ports, expected one", len(ports))
	}
	n := ports[0]
	if n.NetworkID != p.s.VPC {
		return nil, failure(vpcport.NetworkGone, opCreate, "a port of network %.64q, expected one of VPC %s", n.NetworkID, p.s.VPC)
	}
	subnets, t, err := p.place(ctx, n)
	if err != nil {
		return nil, err
	}
	request, err := p.request(n, t)
	if err != nil {
		return nil, err
	}
	var out vpcport.Port
	p.notes.during(func() { out, err = p.make(ctx, n, request, subnets) })
	if err != nil {
		return nil, err
	}
	return []vpcport.Port{out}, nil
}

// make makes a port in the first of some subnets that has room, and binds it.
func (p *Provider) make(ctx context.Context, n vpcport.NewPort, request cloud.CreateENI, subnets []cloud.Subnet) (out vpcport.Port, err error) {
	var e cloud.ENI
	for _, s := range subnets {
		request.SubnetID = s.ID
		if e, err = p.create(ctx, n, request); vpcport.ClassOf(err) != vpcport.SubnetFull {
			break
		}
	}
	if err != nil {
		return out, err
	}
	p.memory.is(e)
	out = p.s.portOf(e, cloud.Association{}, nil)
	if n.Host != "" {
		if bound, err := p.bind(ctx, e, n.Host); err == nil && bound.Binding.Result == vpcport.Bound {
			out = bound
		}
	}
	return out, nil
}

// place is in which subnets a port may be, the best first, and the trunk of its host; nil
// where it has none.
func (p *Provider) place(ctx context.Context, n vpcport.NewPort) (list []cloud.Subnet, t *trunk, err error) {
	if n.Host != "" {
		if t, _, err = p.trunks.of(ctx, n.Host); err != nil {
			return nil, nil, err
		}
	}
	var ids []string
	switch {
	case len(n.Addresses) > 1:
		return nil, nil, failure(vpcport.Invalid, opCreate, "a port with %d addresses, expected one, of IPv4", len(n.Addresses))
	case len(n.Addresses) == 1:
		ids = []string{n.Addresses[0].SubnetID}
	case t == nil:
		return nil, nil, failure(vpcport.Conflict, opCreate, "%s", p.trunks.missing(n.Host))
	case len(p.s.Subnets) == 0:
		ids = []string{t.SubnetID}
	default:
		ids = p.s.Subnets
	}
	list, missing, err := p.subnets.of(ctx, ids)
	switch {
	case err != nil:
		return nil, nil, err
	case len(n.Addresses) == 1 && len(list) == 0:
		return nil, nil, failure(vpcport.ReferenceGone, opCreate, "VPC %s has no subnet %.64s with IPv4", p.s.VPC, ids[0])
	case len(n.Addresses) == 1:
		return list, t, nil
	}
	if list = inZone(list, t.Zone); len(list) == 0 {
		return nil, nil, failure(vpcport.Invalid, opCreate, "none of the subnets %v is in zone %s, that of instance %s; missing: %q", ids, t.Zone, t.Instance, missing)
	}
	return list, t, nil
}

// request is what EC2 is asked for, but for the subnet.
func (p *Provider) request(n vpcport.NewPort, t *trunk) (cloud.CreateENI, error) {
	r := cloud.CreateENI{
		Groups: slices.Sorted(slices.Values(n.Groups)), Description: vpcport.Cut(n.Name, maxDescription), Tags: p.s.creationTags(n.Device),
	}
	if len(n.Addresses) == 1 && n.Addresses[0].IP.IsValid() {
		if r.Primary = n.Addresses[0].IP; !r.Primary.Is4() {
			return r, failure(vpcport.Invalid, opCreate, "the address %s, expected one of IPv4", r.Primary)
		}
	}
	if t == nil {
		return r, nil
	}
	if len(r.Groups) == 0 {
		r.Groups = slices.Sorted(slices.Values(t.Groups))
	}
	maps.Copy(r.Tags, intent(t.ID, p.vlans.next(t.ID, n.Device)))
	return r, nil
}

// Resolve implements vpcport.Resolver: which subnets a port may be in, and its groups.
func (p *Provider) Resolve(ctx context.Context, n vpcport.NewPort) (vpcport.Resolved, error) {
	subnets, t, err := p.place(ctx, n)
	if err != nil {
		return vpcport.Resolved{}, err
	}
	request, err := p.request(n, t)
	if err != nil {
		return vpcport.Resolved{}, err
	}
	out := vpcport.Resolved{Groups: request.Groups}
	for _, s := range subnets {
		out.Subnets = append(out.Subnets, s.ID)
	}
	return out, nil
}

// create makes an ENI, once for the same request of the same device.
func (p *Provider) create(ctx context.Context, n vpcport.NewPort, r cloud.CreateENI) (cloud.ENI, error) {
	for range creations {
		r.ClientToken = token("create", n.Device, fmt.Sprint(p.memory.generation(n.Device)), fmt.Sprintf("%+v", r))
		e, err := p.s.Cloud.CreateENI(ctx, r)
		switch {
		case code(err) == codeNoENI || err == nil && p.memory.isGone(e.ID):
			p.memory.renew(n.Device)
			r.ClientToken = ""
			continue
		case err != nil:
			return cloud.ENI{}, classified(opCreate, fmt.Errorf("make a port in subnet %s: %w", r.SubnetID, err))
		}
		return e, p.asAsked(n, r, e)
	}
	return cloud.ENI{}, failure(vpcport.Conflict, opCreate, "EC2 answers with ENIs that were deleted since")
}

// asAsked holds EC2's answer against a request.
func (p *Provider) asAsked(n vpcport.NewPort, r cloud.CreateENI, e cloud.ENI) error {
	n.Host = "" // it is no branch yet
	n.Addresses = []vpcport.NewAddress{{SubnetID: r.SubnetID, IP: r.Primary}}
	if n.Groups = r.Groups; len(r.Groups) == 0 {
		n.Groups = nil
	}
	if what := vpcport.Mismatch(n, p.s.portOf(e, cloud.Association{}, nil)); what != "" {
		return failure(vpcport.Bug, opCreate, "the answer cannot be: %s for device %q has another %s", e.ID, n.Device, what)
	}
	return nil
}

// token is a client token that follows from what is asked for: 64 characters at most (EC2
// API Reference).
func token(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(h, "%d %s\x00", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}
