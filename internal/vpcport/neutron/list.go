package neutron

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

// maxFilter is the maximum number of values in a list of a filter.
const maxFilter = 100

// Get implements vpcport.Provider.
func (p *Provider) Get(ctx context.Context, id string) (vpcport.Port, error) {
	r := request{method: http.MethodGet, path: "ports/" + id, query: url.Values{"fields": portFields}, scope: scope{port: true, names: rest.Names{Ports: []string{id}}}}
	return p.one(ctx, id, r)
}

// one makes a request whose reply is one port.
func (p *Provider) one(ctx context.Context, id string, r request) (vpcport.Port, error) {
	if err := rest.CheckID(r.op(), id); err != nil {
		return vpcport.Port{}, err
	}
	var reply struct {
		Port *wirePort `json:"port"`
	}
	if err := p.call(ctx, r, &reply); err != nil {
		return vpcport.Port{}, err
	}
	if reply.Port == nil || reply.Port.ID != id {
		return vpcport.Port{}, rest.BadReply(r.op(), "requested port %s, got %+v", id, reply.Port)
	}
	return reply.Port.port(r.op())
}

// Ports implements vpcport.Provider. It sends one list of the filter to Neutron, in as many requests as
// the length of URLs requires, and applies the others itself.
func (p *Provider) Ports(ctx context.Context, f vpcport.Filter) ([]vpcport.Port, error) {
	const op = "Neutron GET ports"
	if err := rest.CheckFilter(op, f, maxFilter); err != nil {
		return nil, err
	}
	base := url.Values{"fields": portFields}
	if f.NetworkID != "" {
		base.Set("network_id", f.NetworkID)
	}
	if f.Owner != "" {
		base.Set("device_owner", f.Owner)
	}
	name, values := asked(f)
	var out []vpcport.Port
	seen := map[string]bool{}
	for _, batch := range rest.Batches(name, values) {
		if name != "" {
			base[name] = batch
		}
		found, err := pages(ctx, p, "ports", base, func(w wirePort) string { return w.ID })
		if err != nil {
			return nil, err
		}
		for _, w := range found {
			if !answers(w, f, name, batch) {
				return nil, rest.BadReply(op, "port %s of device %q and owner %q in network %q does not match the filter", w.ID, w.Device, w.Owner, w.Network)
			}
			port, err := w.port(op)
			if err != nil {
				return nil, err
			}
			if !seen[port.ID] && matches(port, f) {
				seen[port.ID] = true
				out = append(out, port)
			}
		}
	}
	return out, nil
}

// asked is the list of a filter that goes to Neutron: the most selective one.
func asked(f vpcport.Filter) (name string, values []string) {
	switch {
	case len(f.IDs) > 0:
		return "id", f.IDs
	case len(f.Devices) > 0:
		return "device_id", f.Devices
	case len(f.MACs) > 0:
		for _, m := range f.MACs {
			values = append(values, m.String())
		}
		return "mac_address", values
	default:
		return "", nil
	}
}

// answers reports whether a port matches what was sent to Neutron.
func answers(w wirePort, f vpcport.Filter, name string, batch []string) bool {
	value := map[string]string{"id": w.ID, "device_id": w.Device, "mac_address": strings.ToLower(w.MAC)}[name]
	return (name == "" || slices.Contains(batch, value)) && (f.NetworkID == "" || f.NetworkID == w.Network) && (f.Owner == "" || f.Owner == w.Owner)
}

func matches(p vpcport.Port, f vpcport.Filter) bool {
	hasMAC := len(f.MACs) == 0
	for _, m := range f.MACs {
		hasMAC = hasMAC || m.String() == p.MAC.String()
	}
	return hasMAC && (len(f.IDs) == 0 || slices.Contains(f.IDs, p.ID)) && (len(f.Devices) == 0 || slices.Contains(f.Devices, p.Device))
}
