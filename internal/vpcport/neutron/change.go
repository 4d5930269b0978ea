package neutron

import (
	"context"
	"fmt"
	"net/http"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

// Update implements vpcport.Provider. A binding that failed is tried again by any change.
func (p *Provider) Update(ctx context.Context, id string, revision int, c vpcport.Change) (vpcport.Port, error) {
	r := request{method: http.MethodPut, path: "ports/" + id, scope: scope{port: true, names: rest.Names{Groups: c.Groups, Ports: []string{id}}}}
	change := wireChange{Host: c.Host, Device: c.Device, Owner: c.Owner}
	if c.Groups != nil {
		change.Groups = &c.Groups
	}
	if c.Empty() {
		return vpcport.Port{}, rest.Misuse(r.op(), "a change of nothing")
	}
	if revision != 0 {
		r.match = fmt.Sprintf("revision_number=%d", revision)
	}
	r.body = map[string]wireChange{"port": change}
	got, err := p.one(ctx, id, r)
	if err != nil {
		return vpcport.Port{}, err
	}
	if unmet := c.Unmet(got); unmet != "" {
		return vpcport.Port{}, rest.Lie(r.op(), "%s", unmet)
	}
	if got.Revision < revision {
		return vpcport.Port{}, rest.Lie(r.op(), "port %s has revision %d after a change of revision %d", id, got.Revision, revision)
	}
	return p.settledOne(ctx, got, c)
}

// Delete implements vpcport.Provider.
func (p *Provider) Delete(ctx context.Context, id string) error {
	r := request{method: http.MethodDelete, path: "ports/" + id, scope: scope{port: true, names: rest.Names{Ports: []string{id}}}}
	err := rest.CheckID(r.op(), id)
	if err == nil {
		err = p.call(ctx, r, nil)
	}
	if vpcport.ClassOf(err) == vpcport.PortGone {
		return nil
	}
	return err
}

// settled reads ports that have a host again, after the call that made them. Neutron answers that
// call before the binding is stored: without the drivers that bound the port, by which OVN is
// told, and with a revision that is over a moment later (TestLabAnswersAsNeutron of
// test/e2e/neutron, with Neutron 21.0). The error of the look is of class Transient, since the
// ports are there.
func (p *Provider) settled(ctx context.Context, ports []vpcport.Port) ([]vpcport.Port, error) {
	place := map[string]int{}
	var ids []string
	for i, o := range ports {
		if o.Host != "" {
			place[o.ID], ids = i, append(ids, o.ID)
		}
	}
	if len(ids) == 0 {
		return ports, nil
	}
	now, err := p.Ports(ctx, vpcport.Filter{IDs: ids})
	if err != nil {
		return nil, &vpcport.Error{Class: vpcport.Transient, Op: "Neutron GET ports", Message: "the ports are made; reading their bindings: " + err.Error(), Err: err}
	}
	for _, o := range now { // what went meanwhile stays as it was: the next look tells
		ports[place[o.ID]] = o
	}
	return ports, nil
}

// settledOne does so for a port that a call has changed. If the change is about the host or the
// port is bound, the answer to the call does not tell all.
func (p *Provider) settledOne(ctx context.Context, changed vpcport.Port, c vpcport.Change) (vpcport.Port, error) {
	if c.Host == nil && changed.Binding.Result != vpcport.Bound {
		return changed, nil
	}
	return p.Get(ctx, changed.ID)
}
