package alcor

import (
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

// wirePort is a port as Alcor sends it (PortEntity). What it does not have is not sent.
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

// wireNew asks for a port.
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

// wireChange changes a port. Nil is left as it is.
type wireChange struct {
	Host     *string   `json:"binding:host_id,omitempty"`
	Device   *string   `json:"device_id,omitempty"`
	Owner    *string   `json:"device_owner,omitempty"`
	Groups   *[]string `json:"security_groups,omitempty"`
	Tags     *[]string `json:"tags,omitempty"`
	Security *bool     `json:"port_security_enabled,omitempty"`
}

// envelope has the port of a request.
type envelope struct {
	Port any `json:"port"`
}

// statuses are those of PortStatusEnum, NetworkStatusEnum and StatusEnum, in any case.
var statuses = map[string]vpcport.Status{
	"DOWN": vpcport.StatusDown, "CREATED": vpcport.StatusDown, "BUILD": vpcport.StatusBuild, "PENDING": vpcport.StatusBuild,
	"ACTIVE": vpcport.StatusActive, "SUCCESS": vpcport.StatusActive,
	"ERROR": vpcport.StatusError, "FAILED": vpcport.StatusError, "FAILURE": vpcport.StatusError,
}

// port reads a port, and refuses one that cannot be.
func (p *Provider) port(op string, w wirePort) (vpcport.Port, error) {
	out := vpcport.Port{
		ID: w.ID, NetworkID: w.Network, Name: w.Name, Device: w.Device, Owner: w.Owner, Groups: w.Groups, Tags: w.Tags,
		Status: statuses[strings.ToUpper(strings.TrimSpace(w.Status))], CreatedAt: rest.Time(w.Created),
	}
	if !rest.ValidID(w.ID) || !rest.ValidID(w.Network) {
		return out, rest.Lie(op, "a port with the ID %q of network %q", w.ID, w.Network)
	}
	if err := rest.Addresses(op, &out, w.mac(), w.FixedIPs); err != nil {
		return out, err
	}
	p.bind(&out, w)
	return out, nil
}

// mac is the MAC address. A comma is a separator to Alcor, too.
func (w wirePort) mac() string { return strings.ReplaceAll(w.MAC, ",", ":") }

// Unbound is the tag of a port whose host Alcor still tells, and which is bound to none.
const Unbound = "berth:unbound"

// bind tells to which host a port is bound, and what came of it. The agents of the host put
// it into the namespace of the VPC; a failed status is theirs.
func (p *Provider) bind(out *vpcport.Port, w wirePort) {
	if w.Host == "" || slices.Contains(w.Tags, Unbound) {
		if out.Status != vpcport.StatusError {
			out.Status = vpcport.StatusDown // it was that of the host
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

// nowhere is a port as it is after a host was asked for that Alcor does not have.
func nowhere(port vpcport.Port, host string) vpcport.Port {
	port.Host, port.Binding, port.Status = host, vpcport.Binding{Result: vpcport.BindingFailed}, vpcport.StatusDown
	return port
}

// rehosted are the changes that bind a port to a host, or to none.
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
