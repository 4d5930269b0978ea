// Package egressclient sets up a pod's network namespace so that packets to the destinations of the pod's Egresses go
// through Foo-over-UDP tunnels to their gateways, and all others take their usual route (the design of Coil v2,
// "On-demand NAT for egress traffics").
//
//   - A tunnel device of each family (internal/kernel/tunnel) leads to all gateways.
//   - Table 117 has the destinations, table 118 default routes, which yield to the routes of
//     the main table for networks of the cluster. Beneath each route is one that is
//     unreachable: without a gateway or a device, packets go nowhere rather than another way.
//   - nftables chooses a gateway for each new connection among those that take some, and notes
//     it in the connection's mark; a rule and a routing table of each gateway send later packets
//     there. So connections stay with their gateway as long as it is there, whatever comes and
//     goes besides, and the connections of one client spread, also those to one destination
//     (the kernel's choice among IPv6 next hops passes over the source port).
//   - Tunnels carry what gateways sent only, and of that only what belongs to connections that
//     went out: a tunnel is no way around NetworkPolicies.
//
// Pure functions compute the desired state from a Setup (plan.go, filter.go). The rest compares it with the kernel
// and writes what differs, in an order in which no packet to a destination bypasses the gateways. Only routes and
// rules with routing protocol 190 (rtnl.Protocol) and the nftables table tunnel.Table are changed.
//
// A limitation: the kernel records the MTU of a path beyond the gateway (RFC 1191, RFC 8201) at the route to the
// first gateway. TCP uses it with every gateway, and UDP over IPv6 with the first one only.
package egressclient
