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
	Routes   []Route    // besides that to the gateway
}

// Route is a route of the hosts of a subnet.
type Route struct {
	Destination netip.Prefix
	Gateway     netip.Addr
}
