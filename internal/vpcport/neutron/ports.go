package neutron

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
)

// portJSON is a port as Neutron writes it (API reference, ports, and the extensions
// binding and standard-attr-revisions).
type portJSON struct {
	ID             string      `json:"id"`
	NetworkID      string      `json:"network_id"`
	Name           string      `json:"name"`
	DeviceID       string      `json:"device_id"`
	DeviceOwner    string      `json:"device_owner"`
	MACAddress     string      `json:"mac_address"`
	FixedIPs       []fixedJSON `json:"fixed_ips"`
	SecurityGroups []string    `json:"security_groups"`
	Status         string      `json:"status"`
	HostID         string      `json:"binding:host_id"`
	VIFType        string      `json:"binding:vif_type"`
	VIFDetails     vifDetails  `json:"binding:vif_details"`
	RevisionNumber int         `json:"revision_number"`
	CreatedAt      string      `json:"created_at"`
}

type fixedJSON struct {
	SubnetID  string `json:"subnet_id,omitempty"`
	IPAddress string `json:"ip_address,omitempty"`
}

// vifDetails is what the mechanism driver tells the host.
type vifDetails struct {
	BridgeName   string            `json:"bridge_name"`
	HybridPlug   bool              `json:"ovs_hybrid_plug"`
	BoundDrivers map[string]string `json:"bound_drivers"`
}

// fields are those of a port that are asked for in listings.
var fields = []string{
	"id", "network_id", "name", "device_id", "device_owner", "mac_address", "fixed_ips", "security_groups", "status",
	"binding:host_id", "binding:vif_type", "binding:vif_details", "revision_number", "created_at",
}

// port is a port in Berth's words. The error says what cannot be.
func (j portJSON) port() (vpcport.Port, error) {
	p := vpcport.Port{
		ID: j.ID, NetworkID: j.NetworkID, Name: j.Name, Device: j.DeviceID, Owner: j.DeviceOwner, Groups: j.SecurityGroups,
		Host: j.HostID, Binding: j.binding(), Status: statuses[strings.ToUpper(j.Status)], Revision: j.RevisionNumber,
	}
	if !uuid.MatchString(j.ID) || !uuid.MatchString(j.NetworkID) {
		return p, fmt.Errorf("a port has the ID %.80q and network %.80q, expected UUIDs", j.ID, j.NetworkID)
	}
	hw, err := net.ParseMAC(j.MACAddress)
	if err != nil || len(hw) != 6 || hw[0]&1 != 0 {
		return p, fmt.Errorf("port %s has the MAC address %.80q, expected one of one host", j.ID, j.MACAddress)
	}
	p.MAC = mac.Addr(hw)
	for _, f := range j.FixedIPs {
		ip, err := netip.ParseAddr(f.IPAddress)
		if err != nil || ip.Zone() != "" {
			return p, fmt.Errorf("port %s has the address %.80q, expected an IP address", j.ID, f.IPAddress)
		}
		p.Addresses = append(p.Addresses, vpcport.FixedIP{SubnetID: f.SubnetID, IP: ip.Unmap()})
	}
	p.CreatedAt, _ = time.Parse(time.RFC3339, j.CreatedAt) // of servers without timestamps: never
	return p, nil
}

var statuses = map[string]vpcport.Status{
	"ACTIVE": vpcport.StatusActive, "BUILD": vpcport.StatusBuild, "DOWN": vpcport.StatusDown, "ERROR": vpcport.StatusError,
}

// defaultBridge is the integration bridge where none is named (Neutron configuration,
// integration_bridge).
const defaultBridge = "br-int"

var bridgeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$`)

// binding is what came of binding the port.
func (j portJSON) binding() vpcport.Binding {
	switch j.VIFType {
	case "", "unbound":
		return vpcport.Binding{}
	case "ovs":
	default: // binding_failed, or a way to plug that Berth cannot do
		return vpcport.Binding{Result: vpcport.BindingFailed}
	}
	plug := vpcport.Plug{Kind: vpcport.OVS, Bridge: j.VIFDetails.BridgeName}
	if plug.Bridge == "" {
		plug.Bridge = defaultBridge
	}
	if !bridgeName.MatchString(plug.Bridge) {
		return vpcport.Binding{Result: vpcport.BindingFailed}
	}
	if j.VIFDetails.HybridPlug {
		plug.Kind = vpcport.OVSHybrid
	}
	for _, driver := range j.VIFDetails.BoundDrivers {
		plug.OVN = plug.OVN || driver == "ovn"
	}
	return vpcport.Binding{Result: vpcport.Bound, Plug: plug}
}

// newJSON asks for a port. What is not set the server chooses.
type newJSON struct {
	NetworkID      string      `json:"network_id"`
	ProjectID      string      `json:"project_id,omitempty"`
	Name           string      `json:"name"`
	DeviceID       string      `json:"device_id"`
	DeviceOwner    string      `json:"device_owner"`
	MACAddress     string      `json:"mac_address,omitempty"`
	FixedIPs       []fixedJSON `json:"fixed_ips,omitempty"`
	SecurityGroups []string    `json:"security_groups,omitempty"`
	HostID         string      `json:"binding:host_id,omitempty"`
}

func newPort(n vpcport.NewPort, project string) newJSON {
	j := newJSON{
		NetworkID: n.NetworkID, ProjectID: project, Name: n.Name, DeviceID: n.Device, DeviceOwner: vpcport.Owner,
		SecurityGroups: n.Groups, HostID: n.Host,
	}
	if n.MAC != nil {
		j.MACAddress = n.MAC.String()
	}
	for _, a := range n.Addresses {
		f := fixedJSON{SubnetID: a.SubnetID}
		if a.IP.IsValid() {
			f.IPAddress = a.IP.String()
		}
		j.FixedIPs = append(j.FixedIPs, f)
	}
	return j
}

// changeJSON changes a port. Nil fields stay.
type changeJSON struct {
	HostID         *string  `json:"binding:host_id,omitempty"`
	DeviceID       *string  `json:"device_id,omitempty"`
	DeviceOwner    *string  `json:"device_owner,omitempty"`
	SecurityGroups []string `json:"security_groups,omitempty"`
}
