package neutronfake

import (
	"net/netip"
	"time"
)

const stamp = "2006-01-02T15:04:05Z"

// described converts a port for replies.
func (p *Port) described(who caller) map[string]any {
	ips := []map[string]any{}
	for _, f := range p.FixedIPs {
		ips = append(ips, map[string]any{"subnet_id": f.Subnet, "ip_address": f.IP.String()})
	}
	details := p.VIF.Details
	if details == nil {
		details = map[string]any{}
	}
	groups := p.Groups
	if groups == nil {
		groups = []string{}
	}
	out := map[string]any{
		"id": p.ID, "name": p.Name, "description": "", "network_id": p.Network, "tenant_id": p.Project, "project_id": p.Project,
		"mac_address": p.MAC, "admin_state_up": true, "status": p.Status, "device_id": p.Device, "device_owner": p.Owner,
		"fixed_ips": ips, "allowed_address_pairs": []any{}, "extra_dhcp_opts": []any{}, "security_groups": groups,
		"binding:vnic_type": "normal", "binding:profile": map[string]any{}, "binding:host_id": p.Host,
		"binding:vif_type": p.VIF.Type, "binding:vif_details": details,
		"port_security_enabled": true, "tags": append([]string{}, p.Tags...), "revision_number": p.Revision,
		"created_at": p.Created.UTC().Format(stamp), "updated_at": p.Updated.UTC().Format(stamp),
	}
	for name := range out {
		if who.denied("get_port:" + name) {
			delete(out, name)
		}
	}
	return out
}

func (a *api) describedNetwork(n Network) map[string]any {
	subnets := []string{}
	for _, s := range a.networks.subnetsOf(n.ID) {
		subnets = append(subnets, s.ID)
	}
	now := time.Unix(0, 0).UTC().Format(stamp)
	return map[string]any{
		"id": n.ID, "name": n.Name, "description": "", "tenant_id": n.Project, "project_id": n.Project, "admin_state_up": true,
		"mtu": n.MTU, "status": "ACTIVE", "subnets": subnets, "shared": n.Shared, "availability_zone_hints": []any{},
		"availability_zones": []any{}, "ipv4_address_scope": nil, "ipv6_address_scope": nil, "router:external": false,
		"port_security_enabled": true, "tags": []string{}, "revision_number": 1, "created_at": now, "updated_at": now,
	}
}

func (a *api) describedSubnet(s Subnet) map[string]any {
	version := 4
	if s.CIDR.Addr().Is6() {
		version = 6
	}
	var gateway any
	if s.Gateway.IsValid() {
		gateway = s.Gateway.String()
	}
	routes := []map[string]any{}
	for _, r := range s.Routes {
		routes = append(routes, map[string]any{"destination": r.Destination.String(), "nexthop": r.NextHop.String()})
	}
	first := netip.Addr{}
	if ip, ok := a.ports.free("", Subnet{CIDR: s.CIDR, Gateway: s.Gateway}, nil); ok {
		first = ip
	}
	now := time.Unix(0, 0).UTC().Format(stamp)
	return map[string]any{
		"id": s.ID, "name": s.Name, "description": "", "tenant_id": a.networks.byID[s.Network].Project, "project_id": a.networks.byID[s.Network].Project,
		"network_id": s.Network, "ip_version": version, "cidr": s.CIDR.String(), "gateway_ip": gateway, "enable_dhcp": true,
		"allocation_pools": []map[string]any{{"start": first.String(), "end": last(s.CIDR).String()}},
		"dns_nameservers":  []any{}, "host_routes": routes, "ipv6_ra_mode": nil, "ipv6_address_mode": nil, "subnetpool_id": nil,
		"service_types": []any{}, "segment_id": nil, "tags": []string{}, "revision_number": 0, "created_at": now, "updated_at": now,
	}
}
