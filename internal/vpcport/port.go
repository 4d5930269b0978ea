package vpcport

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/mac"
)

// Port is a port as its provider described it at one moment. Its slices belong to the receiver.
type Port struct {
	ID        string
	NetworkID string
	Name      string
	Device    string // identifies the user of the port; for Berth's ports see Device
	Owner     string // the kind of its user: Owner for Berth's ports
	MAC       mac.Addr
	Addresses []FixedIP
	Groups    []string // IDs of security groups
	Tags      []string // one of them may be a NamespaceTag
	Host      string   // the host to bind it to; empty: none
	Binding   Binding
	Status    Status
	Revision  int // 0 without revisions
	CreatedAt time.Time
}

// FixedIP is an address of a port.
type FixedIP struct {
	SubnetID string
	IP       netip.Addr
}

// Status is whether a port carries packets.
type Status int

// The statuses.
const (
	StatusDown   Status = iota // or unknown
	StatusBuild                // being set up
	StatusActive               // carries packets
	StatusError                // failed; needs help
)

// Binding is the result of binding a port to its host.
type Binding struct {
	Result BindingResult
	Plug   Plug   // when bound
	Why    string // why it failed, for people; empty: unknown
}

// BindingResult reports whether a port is bound.
type BindingResult int

// The results.
const (
	Unbound       BindingResult = iota // no host, or not decided yet
	Bound                              // the host may plug it
	BindingFailed                      // no agent of the provider on the host accepts it
)

// Plug is how the host connects a port.
type Plug struct {
	Kind   PlugKind
	Bridge string // the integration bridge, of OVS and OVSHybrid
	Netns  string // the name of a network namespace, of Netns
	OVN    bool   // OVN on the host reports when the port carries packets
	Trunk  string // the MAC address, such as 02:00:00:00:00:01, of the host's link that carries the VLAN, of VLAN
	VLAN   int    // its ID (IEEE 802.1Q), 1 to 4094, of VLAN
}

// PlugKind is a way to connect a port.
type PlugKind int

// The ways to connect a port.
const (
	PlugUnknown PlugKind = iota // not supported by Berth; Binding is BindingFailed
	OVS                         // directly on the integration bridge
	OVSHybrid                   // through a Linux bridge that filters
	Netns                       // from a network namespace of the provider's agent
	VLAN                        // as a VLAN on a link of the host's
)

// NewPort is a request for a port.
type NewPort struct {
	NetworkID string
	Name      string // for people
	Device    string // see Device; identifies the port in later listings
	MAC       mac.Addr
	Addresses []NewAddress // nil: the provider chooses
	Subnets   []string     // IDs of the subnets to choose from if Addresses is nil; nil: the provider chooses
	Groups    []string     // nil: the provider chooses
	Host      string       // the host to bind it to at once; empty: none
}

// NewAddress is a request for an address of a subnet: IP, or any if that is zero.
type NewAddress struct {
	SubnetID string
	IP       netip.Addr
}

// Change is a change of a port. Nil fields stay as they are.
type Change struct {
	Host   *string // empty: bound to none
	Device *string
	Owner  *string
	Groups []string
}

// Filter selects ports that match all fields that are set; a list matches if one of its values does.
// A list has at most Traits.MaxFilter values. Providers refuse an empty filter: it would list the
// ports of all users.
type Filter struct {
	IDs       []string
	Devices   []string
	MACs      []mac.Addr
	NetworkID string
	Owner     string
}

// Empty reports whether a filter lets all ports through.
func (f Filter) Empty() bool {
	return len(f.IDs) == 0 && len(f.Devices) == 0 && len(f.MACs) == 0 && f.NetworkID == "" && f.Owner == ""
}

// Has reports whether a filter matches a port.
func (f Filter) Has(p Port) bool {
	return (len(f.IDs) == 0 || slices.Contains(f.IDs, p.ID)) && (len(f.Devices) == 0 || slices.Contains(f.Devices, p.Device)) &&
		(len(f.MACs) == 0 || slices.ContainsFunc(f.MACs, func(m mac.Addr) bool { return m.String() == p.MAC.String() })) &&
		(f.NetworkID == "" || f.NetworkID == p.NetworkID) && (f.Owner == "" || f.Owner == p.Owner)
}

// Network is a network with its subnets, in the order of their IDs.
type Network struct {
	ID, Name string
	MTU      int // bytes; 0: unknown
	Subnets  []Subnet
}

// Subnet is one of a network.
type Subnet struct {
	ID, Name string
	CIDR     netip.Prefix
	Gateway  netip.Addr // zero without one
	// IPv6CIDR and IPv6Gateway are the IPv6 block and gateway of a dual-stack subnet of EC2, whose
	// CIDR and Gateway are IPv4. Zero: the subnet has the family of CIDR only.
	IPv6CIDR    netip.Prefix
	IPv6Gateway netip.Addr
	Routes      []Route // without those to the gateways
}

// For is the block of an address's family, and the gateway.
func (s Subnet) For(ip netip.Addr) (cidr netip.Prefix, gateway netip.Addr) {
	if s.IPv6CIDR.IsValid() && ip.Is6() {
		return s.IPv6CIDR, s.IPv6Gateway
	}
	return s.CIDR, s.Gateway
}

// Route is a host route of a subnet.
type Route struct {
	Destination netip.Prefix
	Gateway     netip.Addr
}

// Mismatch names the property in which a port differs from its request; empty: none.
func Mismatch(n NewPort, p Port) string {
	switch {
	case p.NetworkID != n.NetworkID:
		return "network"
	case p.Device != n.Device || p.Owner != Owner:
		return "device"
	case n.MAC != nil && p.MAC.String() != n.MAC.String():
		return "MAC address"
	case n.Groups != nil && !SameSet(n.Groups, p.Groups):
		return "set of security groups"
	case p.Host != n.Host:
		return "host"
	case !hasAddresses(n.Addresses, p.Addresses):
		return "address"
	}
	return ""
}

// Unmet describes the part of a change that a port does not have; empty: none.
func (c Change) Unmet(p Port) string {
	for _, f := range []struct {
		name string
		want *string
		got  string
	}{{"host", c.Host, p.Host}, {"device", c.Device, p.Device}, {"owner", c.Owner, p.Owner}} {
		if f.want != nil && *f.want != f.got {
			return fmt.Sprintf("port %s has the %s %q after a change to %q", p.ID, f.name, f.got, *f.want)
		}
	}
	if c.Groups != nil && !SameSet(c.Groups, p.Groups) {
		return fmt.Sprintf("port %s has the groups %q after a change to %q", p.ID, p.Groups, c.Groups)
	}
	return ""
}

// Empty reports whether a change changes nothing.
func (c Change) Empty() bool {
	return c.Host == nil && c.Device == nil && c.Owner == nil && c.Groups == nil
}

// hasAddresses reports whether each address that was asked for is there. A network whose
// IPv6 addresses derive from MAC addresses adds one that was not (SLAAC).
func hasAddresses(asked []NewAddress, got []FixedIP) bool {
	left := slices.Clone(got)
	for _, a := range asked {
		i := slices.IndexFunc(left, func(f FixedIP) bool {
			return (a.SubnetID == "" || a.SubnetID == f.SubnetID) && (!a.IP.IsValid() || a.IP == f.IP)
		})
		if i < 0 {
			return false
		}
		left = slices.Delete(left, i, i+1)
	}
	return true
}

// SameSet reports whether two lists have the same values.
func SameSet(a, b []string) bool {
	unique := func(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }
	return slices.Equal(unique(a), unique(b))
}
