package alcorfake

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
)

// listed returns the ports of all projects that match one value of each field in a query
// (ControllerUtil.transformUrlPathParams, MapPredicate). It ignores unknown fields.
func (a *api) listed(query url.Values) []entity {
	out := []entity{}
	for _, id := range slices.Sorted(maps.Keys(a.ports.byID)) {
		p := a.ports.byID[id]
		fields := map[string]string{
			"id": p.ID, "project_id": p.Project, "name": p.Name, "network_id": p.Network, "device_id": p.Device, "device_owner": p.Owner,
			"mac_address": p.MAC, "binding:host_id": p.Host,
		}
		if a.options.Unfiltered || matches(query, fields) {
			out = append(out, a.described(p))
		}
	}
	return out
}

func matches(query url.Values, fields map[string]string) bool {
	for name, values := range query {
		if is, known := fields[name]; known && !slices.Contains(values, is) {
			return false
		}
	}
	return true
}

// describe replies like the VPC manager and the subnet manager, which return null for an unknown ID.
func (a *api) describe(r *http.Request, project, collection, id string) reply {
	var list []map[string]any
	one := "network"
	if collection == "subnets" {
		one, list = "subnet", a.describedSubnets(project)
	} else {
		list = a.describedNetworks()
	}
	found := []map[string]any{}
	for _, o := range list {
		fields := map[string]string{}
		for _, name := range []string{"id", "name", "network_id", "project_id"} {
			if text, ok := o[name].(string); ok {
				fields[name] = text
			}
		}
		if id != "" && fields["id"] == id {
			return jsonReply(200, map[string]any{one: o})
		}
		if a.options.Unfiltered || matches(r.URL.Query(), fields) {
			found = append(found, o)
		}
	}
	switch {
	case id != "":
		return jsonReply(200, map[string]any{one: nil})
	case collection == "vpcs" && a.options.Networks:
		return jsonReply(200, map[string]any{"networks": found})
	default:
		return jsonReply(200, map[string]any{collection: found})
	}
}

// describedNetworks returns the VPCs of all projects.
func (a *api) describedNetworks() (out []map[string]any) {
	for _, id := range slices.Sorted(maps.Keys(a.networks.byID)) {
		n := a.networks.byID[id]
		out = append(out, map[string]any{
			"id": n.ID, "name": n.Name, "project_id": n.Project, "tenant_id": n.Project, "mtu": n.MTU, "shared": n.Shared, "description": nil,
			"admin_state_up": true, "status": "ACTIVE", "provider:network_type": "vxlan",
		})
	}
	return out
}

func (a *api) describedSubnets(project string) (out []map[string]any) {
	for _, id := range slices.Sorted(maps.Keys(a.networks.subnets)) {
		s := a.networks.subnets[id]
		if n := a.networks.byID[s.Network]; n.Project != project && !n.Shared {
			continue
		}
		routes := []map[string]any{}
		for _, r := range s.Routes {
			routes = append(routes, map[string]any{"destination": r.Destination.String(), "nexthop": r.NextHop.String()})
		}
		o := map[string]any{"id": s.ID, "name": s.Name, "network_id": s.Network, "project_id": project, "cidr": s.CIDR.String(), "gateway_ip": "", "host_routes": routes}
		if s.Gateway.IsValid() {
			o["gateway_ip"] = s.Gateway.String()
		}
		out = append(out, o)
	}
	return out
}
