package alcor

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"slices"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

// maxFilter is the maximum number of values in a list of a filter.
const maxFilter = 100

// Get implements vpcport.Provider. It finds no ports of other projects.
func (p *Provider) Get(ctx context.Context, id string) (vpcport.Port, error) {
	w, err := p.get(ctx, id)
	if err != nil {
		return vpcport.Port{}, err
	}
	return p.port("Alcor GET ports", w)
}

func (p *Provider) get(ctx context.Context, id string) (wirePort, error) {
	r := request{method: http.MethodGet, path: "ports/" + id, port: true, names: rest.Names{Ports: []string{id}}}
	if err := rest.CheckID(r.op(), id); err != nil {
		return wirePort{}, err
	}
	var reply struct {
		Port *wirePort `json:"port"`
	}
	if err := p.call(ctx, r, &reply); err != nil {
		return wirePort{}, err
	}
	switch w := reply.Port; {
	case w == nil || w.ID != id:
		return wirePort{}, rest.BadReply(r.op(), "requested port %s, got %+v", id, w)
	case !p.owns(*w):
		return wirePort{}, gone(r.op(), id, "it is of another project")
	default:
		return *w, nil
	}
}

// owns reports whether a port is in the project of the settings.
func (p *Provider) owns(w wirePort) bool { return w.Project == "" || w.Project == p.settings.Project }

func gone(op, id, why string) error {
	return &vpcport.Error{Class: vpcport.PortGone, Op: op, About: id, Message: "no port " + id + ": " + why}
}

// Ports implements vpcport.Provider. It sends one list of the filter to Alcor, in as many requests as
// the length of URLs requires, and applies the whole filter again, as Alcor lists other ports too.
func (p *Provider) Ports(ctx context.Context, f vpcport.Filter) ([]vpcport.Port, error) {
	r := request{method: http.MethodGet, path: "ports"}
	if err := rest.CheckFilter(r.op(), f, maxFilter); err != nil {
		return nil, err
	}
	name, values := asked(f)
	var out []vpcport.Port
	seen := map[string]bool{}
	for _, batch := range rest.Batches(name, values) {
		r.query = url.Values{"project_id": {p.settings.Project}}
		if name != "" {
			r.query[name] = batch
		}
		if f.NetworkID != "" {
			r.query.Set("network_id", f.NetworkID)
		}
		if f.Owner != "" {
			r.query.Set("device_owner", f.Owner)
		}
		var reply struct {
			Ports *[]wirePort `json:"ports"`
		}
		if err := p.call(ctx, r, &reply); err != nil {
			return nil, err
		}
		if reply.Ports == nil {
			return nil, rest.BadReply(r.op(), "a listing without ports")
		}
		for _, w := range *reply.Ports {
			if !p.owns(w) || !asks(f, w) {
				continue
			}
			port, err := p.port(r.op(), w)
			if err != nil {
				return nil, err
			}
			if !seen[port.ID] {
				seen[port.ID] = true
				out = append(out, port)
			}
		}
	}
	return out, nil
}

// asked is the list of a filter that goes to Alcor: the most selective one. MAC addresses never go, as
// Alcor keeps their spelling.
func asked(f vpcport.Filter) (name string, values []string) {
	switch {
	case len(f.IDs) > 0:
		return "id", f.IDs
	case len(f.Devices) > 0:
		return "device_id", f.Devices
	default:
		return "", nil
	}
}

// asks reports whether a filter matches a port. It comes before the port is decoded, because ports of
// others may be invalid.
func asks(f vpcport.Filter, w wirePort) bool {
	return (len(f.IDs) == 0 || slices.Contains(f.IDs, w.ID)) && (len(f.Devices) == 0 || slices.Contains(f.Devices, w.Device)) &&
		(f.NetworkID == "" || f.NetworkID == w.Network) && (f.Owner == "" || f.Owner == w.Owner) && (len(f.MACs) == 0 || hasMAC(f.MACs, w))
}

func hasMAC(list []mac.Addr, w wirePort) bool {
	hw, err := net.ParseMAC(w.mac())
	return err == nil && slices.ContainsFunc(list, func(m mac.Addr) bool { return m.String() == hw.String() })
}
