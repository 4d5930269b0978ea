package neutron

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

type wireNetwork struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	MTU  int    `json:"mtu"`
}

type wireSubnet struct {
	ID      string      `json:"id"`
	Name    string      `json:"name"`
	Network string      `json:"network_id"`
	CIDR    string      `json:"cidr"`
	Gateway *string     `json:"gateway_ip"`
	Routes  []wireRoute `json:"host_routes"`
}

type wireRoute struct {
	Destination string `json:"destination"`
	NextHop     string `json:"nexthop"`
}

// Network implements vpcport.Provider. What may be an ID is looked for as one first.
func (p *Provider) Network(ctx context.Context, idOrName string) (vpcport.Network, error) {
	const op = "Neutron GET networks"
	if idOrName == "" {
		return vpcport.Network{}, rest.Misuse(op, "a network without ID and name")
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
		return vpcport.Network{}, rest.Lie(op, "asked for %s, got network %q with the name %q and the MTU %d", idOrName, n.ID, n.Name, n.MTU)
	}
	n.Subnets, err = p.subnets(ctx, n.ID)
	return n, err
}

func (p *Provider) networks(ctx context.Context, by, value string) ([]wireNetwork, error) {
	query := url.Values{by: {value}, "fields": {"id", "name", "mtu"}}
	return pages(ctx, p, "networks", query, func(n wireNetwork) string { return n.ID })
}

func (p *Provider) subnets(ctx context.Context, network string) ([]vpcport.Subnet, error) {
	query := url.Values{"network_id": {network}, "fields": {"id", "name", "network_id", "cidr", "gateway_ip", "host_routes"}}
	found, err := pages(ctx, p, "subnets", query, func(s wireSubnet) string { return s.ID })
	if err != nil {
		return nil, err
	}
	var out []vpcport.Subnet
	for _, w := range found {
		s, err := w.subnet(network)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b vpcport.Subnet) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// subnet reads a subnet of a network, and refuses one that cannot be.
func (w wireSubnet) subnet(network string) (vpcport.Subnet, error) {
	op := (request{method: http.MethodGet, path: "subnets"}).op()
	s := vpcport.Subnet{ID: w.ID, Name: w.Name}
	var err error
	if s.CIDR, err = netip.ParsePrefix(w.CIDR); err != nil || !rest.ValidID(w.ID) || w.Network != network || s.CIDR != s.CIDR.Masked() {
		return s, rest.Lie(op, "subnet %q of network %q with the addresses %q", w.ID, w.Network, w.CIDR)
	}
	if w.Gateway != nil && *w.Gateway != "" {
		if s.Gateway, err = netip.ParseAddr(*w.Gateway); err != nil || s.Gateway.Is4() != s.CIDR.Addr().Is4() {
			return s, rest.Lie(op, "subnet %s with the gateway %q", w.ID, *w.Gateway)
		}
	}
	for _, r := range w.Routes {
		to, err := netip.ParsePrefix(r.Destination)
		via, verr := netip.ParseAddr(strings.TrimSpace(r.NextHop))
		if err != nil || verr != nil || to.Addr().Is4() != via.Is4() {
			return s, rest.Lie(op, "subnet %s with the route %q by %q", w.ID, r.Destination, r.NextHop)
		}
		s.Routes = append(s.Routes, vpcport.Route{Destination: to.Masked(), Gateway: via})
	}
	return s, nil
}
