package alcor

import (
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

// wirePort is a port from Alcor (PortEntity). Alcor omits empty fields.
type wirePort struct {
	ID       string    `json:"id"`
	Project  string    `json:"project_id"`
	Name     string    `json:"name"`
	Network  string    `json:"network_id"`
	Device   string    `json:"device_id"`
	Owner    string    `json:"device_owner"`
	MAC      string    `json:"mac_address"`
	Status   string    `json:"status"`
	FixedIPs []rest.IP `json:"fixed_ips"`
	Groups   []string  `json:"security_groups"`
	Host     string    `json:"binding:host_id"`
	Tags     []string  `json:"tags"`
	Security *bool     `json:"port_security_enabled"`
	Created  string    `json:"create_at"`
}

// wireNew is a request for a port.
type wireNew struct {
	Network  string    `json:"network_id"`
	Name     string    `json:"name"`
	Up       bool      `json:"admin_state_up"`
	Device   string    `json:"device_id"`
	Owner    string    `json:"device_owner"`
	MAC      string    `json:"mac_address,omitempty"`
	FixedIPs []rest.IP `json:"fixed_ips,omitempty"`
	Groups   []string  `json:"security_groups,omitempty"`
	Host     string    `json:"binding:host_id,omitempty"`
}

// wireChange is a change of a port. Nil fields keep their values.
type wireChange struct {
	Host     *string   `json:"binding:host_id,omitempty"`
	Device   *string   `json:"device_id,omitempty"`
	Owner    *string   `json:"device_owner,omitempty"`
	Groups   *[]string `json:"security_groups,omitempty"`
	Tags     *[]string `json:"tags,omitempty"`
	Security *bool     `json:"port_security_enabled,omitempty"`
}

// envelope wraps the port of a request.
type envelope struct {
	Port any `json:"port"`
}

// statuses maps the values of PortStatusEnum, NetworkStatusEnum and StatusEnum, in upper case.
var statuses = map[string]vpcport.Status{
	"DOWN": vpcport.StatusDown, "CREATED": vpcport.StatusDown, "BUILD": vpcport.StatusBuild, "PENDING": vpcport.StatusBuild,
	"ACTIVE": vpcport.StatusActive, "SUCCESS": vpcport.StatusActive,
	"ERROR": vpcport.StatusError, "FAILED": vpcport.StatusError, "FAILURE": vpcport.StatusError,
}

// port decodes a port and refuses invalid ones.
func (p *Provider) port(op string, w wirePort) (vpcport.Port, error) {
	out := vpcport.Port{
		ID: w.ID, NetworkID: w.Network, Name: w.Name, Device: w.Device, Owner: w.Owner, Groups: w.Groups, Tags: w.Tags,
		Status: statuses[strings.ToUpper(strings.TrimSpace(w.Status))], CreatedAt: rest.Time(w.Created),
	}
	if !rest.ValidID(w.ID) || !rest.ValidID(w.Network) {
		return out, rest.BadReply(op, "a port with the ID %q of network %q", w.ID, w.Network)
	}
	if err := rest.Addresses(op, &out, w.mac(), w.FixedIPs); err != nil {
		return out, err
	}
	p.bind(&out, w)
	return out, nil
}

// mac returns the MAC address. Alcor also accepts a comma as a separator.
func (w wirePort) mac() string { return strings.ReplaceAll(w.MAC, ",", ":") }

// Unbound is the tag of a port that is bound to no host. Alcor keeps showing its last host.
const Unbound = "berth:unbound"

// bind sets the host and the binding of a port. The agents on the host put the port into the VPC's namespace, and report a failed status.
func (p *Provider) bind(out *vpcport.Port, w wirePort) {
	if w.Host == "" || slices.Contains(w.Tags, Unbound) {
		if out.Status != vpcport.StatusError {
			out.Status = vpcport.StatusDown // the status is from the last host
		}
		return
	}
	out.Host = w.Host
	if out.Status == vpcport.StatusError {
		out.Binding = vpcport.Binding{Result: vpcport.BindingFailed}
		return
	}
	out.Binding = vpcport.Binding{Result: vpcport.Bound, Plug: vpcport.Plug{Kind: vpcport.Netns, Netns: p.settings.NetnsPrefix + w.Network}}
}

// nowhere returns a port whose requested host is unknown to Alcor.
func nowhere(port vpcport.Port, host string) vpcport.Port {
	port.Host, port.Binding, port.Status = host, vpcport.Binding{Result: vpcport.BindingFailed}, vpcport.StatusDown
	return port
}

// rehosted returns the change that binds a port to a host, or to none.
func rehosted(now wirePort, host string) (to *string, tags *[]string) {
	marked := slices.Contains(now.Tags, Unbound)
	others := slices.DeleteFunc(slices.Clone(now.Tags), func(t string) bool { return t == Unbound })
	switch {
	case host == "" && (marked || now.Host == ""):
		return nil, nil
	case host == "":
		others = append(others, Unbound)
		return nil, &others
	case marked:
		if others == nil {
			others = []string{}
		}
		return &host, &others
	}
	return &host, nil
}
