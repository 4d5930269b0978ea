package neutron

import (
	"encoding/json"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

// wirePort is a port as Neutron sends it. What policy may hide is a pointer.
type wirePort struct {
	ID       string          `json:"id"`
	Name     string          `json:"name"`
	Network  string          `json:"network_id"`
	Device   string          `json:"device_id"`
	Owner    string          `json:"device_owner"`
	MAC      string          `json:"mac_address"`
	Status   string          `json:"status"`
	FixedIPs []wireIP        `json:"fixed_ips"`
	Groups   []string        `json:"security_groups"`
	Tags     []string        `json:"tags"`
	Host     *string         `json:"binding:host_id"`
	VIFType  *string         `json:"binding:vif_type"`
	VIF      json.RawMessage `json:"binding:vif_details"`
	Revision int             `json:"revision_number"`
	Created  string          `json:"created_at"`
}

// portFields are those of wirePort, for fields=.
var portFields = []string{
	"id", "name", "network_id", "device_id", "device_owner", "mac_address", "status", "fixed_ips", "security_groups", "tags",
	"binding:host_id", "binding:vif_type", "binding:vif_details", "revision_number", "created_at",
}

type wireIP struct {
	Subnet string `json:"subnet_id,omitempty"`
	IP     string `json:"ip_address,omitempty"`
}

// wireNew asks for a port. Pointers and nil slices are left to Neutron.
type wireNew struct {
	Network  string    `json:"network_id"`
	Project  string    `json:"project_id,omitempty"`
	Name     string    `json:"name"`
	Device   string    `json:"device_id"`
	Owner    string    `json:"device_owner"`
	MAC      string    `json:"mac_address,omitempty"`
	FixedIPs *[]wireIP `json:"fixed_ips,omitempty"`
	Groups   *[]string `json:"security_groups,omitempty"`
	Host     string    `json:"binding:host_id,omitempty"`
}

// wireChange changes a port.
type wireChange struct {
	Host   *string   `json:"binding:host_id,omitempty"`
	Device *string   `json:"device_id,omitempty"`
	Owner  *string   `json:"device_owner,omitempty"`
	Groups *[]string `json:"security_groups,omitempty"`
}

var statuses = map[string]vpcport.Status{
	"DOWN": vpcport.StatusDown, "BUILD": vpcport.StatusBuild, "ACTIVE": vpcport.StatusActive, "ERROR": vpcport.StatusError,
}

// port reads a port, and refuses one that cannot be.
func (w wirePort) port(op string) (vpcport.Port, error) {
	p := vpcport.Port{
		ID: w.ID, NetworkID: w.Network, Name: w.Name, Device: w.Device, Owner: w.Owner, Groups: w.Groups, Tags: w.Tags,
		Status: statuses[strings.ToUpper(w.Status)], Revision: w.Revision, CreatedAt: created(w.Created),
	}
	switch {
	case !rest.ValidID(w.ID):
		return p, rest.Lie(op, "a port with the ID %q", w.ID)
	case w.VIFType == nil || w.Host == nil || w.VIF == nil:
		return p, &vpcport.Error{
			Class: vpcport.Forbidden, Op: op, About: "binding:vif_type",
			Message: "the credentials may not see how ports are bound: they need get_port:binding:host_id, get_port:binding:vif_type and get_port:binding:vif_details of Neutron's policy",
		}
	}
	p.Host, p.Binding = *w.Host, binding(*w.Host, *w.VIFType, w.VIF)
	hw, err := net.ParseMAC(w.MAC)
	if err != nil || len(hw) != 6 || hw[0]&1 != 0 {
		return p, rest.Lie(op, "port %s has the MAC address %q", w.ID, w.MAC)
	}
	p.MAC = mac.Addr(hw)
	for _, f := range w.FixedIPs {
		ip, err := netip.ParseAddr(f.IP)
		if err != nil || ip.Zone() != "" {
			return p, rest.Lie(op, "port %s has the address %q", w.ID, f.IP)
		}
		p.Addresses = append(p.Addresses, vpcport.FixedIP{SubnetID: f.Subnet, IP: ip.Unmap()})
	}
	return p, nil
}

// created reads a time, which is in UTC and in old releases does not say so; zero for
// anything else.
func created(s string) time.Time {
	for _, form := range []string{time.RFC3339, "2006-01-02T15:04:05"} {
		if at, err := time.Parse(form, s); err == nil {
			return at.UTC()
		}
	}
	return time.Time{}
}
