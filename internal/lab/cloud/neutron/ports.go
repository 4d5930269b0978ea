package neutron

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
)

// newPort is what may be said of a new port (API reference, ports).
type newPort struct {
	Network   string    `json:"network_id"`
	Project   string    `json:"project_id"`
	Name      string    `json:"name"`
	Device    string    `json:"device_id"`
	Owner     string    `json:"device_owner"`
	MAC       string    `json:"mac_address"`
	Addresses []fixedIP `json:"fixed_ips"`
	Groups    []string  `json:"security_groups"`
	Host      string    `json:"binding:host_id"`
}

type fixedIP struct {
	Subnet string `json:"subnet_id"`
	IP     string `json:"ip_address"`
}

// change is what may be said of a port that is there.
type change struct {
	Host   *string  `json:"binding:host_id"`
	Device *string  `json:"device_id"`
	Owner  *string  `json:"device_owner"`
	Groups []string `json:"security_groups"`
}

// asked is a request in the books' words. Their ports are workloads' only.
func (n newPort) asked() (vpcport.NewPort, error) {
	out := vpcport.NewPort{NetworkID: n.Network, Name: n.Name, Device: n.Device, Groups: n.Groups, Host: n.Host}
	if n.Owner != vpcport.Owner {
		return out, fmt.Errorf("device_owner %q: this server has ports of %s only", n.Owner, vpcport.Owner)
	}
	if n.MAC != "" {
		hw, err := net.ParseMAC(n.MAC)
		if err != nil || len(hw) != 6 || hw[0]&1 != 0 {
			return out, fmt.Errorf("invalid input for mac_address. Reason: '%s' is not a valid MAC address", n.MAC)
		}
		out.MAC = mac.Addr(hw)
	}
	for _, f := range n.Addresses {
		a := vpcport.NewAddress{SubnetID: f.Subnet}
		if f.IP != "" {
			ip, err := netip.ParseAddr(f.IP)
			if err != nil {
				return out, fmt.Errorf("invalid input for fixed_ips. Reason: '%s' is not a valid IP address", f.IP)
			}
			a.IP = ip
		}
		out.Addresses = append(out.Addresses, a)
	}
	return out, nil
}

// portOf is a port as Neutron writes it.
func portOf(p vpcport.Port) map[string]any {
	fixed := []map[string]string{}
	for _, a := range p.Addresses {
		fixed = append(fixed, map[string]string{"subnet_id": a.SubnetID, "ip_address": a.IP.String()})
	}
	vif, details := "unbound", map[string]any{}
	switch p.Binding.Result {
	case vpcport.BindingFailed:
		vif = "binding_failed"
	case vpcport.Bound:
		driver := "openvswitch"
		if p.Binding.Plug.OVN {
			driver = "ovn"
		}
		vif = "ovs"
		details = map[string]any{
			"port_filter": true, "bridge_name": p.Binding.Plug.Bridge, "ovs_hybrid_plug": p.Binding.Plug.Kind == vpcport.OVSHybrid,
			"bound_drivers": map[string]string{"0": driver},
		}
	}
	status := map[vpcport.Status]string{vpcport.StatusActive: "ACTIVE", vpcport.StatusBuild: "BUILD", vpcport.StatusError: "ERROR"}[p.Status]
	if status == "" {
		status = "DOWN"
	}
	return map[string]any{
		"id": p.ID, "network_id": p.NetworkID, "name": p.Name, "device_id": p.Device, "device_owner": p.Owner, "mac_address": p.MAC.String(),
		"fixed_ips": fixed, "security_groups": p.Groups, "status": status, "admin_state_up": true, "revision_number": p.Revision,
		"created_at": p.CreatedAt.UTC().Format(time.RFC3339), "binding:host_id": p.Host, "binding:vif_type": vif, "binding:vif_details": details,
		"binding:vnic_type": "normal", "binding:profile": map[string]any{}, "tags": []string{},
	}
}

func subnetOf(network string, s vpcport.Subnet) map[string]any {
	version := 6
	if s.CIDR.Addr().Is4() {
		version = 4
	}
	routes := []map[string]string{}
	for _, r := range s.Routes {
		routes = append(routes, map[string]string{"destination": r.Destination.String(), "nexthop": r.Gateway.String()})
	}
	var gateway any // null without one
	if s.Gateway.IsValid() {
		gateway = s.Gateway.String()
	}
	return map[string]any{
		"id": s.ID, "name": s.Name, "network_id": network, "cidr": s.CIDR.String(), "gateway_ip": gateway, "ip_version": version, "host_routes": routes,
	}
}
