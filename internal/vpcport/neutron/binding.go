package neutron

import (
	"encoding/json"
	"regexp"

	"github.com/berthnet/berth/internal/vpcport"
)

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
