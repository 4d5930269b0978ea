package neutron

import (
	"cmp"
	"context"
	"net/url"
	"slices"

	"github.com/google/uuid"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

type wireNetwork struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	MTU  int    `json:"mtu"`
}

// Network implements vpcport.Provider. It tries a UUID as an ID before trying it as a name.
func (p *Provider) Network(ctx context.Context, idOrName string) (vpcport.Network, error) {
	const op = "Neutron GET networks"
	if idOrName == "" {
		return vpcport.Network{}, rest.BadRequest(op, "a network without an ID or a name")
	}
	var found []wireNetwork
	var err error
	for _, by := range []string{"id", "name"} {
		if by == "id" && uuid.Validate(idOrName) != nil {
			continue
		}
		if found, err = p.networks(ctx, by, idOrName); err != nil {
			return vpcport.Network{}, err
		}
		if len(found) > 0 {
			break
		}
	}
	switch len(found) {
	case 0:
		return vpcport.Network{}, &vpcport.Error{Class: vpcport.NetworkGone, Op: op, About: idOrName, Message: "no network has the ID or name " + idOrName}
	case 1:
	default:
		return vpcport.Network{}, &vpcport.Error{Class: vpcport.Invalid, Op: op, About: idOrName, Message: "several networks have the name " + idOrName + ": use the ID"}
	}
	n := vpcport.Network{ID: found[0].ID, Name: found[0].Name, MTU: found[0].MTU}
	if !rest.ValidID(n.ID) || n.ID != idOrName && n.Name != idOrName || n.MTU < 0 || n.MTU > 1<<16 {
		return vpcport.Network{}, rest.BadReply(op, "requested %s, got network %q with the name %q and the MTU %d", idOrName, n.ID, n.Name, n.MTU)
	}
	n.Subnets, err = p.subnets(ctx, n.ID)
	return n, err
}

func (p *Provider) networks(ctx context.Context, by, value string) ([]wireNetwork, error) {
	query := url.Values{by: {value}, "fields": {"id", "name", "mtu"}}
	return pages(ctx, p, "networks", query, func(n wireNetwork) string { return n.ID })
}

func (p *Provider) subnets(ctx context.Context, network string) ([]vpcport.Subnet, error) {
	const op = "Neutron GET subnets"
	query := url.Values{"network_id": {network}, "fields": {"id", "name", "network_id", "cidr", "gateway_ip", "host_routes"}}
	found, err := pages(ctx, p, "subnets", query, func(s rest.Subnet) string { return s.ID })
	if err != nil {
		return nil, err
	}
	var out []vpcport.Subnet
	for _, w := range found {
		s, err := w.Read(op)
		if err != nil {
			return nil, err
		}
		if w.Network != network || s.CIDR != s.CIDR.Masked() {
			return nil, rest.BadReply(op, "subnet %q of network %q with the addresses %q", w.ID, w.Network, w.CIDR)
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b vpcport.Subnet) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}
