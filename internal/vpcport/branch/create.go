package branch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/vpcport"
)

// maxDescription is the maximum length of an ENI's description (EC2 API Reference,
// CreateNetworkInterface).
const maxDescription = 255

// creations is the maximum number of times create repeats a request that EC2 answers with a deleted ENI.
const creations = 3

// Create implements vpcport.Provider. It accepts one port. If the port cannot be bound to its host, it is created unbound; a later Update
// with the host reports the reason.
func (p *Provider) Create(ctx context.Context, ports []vpcport.NewPort) ([]vpcport.Port, error) {
	if len(ports) != 1 {
		return nil, failure(vpcport.TooLarge, opCreate, "a request for %d ports, expected one", len(ports))
	}
	n := ports[0]
	if n.NetworkID != p.s.VPC {
		return nil, failure(vpcport.NetworkGone, opCreate, "a port of network %.64q, expected one of VPC %s", n.NetworkID, p.s.VPC)
	}
	subnets, t, err := p.placement.of(ctx, n)
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

// make creates a port in the first subnet with room, and binds it.
func (p *Provider) make(ctx context.Context, n vpcport.NewPort, request cloud.CreateENI, subnets []cloud.Subnet) (out vpcport.Port, err error) {
	var e cloud.ENI
	for _, s := range subnets {
		r := request
		if r.SubnetID = s.ID; len(s.IPv6) == 0 {
			r.IPv6 = 0 // Settings.withFamilies
		}
		if e, err = p.create(ctx, n, r); vpcport.ClassOf(err) != vpcport.SubnetFull {
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

// request returns the request to EC2, without the subnet.
func (p *Provider) request(n vpcport.NewPort, t *trunk) (cloud.CreateENI, error) {
	r := cloud.CreateENI{
		Groups: slices.Sorted(slices.Values(n.Groups)), Description: vpcport.Cut(n.Name, maxDescription), Tags: p.s.creationTags(n.Device),
	}
	if err := p.s.ask(&r, n.Addresses); err != nil {
		return r, err
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

// ask requests the given addresses, or any address of each family.
func (s Settings) ask(r *cloud.CreateENI, addresses []vpcport.NewAddress) error {
	for _, a := range addresses {
		at := &r.Primary
		if a.IP.Is6() {
			at = &r.IPv6Address
		}
		switch {
		case !a.IP.IsValid():
			continue
		case !s.Families.Has(ipfamily.Of(a.IP)):
			return failure(vpcport.Invalid, opCreate, "the address %s, expected one of %v", a.IP, s.Families.Families())
		case at.IsValid():
			return failure(vpcport.Invalid, opCreate, "the addresses %s and %s, expected one of each of %v", *at, a.IP, s.Families.Families())
		}
		*at = a.IP
	}
	if s.Families.Has(ipfamily.IPv6) && !r.IPv6Address.IsValid() {
		r.IPv6 = 1
	}
	return nil
}

// Resolve implements vpcport.Resolver.
func (p *Provider) Resolve(ctx context.Context, n vpcport.NewPort) (vpcport.Resolved, error) {
	subnets, t, err := p.placement.of(ctx, n)
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

// create creates an ENI, once per request and device.
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
			return cloud.ENI{}, classified(opCreate, fmt.Errorf("create a port in subnet %s: %w", r.SubnetID, err))
		}
		return e, p.asAsked(n, r, e)
	}
	return cloud.ENI{}, failure(vpcport.Conflict, opCreate, "EC2 keeps returning deleted ENIs")
}

// asAsked compares EC2's reply with the request.
func (p *Provider) asAsked(n vpcport.NewPort, r cloud.CreateENI, e cloud.ENI) error {
	n.Host = "" // it is not a branch yet
	n.Addresses = nil
	if p.s.Families.Has(ipfamily.IPv4) {
		n.Addresses = append(n.Addresses, vpcport.NewAddress{SubnetID: r.SubnetID, IP: r.Primary})
	}
	if r.IPv6 > 0 || r.IPv6Address.IsValid() {
		n.Addresses = append(n.Addresses, vpcport.NewAddress{SubnetID: r.SubnetID, IP: r.IPv6Address})
	}
	if n.Groups = r.Groups; len(r.Groups) == 0 {
		n.Groups = nil
	}
	if what := vpcport.Mismatch(n, p.s.portOf(e, cloud.Association{}, nil)); what != "" {
		return failure(vpcport.Bug, opCreate, "impossible reply: %s for device %q has another %s", e.ID, n.Device, what)
	}
	return nil
}

// token derives a client token from a request. It has at most 64 characters (EC2 API Reference).
func token(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(h, "%d %s\x00", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}
