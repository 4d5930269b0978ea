package neutronfake

import (
	"net/netip"
	"time"
)

// Network is a network.
type Network struct {
	ID, Name string
	Project  string // ID; empty: the cloud's first
	Shared   bool   // visible to all projects
	MTU      int    // bytes; 0: 1442, which leaves room for Geneve in 1500
}

// Subnet is a subnet of a network.
type Subnet struct {
	ID, Name, Network string
	CIDR              netip.Prefix
	Gateway           netip.Addr // zero: none
	Routes            []Route
}

// Route is a host route of a subnet.
type Route struct {
	Destination netip.Prefix
	NextHop     netip.Addr
}

// FixedIP is an address of a port.
type FixedIP struct {
	Subnet string
	IP     netip.Addr
}

// Port is a port.
type Port struct {
	ID, Name, Network, Project string
	Device, Owner              string
	MAC                        string // lower case
	FixedIPs                   []FixedIP
	Groups, Tags               []string
	Host                       string
	VIF                        VIF
	Status                     string // DOWN, BUILD, ACTIVE, ERROR
	Revision                   int
	Created, Updated           time.Time

	pluggedAt string // host where it is plugged, or empty
}

// VIF is the result of binding a port.
type VIF struct {
	Type    string         // unbound, binding_failed, ovs, ...
	Details map[string]any // binding:vif_details
}

// Group is a security group.
type Group struct {
	ID, Name, Project string
	// Rules are for the fabric; the API does not return them.
	Rules []Rule
}

// Rule allows packets to or from the ports of a group, and replies to these packets.
type Rule struct {
	Egress   bool
	Protocol string       // tcp, udp, icmp; empty: any
	Port     uint16       // destination port of tcp and udp; 0: any
	Remote   netip.Prefix // remote prefix; zero: any
	Group    string       // ID of the remote group; empty: any
}

// defaultRules returns the rules of a project's default group: all egress, and ingress from the group
// itself (Neutron's API reference, security groups).
func defaultRules(id string) []Rule { return []Rule{{Egress: true}, {Group: id}} }
