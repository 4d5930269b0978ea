package alcor

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

// wireVPC is a VPC (VpcEntity).
type wireVPC struct {
	ID      string `json:"id"`
	Project string `json:"project_id"`
	Name    string `json:"name"`
	MTU     *int   `json:"mtu"`
	Shared  bool   `json:"shared"`
}

// Network implements vpcport.Provider. It looks for a UUID as an ID first.
func (p *Provider) Network(ctx context.Context, idOrName string) (vpcport.Network, error) {
	const op = "Alcor GET vpcs"
	if idOrName == "" {
		return vpcport.Network{}, rest.BadRequest(op, "a network without an ID or a name")
	}
	found, err := p.vpcs(ctx, idOrName)
	switch {
	case err != nil:
		return vpcport.Network{}, err
	case len(found) == 0:
		return vpcport.Network{}, &vpcport.Error{Class: vpcport.NetworkGone, Op: op, About: idOrName, Message: "no VPC of the project has the ID or name " + idOrName}
	case len(found) > 1:
		return vpcport.Network{}, &vpcport.Error{Class: vpcport.Invalid, Op: op, About: idOrName, Message: "several VPCs have the name " + idOrName + "; expected an ID"}
	}
	w := found[0]
	out := vpcport.Network{ID: w.ID, Name: w.Name}
	if w.MTU != nil {
		out.MTU = *w.MTU
	}
	if !rest.ValidID(w.ID) || out.MTU < 0 || out.MTU > 65535 {
		return out, rest.BadReply(op, "VPC %q with the MTU %d", w.ID, out.MTU)
	}
	out.Subnets, err = p.subnets(ctx, w.ID)
	return out, err
}

// vpcs are the project's VPCs with an ID or a name. Alcor returns null for one that does not exist, and
// lists VPCs of all projects.
func (p *Provider) vpcs(ctx context.Context, idOrName string) (out []wireVPC, err error) {
	if uuid.Validate(idOrName) == nil {
		var one struct {
			Network *wireVPC `json:"network"`
		}
		if err := p.call(ctx, rest.Request{API: api, Method: http.MethodGet, Path: "vpcs/" + idOrName}, &one); err != nil && !notThere(err) {
			return nil, err
		}
		if w := one.Network; w != nil && w.ID != idOrName {
			return nil, rest.BadReply("Alcor GET vpcs", "requested VPC %s, got %q", idOrName, w.ID)
		} else if w != nil && p.sees(*w) {
			return []wireVPC{*w}, nil
		}
	}
	// Releases differ in what the list is called (VpcsWebJson, NetworksWebJson).
	var reply struct {
		VPCs     []wireVPC `json:"vpcs"`
		Networks []wireVPC `json:"networks"`
	}
	if err := p.call(ctx, rest.Request{API: api, Method: http.MethodGet, Path: "vpcs", Query: url.Values{"name": {idOrName}}}, &reply); err != nil {
		return nil, err
	}
	for _, w := range append(reply.VPCs, reply.Networks...) {
		if w.Name == idOrName && p.sees(w) {
			out = append(out, w)
		}
	}
	return out, nil
}

// notThere reports whether an error says that something does not exist.
func notThere(err error) bool {
	e, ok := err.(*vpcport.Error) //nolint:errorlint // call makes them
	return ok && e.Status == http.StatusNotFound && strings.Contains(strings.ToLower(e.Message), "not found")
}

// sees reports whether the project can use a VPC.
func (p *Provider) sees(w wireVPC) bool {
	return w.Shared || w.Project == "" || w.Project == p.settings.Project
}

// subnets are the subnets of a VPC, in the order of their IDs.
func (p *Provider) subnets(ctx context.Context, network string) ([]vpcport.Subnet, error) {
	r := rest.Request{API: api, Method: http.MethodGet, Path: "subnets", Query: url.Values{"network_id": {network}}}
	var reply struct {
		Subnets *[]rest.Subnet `json:"subnets"`
	}
	if err := p.call(ctx, r, &reply); err != nil {
		return nil, err
	}
	if reply.Subnets == nil {
		return nil, rest.BadReply(r.Op(), "a listing without subnets")
	}
	var out []vpcport.Subnet
	for _, w := range *reply.Subnets {
		if w.Network != network {
			continue // old releases list all subnets of the project
		}
		s, err := w.Read(r.Op())
		if err != nil {
			return nil, err
		}
		s.CIDR = s.CIDR.Masked() // Alcor accepts bits of a host
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b vpcport.Subnet) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}
