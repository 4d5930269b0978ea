package alcorfake

import (
	"net/netip"
	"slices"
	"time"
)

// Network is a VPC.
type Network struct {
	ID, Name string
	Project  string // ID; empty: the cloud's first
	Shared   bool
	MTU      int // bytes; 0: 1450
}

// Subnet is a subnet of a VPC.
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
	MAC                        string
	FixedIPs                   []FixedIP
	Groups                     []string
	Tags                       []string
	Host                       string
	Status                     string // as in replies; empty: omitted
	Unsecured                  bool   // port_security_enabled is false
	Created                    time.Time
	Generation                 int // number of times it was programmed
}

func (p *Port) copied() Port {
	out := *p
	out.FixedIPs, out.Groups, out.Tags = slices.Clone(p.FixedIPs), slices.Clone(p.Groups), slices.Clone(p.Tags)
	return out
}

// Host is a node of the node manager. Its name is its ID.
type Host struct {
	// Fails makes the node's agent reject all ports.
	Fails bool
}
