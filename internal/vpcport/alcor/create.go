package alcor

import (
	"context"
	"net/http"

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
	r := request{method: http.MethodPost, path: "ports", body: envelope{wire(n)}, names: rest.NamesOf([]vpcport.NewPort{n})}
	var reply struct {
		Port *wirePort `json:"port"`
	}
	if err := p.call(ctx, r, &reply); err != nil {
		return vpcport.Port{}, err
	}
	if reply.Port == nil {
		return vpcport.Port{}, rest.BadReply(r.op(), "requested a port for device %q, got none", n.Device)
	}
	out, err := p.port(r.op(), *reply.Port)
	if err != nil {
		return vpcport.Port{}, err
	}
	if what := vpcport.Mismatch(n, out); what != "" || !p.owns(*reply.Port) {
		return vpcport.Port{}, rest.BadReply(r.op(), "port %s for device %q has another %s", out.ID, n.Device, what)
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
