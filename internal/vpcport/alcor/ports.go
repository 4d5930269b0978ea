package alcor

import (
	"context"
	"net"
	"net/http"
	"net/url"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

// maxName is the maximum length of a port's name in bytes. Alcor documents none.
const maxName = 255

// Create implements vpcport.Provider, for one port.
func (p *Provider) Create(ctx context.Context, ports []vpcport.NewPort) ([]vpcport.Port, error) {
	const op = "Alcor POST ports"
	if len(ports) != 1 {
		return nil, &vpcport.Error{Class: vpcport.TooLarge, Op: op, Message: "expected a request for one port"}
	}
	n := ports[0]
	if !rest.ValidID(n.NetworkID) {
		return nil, rest.BadRequest(op, "a port of network %q", n.NetworkID)
	}
	out, err := p.create(ctx, n)
	if n.Host != "" && hostRefused(err) { // and nothing was made
		host := n.Host
		n.Host = ""
		if out, err = p.create(ctx, n); err == nil {
			out = nowhere(out, host)
		}
	}
	if err != nil {
		return nil, err
	}
	return []vpcport.Port{out}, nil
}

func (p *Provider) create(ctx context.Context, n vpcport.NewPort) (vpcport.Port, error) {
	r := rest.Request{API: api, Method: http.MethodPost, Path: "ports", Body: envelope{wire(n)}, Names: rest.NamesOf([]vpcport.NewPort{n})}
	var reply struct {
		Port *wirePort `json:"port"`
	}
	if err := p.call(ctx, r, &reply); err != nil {
		return vpcport.Port{}, err
	}
	if reply.Port == nil {
		return vpcport.Port{}, rest.BadReply(r.Op(), "requested a port for device %q, got none", n.Device)
	}
	out, err := p.port(r.Op(), *reply.Port)
	if err != nil {
		return vpcport.Port{}, err
	}
	if what := vpcport.Mismatch(n, out); what != "" || !p.owns(*reply.Port) {
		return vpcport.Port{}, rest.BadReply(r.Op(), "port %s for device %q has another %s", out.ID, n.Device, what)
	}
	return out, nil
}

// wire converts a request for a port.
func wire(n vpcport.NewPort) wireNew {
	w := wireNew{Network: n.NetworkID, Name: vpcport.Cut(n.Name, maxName), Up: true, Device: n.Device, Owner: vpcport.Owner, Groups: n.Groups, Host: n.Host, FixedIPs: rest.IPs(n.Addresses)}
	if n.MAC != nil {
		w.MAC = n.MAC.String()
	}
	return w
}

// Update implements vpcport.Provider. It reads the port before, because a change resets some fields,
// and after, because the reply is not the port.
func (p *Provider) Update(ctx context.Context, id string, _ int, c vpcport.Change) (vpcport.Port, error) {
	const op = "Alcor PUT ports"
	if c.Empty() {
		return vpcport.Port{}, rest.BadRequest(op, "an empty change")
	}
	now, err := p.get(ctx, id)
	if err != nil {
		return vpcport.Port{}, err
	}
	change := wireChange{Device: c.Device, Owner: c.Owner, Security: now.Security}
	if c.Groups != nil {
		change.Groups = &c.Groups
	}
	if c.Host != nil {
		change.Host, change.Tags = rehosted(now, *c.Host)
	}
	refused, err := p.put(ctx, id, change, c.Groups)
	if err != nil {
		return vpcport.Port{}, err
	}
	got, err := p.Get(ctx, id)
	if err != nil {
		return vpcport.Port{}, err
	}
	if refused {
		got = nowhere(got, *c.Host)
	}
	if unmet := c.Unmet(got); unmet != "" { // another client may have changed it, as there are no revisions
		return got, &vpcport.Error{Class: vpcport.Conflict, Op: op, Message: rest.Shorten(unmet, rest.MaxMessage)}
	}
	return got, nil
}

// put makes a change; if Alcor refuses the host, without it.
func (p *Provider) put(ctx context.Context, id string, change wireChange, groups []string) (refused bool, err error) {
	for {
		if change.Host == nil && change.Device == nil && change.Owner == nil && change.Groups == nil && change.Tags == nil {
			return refused, nil
		}
		r := rest.OfPort(api, http.MethodPut, id)
		r.Body, r.Names.Groups = envelope{change}, groups
		err := p.call(ctx, r, nil)
		if change.Host == nil || !hostRefused(err) {
			return refused, err
		}
		change.Host, change.Tags, refused = nil, nil, true
	}
}

// Delete implements vpcport.Provider.
func (p *Provider) Delete(ctx context.Context, id string) error {
	return rest.Delete(api, id, func(r rest.Request) error { return p.call(ctx, r, nil) })
}

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
	r := rest.OfPort(api, http.MethodGet, id)
	if err := rest.CheckID(r.Op(), id); err != nil {
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
		return wirePort{}, rest.BadReply(r.Op(), "requested port %s, got %+v", id, w)
	case !p.owns(*w):
		return wirePort{}, gone(r.Op(), id, "it is of another project")
	default:
		return *w, nil
	}
}

// owns reports whether a port is in the project of the settings.
func (p *Provider) owns(w wirePort) bool { return w.Project == "" || w.Project == p.settings.Project }

func gone(op, id, why string) error {
	return &vpcport.Error{Class: vpcport.PortGone, Op: op, About: id, Message: "no port " + id + ": " + why}
}

// Ports implements vpcport.Provider. It does not send MAC addresses, as Alcor keeps their spelling. It
// applies the filter before it decodes ports, because those of others may be invalid.
func (p *Provider) Ports(ctx context.Context, f vpcport.Filter) ([]vpcport.Port, error) {
	r := rest.Request{API: api, Method: http.MethodGet, Path: "ports"}
	return rest.List{Op: r.Op(), Filter: f, MaxFilter: maxFilter, Read: func(query url.Values) (out []vpcport.Port, err error) {
		r.Query = query
		r.Query.Set("project_id", p.settings.Project)
		var reply struct {
			Ports *[]wirePort `json:"ports"`
		}
		if err := p.call(ctx, r, &reply); err != nil {
			return nil, err
		}
		if reply.Ports == nil {
			return nil, rest.BadReply(r.Op(), "a listing without ports")
		}
		for _, w := range *reply.Ports {
			hw, _ := net.ParseMAC(w.mac())
			if !p.owns(w) || !f.Has(vpcport.Port{ID: w.ID, Device: w.Device, NetworkID: w.Network, Owner: w.Owner, MAC: mac.Addr(hw)}) {
				continue
			}
			port, err := p.port(r.Op(), w)
			if err != nil {
				return nil, err
			}
			out = append(out, port)
		}
		return out, nil
	}}.Ports()
}
