package neutron

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/vpcport"
)

// maxFilter is how many values a list of a filter has at most, and maxValues how many
// bytes of them go into one URL: servers read about 8,000 of it (eventlet.wsgi and Apache
// 8,190).
const (
	maxFilter = 100
	maxValues = 5000
)

// Get implements vpcport.Provider.
func (p *Provider) Get(ctx context.Context, id string) (vpcport.Port, error) {
	r := request{method: http.MethodGet, path: "ports/" + id, query: url.Values{"fields": portFields}, scope: scope{port: true, names: names{ports: []string{id}}}}
	return p.one(ctx, id, r)
}

// one makes a request of one port, which is answered with it.
func (p *Provider) one(ctx context.Context, id string, r request) (vpcport.Port, error) {
	if err := checkID(r.op(), id); err != nil {
		return vpcport.Port{}, err
	}
	var reply struct {
		Port *wirePort `json:"port"`
	}
	if err := p.call(ctx, r, &reply); err != nil {
		return vpcport.Port{}, err
	}
	if reply.Port == nil || reply.Port.ID != id {
		return vpcport.Port{}, lie(r.op(), "asked for port %s, got %+v", id, reply.Port)
	}
	return reply.Port.port(r.op())
}

// checkID refuses what can be no port's ID before it is part of a URL.
func checkID(op, id string) error {
	switch {
	case id == "":
		return misuse(op, "a port without an ID")
	case !validID(id):
		return &vpcport.Error{Class: vpcport.PortGone, Op: op, About: shorten(id, maxType), Message: "no port has the ID " + shorten(id, maxType)}
	}
	return nil
}

// Ports implements vpcport.Provider. Of a filter's lists one goes to Neutron, in as many
// requests as fit into URLs; the others are looked at here.
func (p *Provider) Ports(ctx context.Context, f vpcport.Filter) ([]vpcport.Port, error) {
	const op = "Neutron GET ports"
	if err := checkFilter(op, f); err != nil {
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
	for _, batch := range batches(values) {
		if name != "" {
			base[name] = batch
		}
		found, err := pages(ctx, p, "ports", base, func(w wirePort) string { return w.ID })
		if err != nil {
			return nil, err
		}
		for _, w := range found {
			if !answers(w, f, name, batch) {
				return nil, lie(op, "port %s of device %q and owner %q in network %q was not asked for", w.ID, w.Device, w.Owner, w.Network)
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

// checkFilter refuses filters that would list all ports: Neutron drops empty values.
func checkFilter(op string, f vpcport.Filter) error {
	for _, list := range [][]string{f.IDs, f.Devices} {
		if slices.Contains(list, "") {
			return misuse(op, "an empty value in a filter")
		}
	}
	for _, m := range f.MACs {
		if len(m) != 6 {
			return misuse(op, "%q in a filter is no MAC address", m)
		}
	}
	if longest := max(len(f.IDs), len(f.Devices), len(f.MACs)); f.Empty() || longest > maxFilter {
		return misuse(op, "a filter with lists of %d values, expected one that is not empty, with %d at most", longest, maxFilter)
	}
	return nil
}

// asked is the list of a filter that goes to Neutron: that which finds the fewest.
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

// batches cuts values into lists that fit into a URL; no values are one empty list.
func batches(values []string) [][]string {
	values = slices.Compact(slices.Sorted(slices.Values(values)))
	out := [][]string{nil}
	size := 0
	for _, v := range values {
		n := len(url.QueryEscape(v)) + len("&mac_address=")
		if size+n > maxValues && size > 0 {
			out, size = append(out, nil), 0
		}
		size += n
		out[len(out)-1] = append(out[len(out)-1], v)
	}
	return out
}

// answers tells whether Neutron was asked for a port.
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
