package vpcport

import "net/netip"

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
