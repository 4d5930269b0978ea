package neutron

import (
	"context"

	"github.com/berthnet/berth/internal/vpcport"
)

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
