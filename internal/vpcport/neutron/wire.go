package neutron

import (
	"encoding/json"
	"regexp"
	"strings"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

// wirePort is a port from Neutron. Fields that policy may hide are pointers.
type wirePort struct {
	ID       string          `json:"id"`
	Name     string          `json:"name"`
	Network  string          `json:"network_id"`
	Device   string          `json:"device_id"`
	Owner    string          `json:"device_owner"`
	MAC      string          `json:"mac_address"`
	Status   string          `json:"status"`
	FixedIPs []rest.IP       `json:"fixed_ips"`
	Groups   []string        `json:"security_groups"`
	Tags     []string        `json:"tags"`
	Host     *string         `json:"binding:host_id"`
	VIFType  *string         `json:"binding:vif_type"`
	VIF      json.RawMessage `json:"binding:vif_details"`
	Revision int             `json:"revision_number"`
	Created  string          `json:"created_at"`
}

// portFields are the fields of wirePort, for the parameter fields.
var portFields = []string{
	"id", "name", "network_id", "device_id", "device_owner", "mac_address", "status", "fixed_ips", "security_groups", "tags",
	"binding:host_id", "binding:vif_type", "binding:vif_details", "revision_number", "created_at",
}

// wireNew is a request for a port. Neutron chooses the values of nil fields.
type wireNew struct {
	Network  string     `json:"network_id"`
	Project  string     `json:"project_id,omitempty"`
	Name     string     `json:"name"`
	Device   string     `json:"device_id"`
	Owner    string     `json:"device_owner"`
	MAC      string     `json:"mac_address,omitempty"`
	FixedIPs *[]rest.IP `json:"fixed_ips,omitempty"`
	Groups   *[]string  `json:"security_groups,omitempty"`
	Host     string     `json:"binding:host_id,omitempty"`
}

// wireChange is a change of a port.
type wireChange struct {
	Host   *string   `json:"binding:host_id,omitempty"`
	Device *string   `json:"device_id,omitempty"`
	Owner  *string   `json:"device_owner,omitempty"`
	Groups *[]string `json:"security_groups,omitempty"`
}

var statuses = map[string]vpcport.Status{
	"DOWN": vpcport.StatusDown, "BUILD": vpcport.StatusBuild, "ACTIVE": vpcport.StatusActive, "ERROR": vpcport.StatusError,
}

// port decodes a port, and refuses an impossible one.
func (w wirePort) port(op string) (vpcport.Port, error) {
	p := vpcport.Port{
		ID: w.ID, NetworkID: w.Network, Name: w.Name, Device: w.Device, Owner: w.Owner, Groups: w.Groups, Tags: w.Tags,
		Status: statuses[strings.ToUpper(w.Status)], Revision: w.Revision, CreatedAt: rest.Time(w.Created),
	}
	switch {
	case !rest.ValidID(w.ID):
		return p, rest.BadReply(op, "a port with the ID %q", w.ID)
	case w.VIFType == nil || w.Host == nil || w.VIF == nil:
		return p, &vpcport.Error{
			Class: vpcport.Forbidden, Op: op, About: "binding:vif_type",
			Message: "the credentials cannot see the bindings of ports: they need get_port:binding:host_id, get_port:binding:vif_type and get_port:binding:vif_details of Neutron's policy",
		}
	}
	p.Host, p.Binding = *w.Host, binding(*w.Host, *w.VIFType, w.VIF)
	return p, rest.Addresses(op, &p, w.MAC, w.FixedIPs)
}

// linkName matches valid names of bridges. Nodes look for them.
var linkName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,14}$`)

// binding decodes the result of binding a port (binding:vif_type and binding:vif_details of the ML2
// mechanism drivers ovn and openvswitch). Types that Berth cannot plug count as failed.
func binding(host, kind string, details json.RawMessage) vpcport.Binding {
	switch kind {
	case "", "unbound":
		return vpcport.Binding{}
	case "ovs":
	default: // binding_failed among them
		return vpcport.Binding{Result: vpcport.BindingFailed}
	}
	if host == "" {
		return vpcport.Binding{}
	}
	var d struct {
		Hybrid  bool            `json:"ovs_hybrid_plug"`
		Bridge  string          `json:"bridge_name"`
		Drivers json.RawMessage `json:"bound_drivers"` // by level
	}
	if len(details) > 0 && json.Unmarshal(details, &d) != nil {
		return vpcport.Binding{Result: vpcport.BindingFailed}
	}
	plug := vpcport.Plug{Kind: vpcport.OVS, Bridge: d.Bridge, OVN: bound(d.Drivers, "ovn")}
	if d.Hybrid {
		plug.Kind = vpcport.OVSHybrid
	}
	if plug.Bridge == "" {
		plug.Bridge = "br-int" // Neutron omits its default
	}
	if !linkName.MatchString(plug.Bridge) {
		return vpcport.Binding{Result: vpcport.BindingFailed}
	}
	return vpcport.Binding{Result: vpcport.Bound, Plug: plug}
}

// bound reports whether a driver is among those that bound a port.
func bound(drivers json.RawMessage, name string) bool {
	var by map[string]string
	if json.Unmarshal(drivers, &by) != nil {
		return false
	}
	for _, d := range by {
		if d == name {
			return true
		}
	}
	return false
}
