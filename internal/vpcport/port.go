package vpcport

import (
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/mac"
)

// Port is a port as its provider described it at one moment. Slices are the receiver's.
type Port struct {
	ID        string
	NetworkID string
	Name      string
	Device    string // whose it is, in the words of whoever has it; Device makes Berth's
	Owner     string // what kind of thing has it: Owner where Berth does
	MAC       mac.Addr
	Addresses []FixedIP
	Groups    []string // IDs of security groups
	Tags      []string // one of them may be a NamespaceTag
	Host      string   // that it is to be bound to; empty: none
	Binding   Binding
	Status    Status
	Revision  int // 0 where there are none
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
	StatusDown   Status = iota // or not said
	StatusBuild                // on its way
	StatusActive               // it does
	StatusError                // it will not without somebody's help
)

// Binding is what came of binding a port to its host.
type Binding struct {
	Result BindingResult
	Plug   Plug   // when bound
	Why    string // when it failed, for a person; empty: nobody knows
}

// BindingResult reports whether a port is bound.
type BindingResult int

// What may come of it.
const (
	Unbound       BindingResult = iota // it has no host, or nothing is decided yet
	Bound                              // the host may plug it
	BindingFailed                      // no agent of the provider at the host takes it
)

// Plug is how the host connects a port.
type Plug struct {
	Kind   PlugKind
	Bridge string // the integration bridge, of OVS and OVSHybrid
	Netns  string // the name of a network namespace, of Netns
	OVN    bool   // the host's OVN tells when the port carries packets
	Trunk  string // the MAC address, such as 02:00:00:00:00:01, of the host's link that carries the VLAN, of VLAN
	VLAN   int    // its ID (IEEE 802.1Q), 1 to 4094, of VLAN
}

// PlugKind is a way to connect a port.
type PlugKind int

// The ways that there are.
const (
	PlugUnknown PlugKind = iota // one that Berth cannot do; Binding then is BindingFailed
	OVS                         // straight on the integration bridge
	OVSHybrid                   // by a Linux bridge in between, which filters
	Netns                       // from a network namespace of the provider's agent
	VLAN                        // as a VLAN on a link of the host's
)

// NewPort asks for a port.
type NewPort struct {
	NetworkID string
	Name      string // for people
	Device    string // of Device; a port is found again by it
	MAC       mac.Addr
	Addresses []NewAddress // nil: as the provider chooses
	Subnets   []string     // IDs, of which it is in one where Addresses is nil; nil: as the provider chooses
	Groups    []string     // nil: as the provider chooses
	Host      string       // to bind it to at once; empty: none yet
}

// NewAddress asks for an address of a subnet: a certain one, or any.
type NewAddress struct {
	SubnetID string
	IP       netip.Addr
}

// Change is what is to be other of a port. Nil fields stay as they are.
type Change struct {
	Host   *string // empty: bound to none
	Device *string
	Owner  *string
	Groups []string
}

// Filter narrows a listing of ports: to those that match all fields that are set, and of
// each list one value. Lists have Traits.MaxFilter values at most. An empty filter is
// refused: it would list what others have.
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

// Network is a network with its subnets, in the order of their IDs.
type Network struct {
	ID, Name string
	MTU      int // bytes; 0: not told
	Subnets  []Subnet
}

// Subnet is one of a network.
type Subnet struct {
	ID, Name string
	CIDR     netip.Prefix
	Gateway  netip.Addr // zero without one
	// IPv6CIDR and IPv6Gateway are those of IPv6 of a subnet that has addresses of both families, as
	// EC2's may: CIDR and Gateway are of IPv4 then. Zero: it has those of CIDR alone.
	IPv6CIDR    netip.Prefix
	IPv6Gateway netip.Addr
	Routes      []Route // besides those to the gateways
}

// For is the block of the family of an address, of a subnet that may have two, and its gateway.
func (s Subnet) For(ip netip.Addr) (cidr netip.Prefix, gateway netip.Addr) {
	if s.IPv6CIDR.IsValid() && ip.Is6() {
		return s.IPv6CIDR, s.IPv6Gateway
	}
	return s.CIDR, s.Gateway
}

// Route is a route of the hosts of a subnet.
type Route struct {
	Destination netip.Prefix
	Gateway     netip.Addr
}
