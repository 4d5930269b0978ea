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
	if change == (wireChange{}) {
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
	for _, f := range []struct {
		name string
		want *string
		got  string
	}{{"host", c.Host, got.Host}, {"device", c.Device, got.Device}, {"owner", c.Owner, got.Owner}} {
		if f.want != nil && *f.want != f.got {
			return vpcport.Port{}, rest.Lie(r.op(), "port %s has the %s %q, asked for was %q", id, f.name, f.got, *f.want)
		}
	}
	if c.Groups != nil && !vpcport.SameSet(c.Groups, got.Groups) || got.Revision < revision {
		return vpcport.Port{}, rest.Lie(r.op(), "port %s has the groups %q and revision %d after a change to %q of revision %d", id, got.Groups, got.Revision, c.Groups, revision)
	}
	return p.settledOne(ctx, got, c)
}

// Delete implements vpcport.Provider.
func (p *Provider) Delete(ctx context.Context, id string) error {
	r := request{method: http.MethodDelete, path: "ports/" + id, scope: scope{port: true, names: rest.Names{Ports: []string{id}}}}
	err := checkID(r.op(), id)
	if err == nil {
		err = p.call(ctx, r, nil)
	}
	if vpcport.ClassOf(err) == vpcport.PortGone {
		return nil
	}
	return err
}
