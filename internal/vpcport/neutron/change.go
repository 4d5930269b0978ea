package neutron

import (
	"context"
	"fmt"
	"net/http"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

// Update implements vpcport.Provider. Neutron retries a failed binding with every change.
func (p *Provider) Update(ctx context.Context, id string, revision int, c vpcport.Change) (vpcport.Port, error) {
	r := request{method: http.MethodPut, path: "ports/" + id, scope: scope{port: true, names: rest.Names{Groups: c.Groups, Ports: []string{id}}}}
	change := wireChange{Host: c.Host, Device: c.Device, Owner: c.Owner}
	if c.Groups != nil {
		change.Groups = &c.Groups
	}
	if c.Empty() {
		return vpcport.Port{}, rest.BadRequest(r.op(), "an empty change")
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
		return vpcport.Port{}, rest.BadReply(r.op(), "%s", unmet)
	}
	if got.Revision < revision {
		return vpcport.Port{}, rest.BadReply(r.op(), "port %s has revision %d after a change of revision %d", id, got.Revision, revision)
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

// settled reads new ports with a host again. Neutron replies to the creation before it stores the
// binding: without the drivers that bound the port, which identify OVN, and with a revision that changes
// a moment later (TestProviderWithNeutron of test/e2e/neutron, with Neutron 21.0). An error is of class
// Transient, since the ports exist.
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
		return nil, &vpcport.Error{Class: vpcport.Transient, Op: "Neutron GET ports", Message: "the ports exist, but their bindings cannot be read: " + err.Error(), Err: err}
	}
	for _, o := range now { // a port that was deleted meanwhile stays as it was until the next look
		ports[place[o.ID]] = o
	}
	return ports, nil
}

// settledOne does the same for a changed port: if the change has a host or the port is bound, the reply
// to the change is incomplete.
func (p *Provider) settledOne(ctx context.Context, changed vpcport.Port, c vpcport.Change) (vpcport.Port, error) {
	if c.Host == nil && changed.Binding.Result != vpcport.Bound {
		return changed, nil
	}
	return p.Get(ctx, changed.ID)
}
