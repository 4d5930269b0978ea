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
