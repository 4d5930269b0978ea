package alcor

import (
	"context"
	"net/http"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

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
		r := request{method: http.MethodPut, path: "ports/" + id, body: envelope{change}, port: true, names: rest.Names{Groups: groups, Ports: []string{id}}}
		err := p.call(ctx, r, nil)
		if change.Host == nil || !hostRefused(err) {
			return refused, err
		}
		change.Host, change.Tags, refused = nil, nil, true
	}
}

// Delete implements vpcport.Provider.
func (p *Provider) Delete(ctx context.Context, id string) error {
	r := request{method: http.MethodDelete, path: "ports/" + id, port: true, names: rest.Names{Ports: []string{id}}}
	err := rest.CheckID(r.op(), id)
	if err == nil {
		err = p.call(ctx, r, nil)
	}
	if vpcport.ClassOf(err) == vpcport.PortGone {
		return nil
	}
	return err
}
